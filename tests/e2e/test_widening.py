"""Waiting jobs of a real Slurm are let into the cloud partition, and taken back."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from federation.cli.main import run
from federation.config_overflow import VirtualNodes
from federation.overflow.changes import Change, Changes
from federation.overflow.facts import Rule
from federation.overflow.looking import Sources
from federation.overflow.queued import Queued
from federation.overflow.rules import AWAY_S
from federation.overflow.waiting import Queue
from federation.overflow.widening import Look, State, Widening
from federation.ports import Now
from slurm_plugin.slurm.process import Runner, Site
from tests.contract.federation.overflow.test_waiting import FOLDER
from tests.contract.federation.overflow.waiting import CHECKS, NAMES, RECORDS, play
from tests.contract.slurm.records import Recorder
from tests.e2e.bare_slurm import NOBODY, NODES, BareSlurm, bare_slurm, free_ports, wait
from tests.integration.federation.daemons import Site as FedSite
from tests.integration.federation.daemons import passable
from tests.integration.federation.overflow.queue import NODES as VIRTUAL
from tests.integration.federation.overflow.queue import Bench

pytestmark = pytest.mark.slurm

CLOUD = "cloud-gpu-1"  # no slurmd serves it: what may run there waits
VETO = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify(desc, record)
   if record.name == "vetoed" and desc.partition ~= nil then
      slurm.log_user("this site says no")
      return slurm.ERROR
   end
   return slurm.SUCCESS
end
"""
CONF = """\
Licenses=lic:9
NodeName={cloud} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[0]} CPUs=512 RealMemory=160000
NodeName=cloud-b-1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=512 RealMemory=160000
PartitionName=cloud Nodes={cloud},cloud-b-1 State=UP MaxTime=INFINITE PriorityTier=0
"""
TO_CLOUD, BACK = ("partition=gpu,cloud",), ("partition=gpu",)
MANY = 300


@pytest.fixture(scope="module")
def slurm() -> Iterator[BareSlurm]:
    """A cluster whose two nodes are full for as long as it lives."""
    ports = free_ports(2)
    with bare_slurm({"job_submit.lua": VETO}, lambda _: CONF.format(cloud=CLOUD, ports=ports)) as cluster:
        for node in NODES:
            submit(cluster, "-w", node, "-c16", "--wrap", "sleep 10000", name="full")
        wait(lambda: states(cluster, "full") == ["RUNNING", "RUNNING"], "two jobs that take all")
        yield cluster


@pytest.fixture(autouse=True)
def _empty(slurm: BareSlurm) -> Iterator[None]:
    """Each test leaves only those two."""
    yield
    if waits := slurm.run("squeue", "-h", "-a", "-t", "PENDING", "-o", "%A").stdout.split():
        slurm.run("scancel", *waits)
    wait(lambda: not slurm.run("squeue", "-h", "-a", "-t", "PENDING").stdout, "an empty queue")


def submit(slurm: BareSlurm, *options: str, name: str = "plain") -> int:
    done = slurm.run("sbatch", "--parsable", "-p", "gpu", "-o", "/dev/null", "-J", name, *options, user=NOBODY)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def waiting(slurm: BareSlurm, *options: str, name: str = "plain") -> int:
    return submit(slurm, "-c16", *options, "--wrap", "sleep 10000", name=name)


@contextmanager
def asked_by_hand(slurm: BareSlurm) -> Iterator[None]:
    argv = ("srun", "-p", "gpu", "-c16", "true")
    with subprocess.Popen(argv, env=slurm.env(), stderr=subprocess.DEVNULL, cwd="/", user=NOBODY) as srun:
        try:
            yield
        finally:
            srun.terminate()


def states(slurm: BareSlurm, name: str) -> list[str]:
    return slurm.run("squeue", "-h", "-n", name, "-o", "%T").stdout.split()


def partitions(slurm: BareSlurm) -> dict[str, str]:
    """Of each record of Slurm's that waits, by its name."""
    found = {}
    for line in slurm.run("scontrol", "show", "job", "-o").stdout.splitlines():
        record = dict(field.partition("=")[::2] for field in line.split())
        if record.get("JobState") == "PENDING":  # not so in the line that a name forged
            task = record.get("ArrayTaskId")
            name = f"{record['ArrayJobId']}_{task}" if task else record["JobId"]
            found[name] = record["Partition"]
    return found


def runner(slurm: BareSlurm) -> Runner:
    return Runner(Site(conf=slurm.conf))


async def read(slurm: BareSlurm) -> dict[int, Queued]:
    found = await Queue(runner(slurm)).waiting({"gpu", "cloud"}, NAMES)
    return {one.job.job_id: one for one in found}


async def test_the_scene_and_its_recording(slurm: BareSlurm) -> None:
    """VGPU_RECORD=1 writes what this release prints into tests/contract/federation/overflow/recorded_queue."""
    play(slurm.run)
    recorder = Recorder(runner(slurm))
    with asked_by_hand(slurm):
        wait(lambda: len(slurm.jobs()) == RECORDS + 2, "an interactive job that waits")
        for check in CHECKS:
            await check(Queue(recorder))
    if os.environ.get("VGPU_RECORD"):
        version = slurm.run("slurmctld", "-V").stdout.split()[1]
        recorder.save(FOLDER / f"{version}.txt")
    slurm.run("scancel", *slurm.run("squeue", "-h", "-t", "PENDING", "-o", "%A").stdout.split())
    wait(lambda: len(slurm.jobs()) == 2, "the end of what reserves")
    slurm.run("scontrol", "delete", "reservation=rest")


async def test_three_hundred_jobs_go_in_one_call_and_come_back(slurm: BareSlurm) -> None:
    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(lambda _: waiting(slurm), range(MANY)))
    calls: list[Sequence[str]] = []
    inner = runner(slurm)

    class Counted:
        async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
            calls.append(argv)
            return await inner.run(argv, timeout_s=timeout_s)

    changes = Changes(Counted())
    for to, then in ((TO_CLOUD, "gpu,cloud"), (BACK, "gpu")):
        applied = await changes.apply([Change(name=str(job), to=to) for job in jobs])
        assert not applied.refused
        assert set(partitions(slurm).values()) == {then}
    calls = [call for call in calls if call[2].count(",") + 1 == MANY]  # not those for whom slurmctld was busy
    assert len(calls) == 2


async def test_an_array_is_widened_whole_as_one_record_in_part_and_one_element_alone(slurm: BareSlurm) -> None:
    whole, part = waiting(slurm, "-a", "0-999"), waiting(slurm, "-a", "0-9%3")
    found, changes = await read(slurm), Changes(runner(slurm))
    applied = await changes.apply(
        [Change(name=found[whole].name(1000), to=TO_CLOUD), Change(name=found[part].name(2), to=TO_CLOUD)]
    )
    assert not applied.refused
    assert partitions(slurm) == {
        f"{whole}_0-999": "gpu,cloud",
        f"{part}_0": "gpu,cloud",
        f"{part}_1": "gpu,cloud",
        f"{part}_2-9%3": "gpu",
    }
    found = await read(slurm)
    assert sorted(one.job.tasks for one in found.values() if one.job.root == part) == [1, 1, 8]
    element = next(one for one in found.values() if one.elements == "1")
    assert element.name(1) == f"{part}_1"
    assert not (await changes.apply([Change(name=element.name(1), to=BACK)])).refused
    assert partitions(slurm)[f"{part}_1"] == "gpu"


async def test_a_job_that_has_started_or_is_vetoed_is_refused_alone_and_slurm_says_why(slurm: BareSlurm) -> None:
    (started, *_) = (int(job) for job in slurm.run("squeue", "-h", "-n", "full", "-o", "%A").stdout.split())
    vetoed, good = waiting(slurm, name="vetoed"), [waiting(slurm) for _ in range(3)]
    names = [str(job) for job in (good[0], started, good[1], vetoed, good[2], 999_999)]
    applied = await Changes(runner(slurm)).apply([Change(name=name, to=TO_CLOUD) for name in names])
    assert applied.refused.keys() == {str(started), str(vetoed), "999999"}
    assert "no longer pending" in applied.refused[str(started)]
    assert {partitions(slurm)[str(job)] for job in good} == {"gpu,cloud"}
    assert partitions(slurm)[str(vetoed)] == "gpu"
    assert slurm.job(str(started))["Partition"] == "gpu"


@dataclass
class Here(Bench):
    """The rules, journal and engine of the integration tests, with a real Slurm."""

    cluster: BareSlurm | None = None

    def restarted(self) -> Widening:
        assert self.cluster is not None
        commands = runner(self.cluster)
        sources = Sources(
            config=self.config,
            journal=self.journal,
            engine=self.engine,
            queue=Queue(commands),
            clock=lambda: self.now,
        )
        return Widening(sources, Changes(commands))


def here(slurm: BareSlurm, rule: Rule, *more: VirtualNodes) -> Here:
    nodes = (replace(VIRTUAL, count=1), *more)
    return Here(cluster=slurm, rule=rule, nodes=nodes, now=Now(wall=time.time(), mono=500.0))


def of(look: Look) -> dict[int, State]:
    return {one.queued.job.job_id: one.state for one in look.judged}


async def test_a_daemon_widens_by_its_rules_after_a_restart_too_and_takes_back(slurm: BareSlurm) -> None:
    old = waiting(slurm)
    slurm.run("scontrol", "update", f"jobid={old}", "admincomment=asked nothing")
    array = waiting(slurm, "-a", "0-4")
    never = waiting(slurm)
    slurm.run("scontrol", "update", f"jobid={never}", "admincomment=fed:burst=never")
    bench = here(slurm, Rule(after_s=0, most_jobs=3))
    assert of(await bench.widening.look(dry=True)) == {
        old: State.TO_WIDEN,
        array: State.TO_WIDEN,
        never: State.STAYS,
    }
    assert set(partitions(slurm).values()) == {"gpu"}
    await bench.widening.look()
    assert partitions(slurm) == {
        str(old): "gpu,cloud",
        f"{array}_0": "gpu,cloud",
        f"{array}_1": "gpu,cloud",
        f"{array}_2-4": "gpu",
        str(never): "gpu",
    }
    assert re.search(r"AdminComment=asked nothing \[fed: may run in cloud/gpu\]",
                     slurm.run("scontrol", "show", "job", str(old)).stdout)  # fmt: skip
    again = await bench.restarted().look()
    assert sorted(state.value for state in of(again).values()) == ["stays", "stays", "widened", "widened", "widened"]
    bench.link("cloud", up=False)
    bench.later(AWAY_S)
    await bench.restarted().look()
    assert set(partitions(slurm).values()) == {"gpu"}


async def test_a_job_that_names_its_pool_is_kept_from_the_nodes_of_others_until_it_is_taken_back(
    slurm: BareSlurm,
) -> None:
    job = waiting(slurm)
    slurm.run("scontrol", "update", f"jobid={job}", "admincomment=fed:burst=pool:b")
    bench = here(slurm, Rule(after_s=0), replace(VIRTUAL, prefix="cloud-b", pool="b/gpu", count=1))
    for _ in range(2):
        assert of(await bench.restarted().look()) == {job: State.WIDENED}
    assert slurm.job(str(job))["ExcNodeList"] == CLOUD
    bench.link("b", up=False)
    bench.later(AWAY_S)
    await bench.restarted().look()
    assert (slurm.job(str(job))["ExcNodeList"], partitions(slurm)) == ("(null)", {str(job): "gpu"})


async def test_a_cluster_whose_peers_are_all_away_is_left_as_without_bursting(slurm: BareSlurm) -> None:
    """Nothing of any job is touched: not its partitions, not its comment, not its place in the queue."""
    for _ in range(3):
        waiting(slurm)
    waiting(slurm, "-a", "0-3")
    always = waiting(slurm)
    slurm.run("scontrol", "update", f"jobid={always}", "admincomment=fed:burst=always")

    def shown() -> str:
        """All but what Slurm's own looks at the queue change."""
        moving = "LastSchedEval|AccrueTime|EligibleTime|StartTime|EndTime|SchedNodeList|Reason|Scheduler|RunTime"
        return re.sub(rf"({moving})=\S+", "", slurm.run("scontrol", "show", "job").stdout)

    bench = here(slurm, Rule(after_s=0))
    bench.link("cloud", up=False)
    before = shown()
    for _ in range(3):
        look = await bench.restarted().look()
        assert set(of(look).values()) == {State.STAYS}
        bench.later(3600)
    assert shown() == before


FED_YAML = """\
version: 1
site: hpc
state_dir: {folder}/state
tls: {{certificate: {folder}/site.pem, ca: [{folder}/ca.pem]}}
local: {{socket: {folder}.sock}}
audit: {{path: {folder}/audit.log}}
pools:
  gpu: {{local: {{folder: {folder}/spool, cpus: 64, price_per_hour: 0.5}}}}
overflow:
  cluster: bare
  conf: {conf}
  socket: {folder}/gateway.sock
  nodes: {{cloud-gpu: {{pool: hpc/gpu, gateway: localhost}}}}
  rules: {rules}
"""


@pytest.fixture
def daemon(slurm: BareSlurm) -> Iterator[FedSite]:
    """`fed daemon` of one site, whose pool is its own; it lets no job go yet."""
    with passable() as root:
        assert run(["pki", "init", "lab", "--folder", str(root / "pki")]) == 0
        assert run(["pki", "issue", "hpc", "--folder", str(root / "pki"), "--out", str(root / "hpc")]) == 0
        (root / "hpc" / "spool").mkdir()
        site = FedSite("hpc", root / "hpc")
        site.config.write_text(FED_YAML.format(folder=site.folder, conf=slurm.conf, rules="{}"))
        site.start()
        try:
            yield site
        finally:
            site.end()
            slurm.run("scontrol", "update", "partitionname=cloud", "state=up")  # which it has closed
        assert "Traceback" not in site.log(), site.log()


def test_fed_shows_it_and_new_rules_are_taken_up(slurm: BareSlurm, daemon: FedSite) -> None:
    """The daemon has closed the partition, as it does until its pool is there."""
    job, held = waiting(slurm, "-t", "60"), waiting(slurm, "-H")
    wait(lambda: "down" in slurm.run("sinfo", "-h", "-p", "cloud", "-o", "%a").stdout, "a closed partition")
    first = json.loads(daemon.fed("overflow", "--json").stdout)
    assert (first["rules"], first["jobs"], first["problem"]) == ([], [], "")
    rules = "{gpu: {after_s: 0, spend_per_day: 9}}"
    daemon.config.write_text(FED_YAML.format(folder=daemon.folder, conf=slurm.conf, rules=rules))
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    wait(lambda: b"2 stay" in daemon.fed("overflow").stdout, "the daemon's word on both")
    assert b"stays: hpc/gpu: partition cloud is down" in daemon.fed("explain", str(job)).stdout
    assert b"stays: more room would not start it: JobHeldUser" in daemon.fed("explain", str(held)).stdout
    assert b"no job 999999 of yours" in daemon.fed("explain", "999999", wants=4).stderr
    dry = json.loads(daemon.fed("overflow", "--dry-run", "--json").stdout)
    (rule,) = dry["rules"]
    assert (rule["partition"], rule["waiting"], rule["widened"], rule["spend_per_day"]) == ("gpu", 2, 0, 9.0)
    assert [(one["job"], one["state"]) for one in dry["jobs"]] == [(str(job), "stays"), (str(held), "stays")]
