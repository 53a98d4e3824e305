"""A site with one of everything the adapter must read, and what the adapter must say of it.

`play` makes the scene on two fresh nodes n1 and n2 of 16 CPUs whose slurmctld has given no job id yet; `checks` holds
what must be true of it, on live daemons and on recordings alike.
"""

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_plugin.model import RunKey
from slurm_plugin.ports import GresItem, SlurmNode
from slurm_plugin.slurm.commands import SlurmCommands

PUBLISHED = "vgpu:1g.10gb:4,vgpu:m20:2,vgpu:pad:994,vgpu_mem:16"
SLICES = "1g.10gb"
FORGED = "x\n99 0 RUNNING\nJobId=99 UserId=root(0)"
ODD_ACCOUNT = "phys|ics\n99~x"
ATTEMPT = 'two\nlines fed:{"open":1,"attempt":2}'
READY_WAIT_S = 20.0

# Job ids as slurmctld hands them out in `play`; later ones depend on when an array's elements start.
RUNNING, ARRAY, FORGER, PLAIN, HELD = 1, 2, 3, 4, 5

Run = Callable[..., subprocess.CompletedProcess[str]]


def play(run: Run, folder: Path) -> None:
    """Submit the scene's jobs and drain n2 with a reason that looks like fields."""
    sleeper = folder / "sleeper.sh"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    stepper = folder / "stepper.sh"
    stepper.write_text(
        "#!/bin/sh\n"
        f"srun --mem=10 --overlap -n1 --gres=vgpu:{SLICES}:1 sleep 600 &\n"
        "srun --mem=10 --overlap -n1 --gres=none sleep 600 &\n"
        "wait\n"
    )
    _must(run("scontrol", "update", "nodename=n1,n2", f"gres={PUBLISHED}"))
    both = ("-p", "gpu,vgpu-wait")
    jobs: list[tuple[str, ...]] = [
        (*both, "-w", "n1", f"--gres=vgpu:{SLICES}:2,vgpu_mem:2", "-J", FORGED, str(sleeper)),
        (*both, "--gres=vgpu:2g.20gb:1", "-a", "0-200%3", "-A", ODD_ACCOUNT, "-t", "1-2:3", str(sleeper)),
        (*both, "--gres=vgpu:a\n1 0:1", str(sleeper)),
        (*both, "-w", "n1", "--comment", "q\nz", str(sleeper)),
        (*both, "-H", "--no-requeue", "-x", "n1", "--gres=vgpu:4", str(sleeper)),
        (*both, "-w", "n1", "--gres=vgpu:m20:1", "-a", "7-8", str(sleeper)),
        (*both, "--gres=vgpu:1g.10gb:1", "-b", "now+1hour", "-N2", "-w", "n[1-2]", "--ntasks-per-node=1", str(sleeper)),
        (*both, "--gres=vgpu:1g.10gb:1", "-d", "afterok:1", str(sleeper)),
        (*both, "-w", "n1", f"--gres=vgpu:{SLICES}:2", "-n2", str(stepper)),
    ]
    for job in jobs:
        _must(run("sbatch", "--parsable", "-o", "/dev/null", *job))
    _must(run("scontrol", "update", f"jobid={PLAIN}", f"admincomment={ATTEMPT}"))
    reason = "bad fan Gres=vgpu:9\nNodeName=n1 State=DOWN"
    _must(run("scontrol", "update", "nodename=n2", "state=drain", f"reason={reason}"))


def _must(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stderr


async def until_ready(slurm: SlurmCommands) -> None:
    """Until the jobs that can run do so, with their steps. Raises TimeoutError after READY_WAIT_S."""
    async with asyncio.timeout(READY_WAIT_S):
        while True:
            jobs = {job.job_id: job for job in await slurm.vgpu_jobs()}
            steps = next((job.job_id for job in jobs.values() if job.cpus == 2 and job.on_nodes), 0)
            running = [job for job in jobs.values() if job.state == "RUNNING"]
            if len(running) == 4 and len(await slurm.step_gres(steps)) == 3:
                return
            await asyncio.sleep(0.2)


def vgpu(gres_class: str, count: int = 1) -> GresItem:
    return GresItem(name="vgpu", type=gres_class, count=count)


async def check_run(slurm: SlurmCommands) -> None:
    run = await slurm.run_of(RUNNING)
    assert run is not None
    assert run.key == RunKey(job_id=RUNNING, started_at=run.key.started_at, uid=0)
    assert run.key.started_at > 1_600_000_000
    assert (run.state, run.batch, run.requeue) == ("RUNNING", True, True)
    assert run.gres == (vgpu(SLICES, 2), GresItem(name="vgpu_mem", count=2))


async def check_waiting_run(slurm: SlurmCommands) -> None:
    run = await slurm.run_of(HELD)
    assert run is not None
    assert (run.state, run.key.started_at, run.batch, run.requeue) == ("PENDING", 0, True, False)


async def check_time_limit(slurm: SlurmCommands) -> None:
    limited, free = await slurm.run_of(ARRAY), await slurm.run_of(RUNNING)
    assert limited is not None
    assert free is not None
    assert (limited.limit_s, limited.ends_at) == (((24 + 2) * 60 + 3) * 60, 0)
    assert (free.limit_s, free.ends_at) == (0, 0)


async def check_attempt_elsewhere(slurm: SlurmCommands) -> None:
    noted, plain = await slurm.run_of(PLAIN), await slurm.run_of(RUNNING)
    assert noted is not None
    assert plain is not None
    assert (noted.elsewhere, plain.elsewhere) == (True, False)
    assert noted.gres == ()


async def check_unknown_job(slurm: SlurmCommands) -> None:
    assert await slurm.run_of(99) is None
    assert await slurm.step_gres(99) == {}


async def check_nobody_forges_a_job(slurm: SlurmCommands) -> None:
    jobs = {job.job_id: job for job in await slurm.vgpu_jobs()}
    assert 99 not in jobs
    assert jobs[FORGER].gres == (vgpu("a\n1 0"),)
    assert PLAIN not in jobs  # it asks for no vgpu
    assert {job.uid for job in jobs.values()} == {0}


async def check_array(slurm: SlurmCommands) -> None:
    jobs = {job.job_id: job for job in await slurm.vgpu_jobs()}
    array = jobs[ARRAY]
    assert (array.tasks, array.state, array.started_at, array.on_nodes) == (3, "PENDING", 0, ())
    assert array.partitions == ("gpu", "vgpu-wait")
    assert array.eligible
    assert (array.array_limit, array.limit_s) == (3, 93_780)
    assert array.account == ODD_ACCOUNT
    assert 0 <= array.submitted_at - jobs[RUNNING].submitted_at < READY_WAIT_S
    elements = [job for job in jobs.values() if job.gres == (vgpu("m20"),)]
    assert [job.tasks for job in elements] == [1, 1]
    assert {job.on_nodes for job in elements} == {("n1",)}
    assert sorted((job.account, job.limit_s, job.ends_at) for job in elements) == [("", 0, 0)] * 2


async def check_who_may_start(slurm: SlurmCommands) -> None:
    by_reason = {job.reason: job for job in await slurm.vgpu_jobs() if job.state == "PENDING" and not job.eligible}
    assert set(by_reason) == {"JobHeldUser", "BeginTime", "Dependency"}
    later = by_reason["BeginTime"]
    assert (later.nodes, later.wanted_nodes) == (2, ("n1", "n2"))
    assert by_reason["JobHeldUser"].priority == 0
    assert by_reason["JobHeldUser"].excluded_nodes == ("n1",)


async def check_steps(slurm: SlurmCommands) -> None:
    job_id = next(job.job_id for job in await slurm.vgpu_jobs() if job.cpus == 2 and job.on_nodes)
    steps = await slurm.step_gres(job_id)
    assert set(steps) == {f"{job_id}.batch", f"{job_id}.0", f"{job_id}.1"}
    assert sorted(steps.values(), key=len) == [(), (), (vgpu(SLICES),)]
    assert steps[f"{job_id}.batch"] == ()


async def check_runs_on(slurm: SlurmCommands) -> None:
    runs = await slurm.runs_on("n1")
    assert {run.state for run in runs} == {"RUNNING"}
    assert len(runs) == 5
    assert any(run.gres == () for run in runs)
    assert await slurm.runs_on("n2") == ()


async def check_nodes(slurm: SlurmCommands) -> None:
    nodes: Mapping[str, SlurmNode] = {node.name: node for node in await slurm.nodes()}
    assert set(nodes) == {"n1", "n2"}
    n1, n2 = nodes["n1"], nodes["n2"]
    assert n1.state.startswith("MIXED")
    assert "DRAIN" in n2.state
    assert n2.reason.startswith("bad fan")
    assert n1.gres == n2.gres
    assert n1.gres == (vgpu("1g.10gb", 4), vgpu("m20", 2), vgpu("pad", 994), GresItem(name="vgpu_mem", count=16))
    assert {item.type: item.count for item in n1.gres_used if item.name == "vgpu"} == {"1g.10gb": 4, "m20": 2, "pad": 0}
    assert (n1.cpus, n1.cpus_used, n1.memory_mib) == (16, 6, 16000)
    assert n1.partitions[0] == "gpu"
    assert "vgpu-wait" in n1.partitions
    assert n1.slurmd_started_at > 1_600_000_000


async def check_configuration(slurm: SlurmCommands) -> None:
    partitions = await slurm.partitions()
    assert partitions["vgpu-wait"]["State"] == "DOWN"
    assert partitions["vgpu-wait"]["Hidden"] == "YES"
    config = await slurm.config()
    assert config["GresTypes"] == "vgpu,vgpu_mem"
    assert config["DefMemPerCPU"] == "100"
    assert "Prolog" not in config


CHECKS = (
    check_run,
    check_waiting_run,
    check_time_limit,
    check_attempt_elsewhere,
    check_unknown_job,
    check_nobody_forges_a_job,
    check_array,
    check_who_may_start,
    check_steps,
    check_runs_on,
    check_nodes,
    check_configuration,
)

# What any reader of the queue must say.
QUEUE_CHECKS = (check_nobody_forges_a_job, check_array, check_who_may_start)
