"""One of every kind of job that overflow reads, and what the adapter must say of it.

`play` makes the scene on a fresh Slurm of nodes n1 and n2 that has given no job id yet.
"""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from federation.overflow.burst import Burst, SlurmJob
from federation.overflow.slurm_site import OwnSlurm

READY_WAIT_S = 30.0
FORGED = "x\n99 0 RUNNING\nJobId=99 UserId=root(0)"
NOTE = '{"open":1,"job":"0189","pool":"aws/gpu","start":1700000000,"cost":0.25}'
WORDS = "asked vgpu:20gb fed:burst=pool:aws [vgpu: waits: for room]"
RUNNING, WAITING, ARRAY, ENDED, UNKNOWN = 1, 2, 3, 5, 99  # an array of two has the ids 3 and 4

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def play(run: Run, folder: Path) -> None:
    sleeper = folder / "sleeper.sh"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    fails = folder / "fails.sh"
    fails.write_text("#!/bin/sh\nexit 3\n")
    jobs: list[tuple[str, ...]] = [
        ("-p", "plain", "-w", "n1", "-t", "1-0", "-J", FORGED, str(sleeper)),
        ("-H", "-p", "gpu,vgpu-wait,plain", "--no-requeue", "--comment", "fed:{}\n99", str(sleeper)),
        ("-p", "plain", "-a", "7-8", "-t", "UNLIMITED", str(sleeper)),
    ]
    for job in jobs:
        _must(run("sbatch", "--parsable", "-o", "/dev/null", *job))
    _must(run("scontrol", "update", f"jobid={RUNNING}", f"admincomment={WORDS}"))


def fail(run: Run, folder: Path) -> None:
    """Once the array has its ids."""
    _must(run("sbatch", "--parsable", "-o", "/dev/null", "-p", "plain", str(folder / "fails.sh")))


def _must(result: "subprocess.CompletedProcess[str]") -> None:
    assert result.returncode == 0, result.stderr


def burst_of(job: SlurmJob) -> Burst:
    """As if it ran elsewhere."""
    return Burst(
        token=UUID(int=1),
        job_id=job.job_id,
        array_id=job.array_id,
        task_id=job.task_id,
        uid=job.uid,
        user="ann",
        submitted_at=job.submitted_at,
        restarts=job.restarts,
        started_at=job.started_at,
        node="cloud-1",
        pool="aws/gpu",
        limit_s=0,
    )


async def until_ready(slurm: OwnSlurm, run: Run, folder: Path) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(READY_WAIT_S):
        while [job.state for job in (await slurm.jobs((1, 3, 4))).values()] != ["RUNNING"] * 3:  # noqa: ASYNC110 - slurmctld has no event
            await asyncio.sleep(0.2)
        fail(run, folder)
        while (job := await slurm.job(ENDED)) is None or not job.over:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    job = await slurm.job(RUNNING)
    assert job is not None
    await slurm.note(burst_of(job), NOTE)


async def check_a_job_that_runs(slurm: OwnSlurm) -> None:
    job = await slurm.job(RUNNING)
    assert job is not None
    assert (job.name, job.array_id, job.task_id, job.uid) == ("1", 0, -1, 0)
    assert (job.state, job.waits, job.over, job.lives) == ("RUNNING", False, False, True)
    assert (job.partitions, job.nodes, job.restarts, job.limit_s) == (("plain",), ("n1",), 0, 86_400)
    assert (job.batch, job.requeue) == (True, True)
    assert job.started_at >= job.submitted_at > 1_600_000_000


async def check_its_note_beside_other_words(slurm: OwnSlurm) -> None:
    job = await slurm.job(RUNNING)
    assert job is not None
    assert job.note == NOTE


async def check_a_job_that_waits(slurm: OwnSlurm) -> None:
    job = await slurm.job(WAITING)
    assert job is not None
    assert (job.state, job.waits, job.reason) == ("PENDING", True, "JobHeldUser")
    assert (job.partitions, job.nodes, job.started_at) == (("gpu", "vgpu-wait", "plain"), (), 0)
    assert (job.limit_s, job.requeue, job.note) == (0, False, "")


async def check_an_arrays_elements_have_names_of_their_own(slurm: OwnSlurm) -> None:
    found = await slurm.jobs((3, 4))
    assert sorted(job.name for job in found.values()) == ["3_7", "3_8"]
    assert {job.limit_s for job in found.values()} == {0}


async def check_one_that_ended_is_still_known(slurm: OwnSlurm) -> None:
    job = await slurm.job(ENDED)
    assert job is not None
    assert (job.state, job.over, job.lives, job.waits) == ("FAILED", True, False, False)


async def check_one_that_slurm_does_not_know(slurm: OwnSlurm) -> None:
    assert await slurm.job(UNKNOWN) is None
    assert set(await slurm.jobs((UNKNOWN, RUNNING, ENDED))) == {RUNNING, ENDED}


async def check_nobody_forges_a_job(slurm: OwnSlurm) -> None:
    found = {job.job_id: job for job in await slurm.jobs_on("plain")}
    assert set(found) == {RUNNING, WAITING, 3, 4}
    assert {job.uid for job in found.values()} == {0}


async def check_no_command_line_is_known_without_accounting(slurm: OwnSlurm) -> None:
    assert await slurm.signal_request(RUNNING) == ""


CHECKS = (
    check_a_job_that_runs,
    check_its_note_beside_other_words,
    check_a_job_that_waits,
    check_an_arrays_elements_have_names_of_their_own,
    check_one_that_ended_is_still_known,
    check_one_that_slurm_does_not_know,
    check_nobody_forges_a_job,
    check_no_command_line_is_known_without_accounting,
)
