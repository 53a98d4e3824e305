"""The loop over virtual nodes on a real slurmctld: counts follow the pool, nothing is drained, and running jobs go on.

The nodes' slurmd has no plugin here: a job that starts there is a sleep of the test's own.
"""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from federation.config_overflow import OverflowConfig, VirtualNodes
from federation.model.messages import Room, Rooms
from federation.overflow.checks import check
from federation.overflow.facts import Rule
from federation.overflow.nodes import CALM_S, NodesLoop
from federation.overflow.render import side_of
from federation.ports import Now
from federation.runner import Runner
from slurm_plugin.catalogue import render
from slurm_plugin.pool import GresNames
from slurm_plugin.slurm import gateway
from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.live import read_live
from slurm_plugin.slurm.process import Site
from slurm_plugin.slurm.queue import Pool
from tests.cases.pool import pool as example
from tests.e2e.bare_slurm import BareSlurm, bare_slurm, free_ports, wait
from tests.integration.federation.site import Net

pytestmark = pytest.mark.slurm

ROOM = Room(pool="gpu", catalogue=render(example()), slices=(("m20", 2),), free_jobs=50, free_cpus=64)
LUA = "function slurm_job_submit() return slurm.SUCCESS end\nfunction slurm_job_modify() return slurm.SUCCESS end\n"
NODES = ("cloud-a-1", "cloud-a-2")
SLICE = "--gres=vgpu:m20:1,vgpu_mem:2"
LONG = ("--wrap", "exec sleep 600")


def config(conf: Path) -> OverflowConfig:
    nodes = VirtualNodes(
        prefix="cloud-a",
        count=2,
        pool="aws/gpu",
        gateway=os.uname().nodename.split(".")[0],
        cpus=512,
        memory_mib=160_000,
        most_jobs=100,
        shared_files=False,
    )
    return OverflowConfig(
        cluster="bare",
        slurm=Site(conf=conf),
        socket=conf.with_name("gateway.sock"),
        partition="cloud",
        wait_partition="vgpu-wait",
        longest_wait_s=60,
        pool_yaml=None,
        nodes={"cloud-a": nodes},
        rules={"gpu": Rule()},
    )


@pytest.fixture(scope="module")
def slurm() -> Iterator[BareSlurm]:
    """What is rendered, with ports and addresses of this machine."""
    side = side_of(config(Path("/none")), GresNames())
    lines = [
        replace(line, names=(name,), ports=(port,), address="127.0.0.1")
        for line in side.lines
        for name, port in zip(line.names, free_ports(len(line.names)), strict=True)
    ]
    side = replace(side, lines=tuple(lines))
    text = "\n".join([*(gateway.node_line(line, side.gres) for line in lines), gateway.partition_line(side), ""])
    with bare_slurm({"job_submit.lua": LUA + "return slurm.SUCCESS\n"}, lambda _: text) as cluster:
        etc = cluster.folder / "gateway"
        etc.mkdir()
        for file in ("slurm.conf", "cgroup.conf"):
            if (cluster.folder / file).exists():
                shutil.copy(cluster.folder / file, etc)
        (etc / "gres.conf").write_text(gateway.gres_conf(side))
        for name in NODES:
            (cluster.folder / f"spool-{name}").mkdir()
            cluster.start("slurmd", "-D", "-N", name, "-f", str(etc / "slurm.conf"))
        wait(lambda: {states(cluster)[name] for name in NODES} == {"idle"}, "idle virtual nodes")
        yield cluster


def states(slurm: BareSlurm) -> dict[str, str]:
    rows = slurm.run("sinfo", "-a", "-h", "-N", "-o", "%N %T").stdout.split()
    return dict(zip(rows[::2], rows[1::2], strict=True))


def in_service(slurm: BareSlurm, name: str) -> bool:
    return not states(slurm)[name].startswith("d")


class Rig:
    """A site whose peer `aws` says what the test lets it say."""

    def __init__(self, runner: Runner, slurm: BareSlurm) -> None:
        self.runner, self.slurm, self.passed = runner, slurm, 0.0
        self.config = config(slurm.conf)
        self.commands = SlurmCommands(self.config.slurm, Pool())
        self.loop = NodesLoop(lambda: self.config, runner, self.commands, self.now)

    def now(self) -> Now:
        """Each look comes long after the last one."""
        self.passed += CALM_S
        return Now(wall=time.time(), mono=time.monotonic() + self.passed)

    async def look(self, room: Room = ROOM, *, linked: bool = True) -> None:
        """Twice: the partition does not open with a node that has only just registered."""
        site = self.runner.engine.sites["aws"]
        for _ in range(2):
            site.linked, site.heard = linked, time.monotonic() + self.passed + 3 * CALM_S
            self.runner.engine.sites.offered("aws", Rooms(pools=(room,)), self.now())
            await self.loop.look()

    async def counts(self) -> dict[str, int]:
        """Slices of each class that both nodes offer or have, and what both count in all."""
        nodes = await self.commands.nodes(NODES)
        assert {sum(item.count for item in node.gres if item.name == "vgpu") for node in nodes} == {gateway.TOTAL}
        found: dict[str, int] = {}
        for node in nodes:
            assert "DRAIN" not in node.state
            for item in node.gres:
                if item.name == "vgpu" and item.type != "pad":
                    found[item.type] = found.get(item.type, 0) + item.count
        return found

    async def door(self) -> str:
        return (await self.commands.partitions())["cloud"]["State"]

    async def comments(self) -> set[str]:
        return {node.comment for node in await self.commands.nodes(NODES)}


@pytest.fixture
async def site(slurm: BareSlurm, tmp_path: Path) -> AsyncIterator[Rig]:
    net = Net(tmp_path)
    net.site("aws", "hpc")  # never up: the test says what it says
    async with net.site("hpc", "aws").up() as runner:
        made = Rig(runner, slurm)
        yield made
        slurm.cancel_all()
        wait(lambda: not slurm.jobs(), "an empty queue")
        await made.look(linked=False)


def submit(slurm: BareSlurm, *options: str) -> str:
    ran = slurm.run("sbatch", "--parsable", "-o", "/dev/null", *options, *LONG)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def runs(slurm: BareSlurm, job: str) -> str:
    """Where it runs; waits for that."""
    wait(lambda: slurm.job(job)["JobState"] == "RUNNING", f"job {job} running")
    return slurm.job(job)["NodeList"]


def waits(slurm: BareSlurm, job: str) -> bool:
    return slurm.job(job)["JobState"] == "PENDING"


async def test_slurm_as_it_is_rendered_lacks_nothing(site: Rig) -> None:
    live = await read_live(site.commands, site.slurm.conf)
    problems = check(site.config, side_of(site.config, GresNames()), live)
    hooks = ("PrologFlags lacks Alloc", "there is no Prolog", "there is no TaskProlog", "job_submit.lua does not name")
    assert [one.what for one in problems if not any(hook in one.what for hook in hooks)] == []


async def test_a_widened_job_starts_where_there_is_room(site: Rig) -> None:
    slurm = site.slurm
    job = submit(slurm, "-p", "gpu,vgpu-wait", SLICE)
    await site.look()
    assert (await site.counts(), await site.door()) == ({}, "UP"), "nothing waits for the pool"
    widen = ("scontrol", "update", f"jobid={job}", "partition=gpu,vgpu-wait,cloud")
    wait(lambda: slurm.run(*widen).returncode == 0, "a widened job")  # a new job is busy for a moment
    await site.look()
    assert await site.counts() == {"m20": 1}
    assert runs(slurm, job) in NODES
    here = submit(slurm, "-p", "gpu,vgpu-wait,cloud", SLICE)
    slurm.run("scontrol", "update", "nodename=n1", "gres=vgpu:m20:1,vgpu:pad:999,vgpu_mem:16")
    assert runs(slurm, here) == "n1", "room here comes first"


async def test_no_more_start_than_the_pool_has(site: Rig) -> None:
    slurm = site.slurm
    array = submit(slurm, "-p", "cloud,vgpu-wait", SLICE, "--array=1-5")
    await site.look()
    assert await site.counts() == {"m20": 2}
    wait(lambda: len(started(slurm, array)) == 2, "two elements running")
    await site.look()
    assert await site.counts() == {"m20": 2}, "the pool tells of two, and both have started here"
    assert len(set(started(slurm, array).values())) == 2, "one on each node"


def started(slurm: BareSlurm, array: str) -> dict[str, str]:
    rows = slurm.run("squeue", "-h", "-r", "-j", array, "-t", "R", "-o", "%i %N").stdout.split()
    return dict(zip(rows[::2], rows[1::2], strict=True))


async def test_a_pool_that_is_away_takes_the_nodes_to_zero_and_what_runs_goes_on(site: Rig) -> None:
    slurm = site.slurm
    job = submit(slurm, "-p", "cloud,vgpu-wait", SLICE)
    await site.look()
    node = runs(slurm, job)
    other = submit(slurm, "-p", "cloud,vgpu-wait", SLICE)
    await site.look(linked=False)
    assert await site.counts() == {"m20": 1}
    assert (await site.door(), await site.comments()) == ("DOWN", {"fed: aws/gpu: no link to aws"})
    assert (slurm.job(job)["JobState"], slurm.job(job)["NodeList"]) == ("RUNNING", node)
    assert waits(slurm, other)
    await site.look()
    assert (await site.door(), await site.comments()) == ("UP", {""})
    assert runs(slurm, other) in NODES


@pytest.mark.parametrize("what", ["reconfigure", "restart"])
async def test_counts_come_back_after_slurmctld_has_forgotten_them(site: Rig, what: str) -> None:
    slurm = site.slurm
    job = submit(slurm, "-p", "cloud,vgpu-wait", SLICE)
    await site.look()
    runs(slurm, job)
    if what == "reconfigure":
        slurm.run("scontrol", "reconfigure")
    else:
        restart(slurm)
    wait(lambda: "cloud" in slurm.run("sinfo", "-a", "-h", "-o", "%R").stdout, "an answer of slurmctld's")
    assert await site.door() == "DOWN", "nothing starts there before somebody says so"
    wait(lambda: not any(states(slurm)[name].startswith("unk") for name in NODES), "nodes that have registered")
    await site.look()
    assert await site.door() == "UP"
    other = submit(slurm, "-p", "cloud,vgpu-wait", SLICE)
    await site.look()
    assert runs(slurm, other) in NODES
    assert slurm.job(job)["JobState"] == "RUNNING"
    for name in NODES:
        wait(partial(in_service, slurm, name), f"{name} in service")
    await site.counts()


def restart(slurm: BareSlurm) -> None:
    """slurmctld is the second daemon, and saves what it knows when it ends."""
    slurm.daemons[1].terminate()
    slurm.daemons[1].wait(20)
    slurm.start("slurmctld", "-D", "-f", str(slurm.conf))
    slurm.daemons[1] = slurm.daemons.pop()


async def test_a_job_without_slices_starts_while_the_partition_is_open_only(site: Rig) -> None:
    slurm = site.slurm
    job = submit(slurm, "-p", "cloud")
    await asyncio.sleep(0)
    assert waits(slurm, job)
    await site.look(replace(ROOM, free_jobs=0))
    assert waits(slurm, job)
    await site.look()
    assert runs(slurm, job) in NODES
