"""Every fault of the table is planted, alone, in a world where all is well, and then it alone is found."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin.catalogue import Catalogue, Class, Kind, Shape
from slurm_plugin.cli.convert import pool_view
from slurm_plugin.cli.doctor import catalogue_findings, job_findings, pool_findings, without_doubles
from slurm_plugin.findings import FAULTS, Finding
from slurm_plugin.pool import GresNames
from slurm_plugin.ports import GresItem, QueuedJob
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.slurm.checks import check
from slurm_plugin.slurm.facts import File, Live
from slurm_plugin.slurm.site import SlurmSide
from tests.unit.cli import test_examine
from tests.unit.cli.pools import instance, status
from tests.unit.slurm import sites

NOW = 2000.0


def a_class(memory: int, weight: int, *profiles: str) -> Class:
    return Class(name=f"m{memory}", kind=Kind.MEMORY, param=memory, weight=weight, profiles=profiles)


def job(job_id: int, state: str, **facts: Any) -> QueuedJob:
    running = state == "RUNNING"
    usual = QueuedJob(
        job_id=job_id,
        uid=4242,
        priority=99,
        state=state,
        reason="None",
        gres=(GresItem(name="vgpu", type="m40"), GresItem(name="vgpu_mem", count=4)),
        nodes=1,
        tasks=1,
        partitions=("gpu",),
        wanted_nodes=(),
        on_nodes=("n1",) if running else (),
        cpus=1,
        started_at=1000 if running else 0,
        eligible=not running,
    )
    return replace(usual, **facts)


@dataclass
class World:
    """A pool, its catalogue, its Slurm and its jobs, with nothing wrong."""

    pool: pb.PoolStatus = field(default_factory=status)
    catalogue: Catalogue = field(
        default_factory=lambda: Catalogue(
            pool="hpc",
            partitions=(("gpu", "vgpu-wait"),),
            classes=(a_class(10, 1, "1g.10gb"), a_class(20, 2, "2g.20gb"), a_class(40, 4, "3g.40gb")),
            shapes=(Shape(id=1, cpus=1, memory_mib=1, most={}),),
            nodes={"n1": 1},
        )
    )
    side: SlurmSide = sites.SIDE
    live: Live = sites.GOOD
    jobs: list[QueuedJob] = field(default_factory=lambda: [job(12, "RUNNING"), job(20, "PENDING", reason="Resources")])
    outside: frozenset[int] = frozenset()  # indices of GPUs that are not the pool's

    @property
    def node(self) -> pb.NodeStatus:
        return self.pool.nodes[0]

    @property
    def gpu(self) -> pb.Gpu:
        return self.node.inventory.gpus[0]

    def judge(self) -> tuple[Finding, ...]:
        view, names = pool_view(self.pool), GresNames()
        return without_doubles(
            (
                *pool_findings(view, names, NOW, lambda _node, index: index not in self.outside),
                *catalogue_findings(self.catalogue, view),
                *job_findings(view, tuple(self.jobs), names, "vgpu-wait", NOW),
                *check(self.side, self.live),
            )
        )


def set_node(**facts: Any) -> Callable[[World], None]:
    return lambda world: world.node.MergeFrom(pb.NodeStatus(**facts))


def set_gpu(**facts: Any) -> Callable[[World], None]:
    return lambda world: world.gpu.MergeFrom(pb.Gpu(**facts))


def set_live(**facts: Any) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.live = replace(world.live, **facts)

    return plant


def config(**values: str) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.live = replace(world.live, config={**world.live.config, **values})

    return plant


def partition(name: str, **values: str) -> Callable[[World], None]:
    def plant(world: World) -> None:
        partitions = world.live.partitions
        world.live = replace(world.live, partitions={**partitions, name: {**partitions[name], **values}})

    return plant


def without_partition(name: str) -> Callable[[World], None]:
    def plant(world: World) -> None:
        left = {other: fields for other, fields in world.live.partitions.items() if other != name}
        world.live = replace(world.live, partitions=left)

    return plant


def differing_partitions(world: World) -> None:
    gpu = world.live.partitions["gpu"]
    world.side = replace(world.side, partitions=("gpu", "gpu-long"))
    more = {"gpu": {**gpu, "AllowAccounts": "chem"}, "gpu-long": {**gpu, "MaxTime": "7-00:00:00"}}
    wait = {name: value for name, value in world.live.partitions["vgpu-wait"].items() if name != "MaxTime"}
    world.live = replace(world.live, partitions={**world.live.partitions, **more, "vgpu-wait": wait})


def grant(job_id: int, *slices: str, count: int = 1) -> Callable[[World], None]:
    """A grant, and Slurm knows its job."""

    def plant(world: World) -> None:
        facts = pb.Grant(job_id=job_id, started_at=1000, uid=1, gres_class="m40", count=count, slices=slices)
        facts.isolation = "mig+modes+cgroup"
        world.node.inventory.grants.append(facts)
        world.jobs.append(job(job_id, "RUNNING"))

    return plant


def waits(since: float) -> Callable[[World], None]:
    one = pb.Waiting(job_id=9, gres_class="m20", count=1, since=since)
    return lambda world: world.node.inventory.waiting.append(one)


def spare_gpu(mig: str) -> Callable[[World], None]:
    return lambda world: world.node.inventory.gpus.append(pb.Gpu(uuid="GPU-2", index=1, mig=mig))


def forget_job(world: World) -> None:
    world.jobs = [one for one in world.jobs if one.job_id != 12]


def old_class(world: World) -> None:
    world.pool.pending[0].gres_class = "m96"


def nodes_as(gres: str) -> Callable[[World], None]:
    return set_live(nodes=(*sites.NODES[:2], sites.node("n3", gres)))


def whole_number_of_k(world: World) -> None:
    gres = replace(world.side.gres, total=1024)
    world.side = replace(world.side, gres=gres, nodes=())


def lua(**facts: Any) -> File:
    return replace(File(path="/etc/slurm/vgpu.lua", text="return {}", written_at=900, changed_at=900), **facts)


def stale_lua(world: World) -> None:
    submit = lua(path="/etc/slurm/job_submit.lua", written_at=500, changed_at=1900)
    world.live = replace(world.live, job_submit=submit, config={**world.live.config, "BOOT_TIME": "1500"})


def gres_conf(line: str) -> Callable[[World], None]:
    return set_live(gres_conf=line)


def client(text: str) -> Callable[[World], None]:
    return set_live(client_conf=File(path="/etc/slurm/slurm.conf", text=text))


def without_job_ids(world: World) -> None:
    client("GresTypes=vgpu,vgpu_mem\n")(world)
    config(SLURM_CONF="/etc/slurm/slurm.conf")(world)
    world.side = replace(world.side, job_ids="/var/lib/vgpu/job_ids.conf")


PLANTED: dict[str, Callable[[World], None]] = {
    # who answers
    "agent-away": lambda w: setattr(w.node, "agent_connected", False),
    "two-agents": set_node(problems=["two agents speak for it and put each other out: 10.0.0.1 and 10.0.0.2"]),
    "version-mismatch": lambda w: setattr(w.node.inventory, "agent_version", "0.0.9"),
    "clock-skew": set_node(clock_ahead_s=-31.0),
    "paused": lambda w: w.pool.pause.CopyFrom(pb.Pause(since=1000, uid=0, reason="driver update")),
    "clock-refused": lambda w: w.pool.problems.append("munge refuses 10.0.0.7: its clock is not the controller's"),
    "controller": lambda w: w.pool.problems.append("can't write /var/lib/vgpu: No space left on device"),
    "rival": lambda w: w.pool.problems.append("somebody else changes what is published on n1 again and again"),
    "node": set_node(problems=["GPU 0: the step failed 3 times"]),
    # counts
    "unpublished": set_node(slurm_gres="vgpu:1000,vgpu_mem:8"),
    "over-published": set_node(slurm_gres="vgpu:m40:1,vgpu:m10:2,vgpu:pad:997"),
    "under-published": set_node(slurm_gres="vgpu:m40:1,vgpu:pad:999"),
    "below-used": set_node(slurm_gres_used="vgpu:m40:2"),
    "drained": set_node(slurm_state="IDLE+DRAIN", problems=["Slurm has it IDLE+DRAIN: fans"]),
    "drained-by-count": set_node(
        slurm_state="IDLE+DRAIN",
        problems=["Slurm has it IDLE+DRAIN: gres/vgpu count changed and jobs are using them [slurm@2026]"],
    ),
    "drained-by-prolog": set_node(
        slurm_state="IDLE+DRAIN", problems=["Slurm has it IDLE+DRAIN: Prolog error [root@1796039856]"]
    ),
    "drained-by-id": set_node(
        slurm_state="IDLE+DRAIN", problems=["Slurm has it IDLE+DRAIN: Duplicate jobid [root@1796039856]"]
    ),
    "down": set_node(slurm_state="DOWN*", problems=["Slurm has it DOWN*: Not responding"]),
    "gpu-also": set_node(slurm_gres="gpu:h100:1,vgpu:m40:1,vgpu:m10:1,vgpu:pad:998,vgpu_mem:8"),
    "not-in-catalogue": lambda w: setattr(w, "catalogue", replace(w.catalogue, nodes={"n2": 1})),
    "wrong-offer": lambda w: setattr(w.gpu.instances[1], "profile", "1g.5gb"),
    # jobs
    "lost-slice": grant(14, "MIG-gone"),
    "short-grant": grant(14),
    "double-grant": grant(14, "MIG-a"),
    "stale-grant": forget_job,
    "no-grant": lambda w: w.jobs.append(job(15, "RUNNING")),
    "waiting-prolog": waits(NOW - 20),
    "stuck-prolog": waits(NOW - 100),
    "open-devices": lambda w: setattr(w.node.inventory.grants[0], "isolation", "mig+cgroup"),
    "unconfined-job": lambda w: setattr(w.node.inventory.grants[0], "isolation", "mig+modes"),
    "held-job": lambda w: w.jobs.append(job(16, "PENDING", reason="BadConstraints", priority=0)),
    "refused-job": lambda w: w.jobs.append(job(16, "PENDING", reason="launch failed requeued held", priority=0)),
    "unknown-class": old_class,
    # GPUs
    "gpu-fault": set_gpu(fault="quarantined: in use by pid 812 (nv-hostengine)"),
    "mig-off": spare_gpu("disabled"),
    "empty-gpu": spare_gpu("enabled"),
    "foreign-instance": set_gpu(instances=[instance("1g.10gb", 6, 1, 13, uuid="MIG-x", foreign=True)]),
    "slice-held": set_gpu(instances=[instance("1g.10gb", 6, 1, 13, uuid="MIG-x", foreign=True, held_by="pid 8 (x)")]),
    "slice-outlived": set_gpu(
        instances=[
            instance(
                "1g.10gb",
                6,
                1,
                13,
                uuid="MIG-x",
                foreign=True,
                held_by="processes of job 7 (bob) that outlive it, in /sys/fs/cgroup/vgpu/7-100-1002",
            )
        ]
    ),
    "slice-claimed": set_gpu(
        instances=[
            instance("1g.10gb", 6, 1, 13, uuid="MIG-x", foreign=True, held_by="job 7, whose grant can't be read")
        ]
    ),
    "slice-unseen": set_gpu(
        instances=[
            instance("1g.10gb", 6, 1, 13, uuid="MIG-x", foreign=True, held_by="nobody knows whom: no look at it")
        ]
    ),
    "half-made": set_gpu(instances=[instance("1g.10gb", 6, 1, 13, ci=-1)]),
    # files
    "hook-conf": set_live(hook_confs=(File(path="/etc/vgpu/hook.conf", text="socket /x\n", mode=0o664),)),
    "lua-mode": set_live(module=lua(uid=1000), own_module="return {}"),
    "lua-not-run": set_live(answer="sbatch: Job 5 to start at 2026-01-01T00:00:00"),
    "lua-broken": set_live(answer="sbatch: error: vgpu: slices can't be given out now: vgpu.lua can't be loaded"),
    "catalogue-unread": set_live(
        answer="sbatch: error: vgpu: slices can't be given out now: the pool's catalogue is missing or broken"
    ),
    "lua-differs": set_live(module=lua(text="-- edited"), own_module="return {}"),
    "lua-unread": stale_lua,
    "no-job-ids": without_job_ids,
    "no-cli-filter": client("GresTypes=vgpu,vgpu_mem\nCliFilterPlugins=lua\n"),
    "client-gres-types": client("GresTypes=gpu\n"),
    "resets-gpu": set_live(hooks={**sites.GOOD.hooks, "Epilog": "vgpu-epilog\nnvidia-smi --gpu-reset -i 0\n"}),
    # Slurm's settings
    "slurm-version": config(SLURM_VERSION="21.08.8"),
    "gres-types": config(GresTypes="gpu"),
    "prolog-flags": config(PrologFlags="Contain"),
    "prolog-serial": config(PrologFlags="Alloc,Serial"),
    "prolog-nohold": config(PrologFlags="Alloc,NoHold"),
    "job-submit-plugins": config(JobSubmitPlugins="all_partitions"),
    "accounting-storage-tres": config(AccountingStorageTRES="cpu,mem"),
    "prolog-epilog-timeout": config(PrologEpilogTimeout="30"),
    "batch-start-timeout": config(BatchStartTimeout="10 sec"),
    "slurmd-timeout": config(SlurmdTimeout="0 sec"),
    "enforce-part-limits": config(EnforcePartLimits="NO"),
    "no-prolog": set_live(config={**sites.CONFIG, "Prolog": ""}, hooks={}),
    "no-epilog": config(Epilog=""),
    "no-task-prolog": config(TaskProlog=""),
    "select-linear": config(SelectType="select/linear"),
    "def-mem": config(DefMemPerCPU=""),
    # partitions and nodes
    "no-partition": without_partition("gpu"),
    "misspelt-partition": set_live(
        partitions={"gpus": sites.PARTITIONS["gpu"], "vgpu-wait": sites.PARTITIONS["vgpu-wait"]}
    ),
    "exclusive": partition("gpu", OverSubscribe="EXCLUSIVE"),
    "partition-nodes": partition("gpu", Nodes="m[1-3]"),
    "no-wait-partition": without_partition("vgpu-wait"),
    "wait-partition-up": partition("vgpu-wait", State="UP"),
    "wait-partition-shown": partition("vgpu-wait", Hidden="NO"),
    "partition-tier": partition("gpu", PriorityTier="0"),
    "wait-partition-tier": partition("vgpu-wait", PriorityTier="1"),
    "wait-partition-nodes": partition("vgpu-wait", Nodes="n1"),
    "wait-partition-limits": partition("vgpu-wait", MaxTime="UNLIMITED"),
    "partitions-differ": differing_partitions,
    "no-node": set_live(nodes=sites.NODES[:2]),
    "total-k": whole_number_of_k,
    "drained-elsewhere": set_live(
        nodes=(*sites.NODES, replace(sites.NODES[0], name="c1", state="IDLE+DRAIN", reason="Prolog error [root@1]"))
    ),
    "gres-total": nodes_as("gpu:h100:8,vgpu:1000,vgpu_mem:32"),
    "conf-total": gres_conf("NodeName=n2 Name=vgpu Count=1K"),
    "gres-file": gres_conf("Name=vgpu File=/dev/nvidia[0-3]"),
    "gres-type": gres_conf("Name=vgpu Type=1g.10gb Count=7"),
    "autodetect": gres_conf("AutoDetect=nvml"),
}
# What the line to paste must be: a person has read each of them.
PASTES: dict[str, str] = yaml.safe_load((Path(__file__).parents[2] / "cases/pastes.yaml").read_text())
# A fault that can't be there without another one.
BRINGS = {
    "total-k": {"partition-nodes"},
    "no-partition": {"wait-partition-limits"},
    "misspelt-partition": {"wait-partition-limits"},
}


def test_where_nothing_is_planted_nothing_is_found() -> None:
    assert World().judge() == ()


@pytest.mark.parametrize("code", sorted(PLANTED))
def test_a_planted_fault_is_found_alone_with_a_line_to_paste(code: str) -> None:
    world = World()
    PLANTED[code](world)
    findings = {finding.code: finding for finding in world.judge()}
    assert findings.keys() - BRINGS.get(code, set()) == {code}
    assert findings[code].what
    assert findings[code].why
    assert findings[code].paste == PASTES[code]


def test_a_job_whose_grant_can_not_be_read_is_not_told_to_be_requeued() -> None:
    world = World()
    PLANTED["no-grant"](world)
    world.node.inventory.garbled.append(15)
    assert world.judge() == ()


def test_a_prolog_that_waits_as_long_as_its_agent_lets_it_is_not_stuck() -> None:
    world = World()
    world.node.inventory.wait_s = 60
    world.jobs.append(job(15, "RUNNING"))
    waits(NOW - 70)(world)
    world.node.inventory.waiting[0].job_id = 15  # nor is it without its grant
    (finding,) = world.judge()
    assert finding.code == "waiting-prolog"
    assert finding.why.endswith("requeues the job after 60 s")
    world.node.inventory.waiting[0].since = NOW - 76
    assert [one.code for one in world.judge()] == ["stuck-prolog"]


def test_a_job_that_began_without_its_agent_is_not_sought_in_a_log_that_has_nothing_of_it() -> None:
    world = World()
    PLANTED["unconfined-job"](world)
    (finding,) = world.judge()
    assert "began while the node's agent was away" in finding.why
    assert finding.paste.partition("   # ")[0] == "scontrol requeue 12 || scancel 12"


def test_every_fault_of_the_table_is_planted() -> None:
    assert PLANTED.keys() | test_examine.PLANTED == FAULTS.keys()


def test_what_the_controller_reports_of_a_node_is_left_out_when_a_check_says_it_better() -> None:
    world = World()
    world.node.agent_connected = False
    world.node.problems[:] = ["its agent is away: it takes no new vgpu job", "GPU 0: the step failed 3 times"]
    assert [finding.code for finding in world.judge()] == ["node", "agent-away"]


def test_a_controller_that_observes_is_not_blamed_for_counts() -> None:
    world = World()
    world.node.slurm_gres = "vgpu:1000,vgpu_mem:8"
    world.pool.mode = "observe"
    assert world.judge() == ()
