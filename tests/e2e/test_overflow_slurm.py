"""What overflow asks and tells a real Slurm, and what that Slurm then says: the facts that all of it rests on.

VGPU_RECORD=1 writes what the daemons of this release print into tests/contract/federation/overflow/recorded.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from federation.errors import Refused, Unavailable
from federation.overflow.burst import Ends, Heard, SlurmJob, shrunk, verdict
from federation.overflow.slurm_site import OwnSlurm
from slurm_plugin.slurm.process import Runner, Site
from tests.contract.federation.overflow import scene
from tests.contract.federation.overflow.test_recorded import FOLDER
from tests.contract.slurm.records import Recorder
from tests.e2e.bare_slurm import BareSlurm, bare_slurm, free_ports, wait

pytestmark = pytest.mark.slurm

ACCEPT_ALL = {
    "job_submit.lua": (
        "function slurm_job_submit() return slurm.SUCCESS end\nfunction slurm_job_modify() return slurm.SUCCESS end\n"
    )
}
CHANGE_WAIT_S = 20.0
TIMEOUT_WAIT_S = 60.0  # slurmctld looks at time limits every 30 s
LINGERS = "#!/bin/sh\ntrap 'sleep 3; exit 0' TERM\ntouch {ready}\nwhile :; do sleep 0.1; done\n"
ASKED = ("gpu", "vgpu-wait", "plain")
TERM = 15


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareSlurm]:
    with bare_slurm(ACCEPT_ALL) as slurm:
        folder = tmp_path_factory.mktemp("scene")
        scene.play(slurm.run, folder)
        asyncio.run(scene.until_ready(own(slurm), slurm.run, folder))
        yield slurm


def own(slurm: BareSlurm) -> OwnSlurm:
    return OwnSlurm(Site(conf=slurm.conf))


class Job:
    """One of a test's own, whose script lives on for 3 s after a TERM, so that Slurm's word is there to be read."""

    def __init__(self, site: BareSlurm, folder: Path, *options: str) -> None:
        self.slurm = own(site)
        ready = folder / "ready"
        script = folder / "job.sh"
        script.write_text(LINGERS.format(ready=ready))
        done = site.run("sbatch", "--parsable", "-o", "/dev/null", "-p", ",".join(ASKED), *options, str(script))
        assert done.returncode == 0, done.stderr
        self.job_id = int(done.stdout)
        wait(ready.exists, "a running script")

    async def now(self) -> SlurmJob:
        job = await self.slurm.job(self.job_id)
        assert job is not None
        return job

    async def until(self, ready: Callable[[SlurmJob], bool], within_s: float = CHANGE_WAIT_S) -> SlurmJob:
        async with asyncio.timeout(within_s):
            while not ready(job := await self.now()):  # noqa: ASYNC110 - slurmctld has no event for it
                await asyncio.sleep(0.05)
        return job

    def meant(self, job: SlurmJob) -> Ends:
        """What a TERM of slurmstepd's means, heard by the proxy of the first run."""
        return verdict(Heard(signal=TERM, from_stepd=True, restarts=0), job, known=True)


@pytest.mark.parametrize("check", scene.CHECKS, ids=lambda check: check.__name__)
async def test_scene(site: BareSlurm, check: Callable[[OwnSlurm], Awaitable[None]]) -> None:
    await check(own(site))


async def test_recording(site: BareSlurm) -> None:
    recorder = Recorder(Runner(Site(conf=site.conf)))
    for check in scene.CHECKS:
        await check(OwnSlurm(runner=recorder))
    assert len(recorder.answers) >= len(scene.CHECKS) - 2
    if os.environ.get("VGPU_RECORD"):
        recorder.save(FOLDER / f"{site.run('slurmctld', '-V').stdout.split()[1]}.txt")


async def test_scancel_is_told_from_the_rest(site: BareSlurm, tmp_path: Path) -> None:
    job = Job(site, tmp_path)
    assert job.meant(await job.now()) is Ends.SIGNAL
    burst = scene.burst_of(await job.now())
    await job.slurm.cancel(burst.name)
    assert job.meant(await job.until(lambda one: one.state == "COMPLETING")) is Ends.CANCEL
    await job.slurm.note(burst, scene.NOTE)
    assert (await job.until(lambda one: one.over)).state == "CANCELLED"
    await job.slurm.note(burst, scene.NOTE)
    assert (await job.now()).note == ""
    with pytest.raises(Refused):
        await job.slurm.set_limit(str(job.job_id), 600)


async def test_a_requeue_is_told_from_the_rest_and_asks_for_all_partitions_again(
    site: BareSlurm, tmp_path: Path
) -> None:
    job = Job(site, tmp_path)
    before = await job.now()
    assert len(before.partitions) == 1
    await job.slurm.requeue(before)
    completing = await job.until(lambda one: one.state == "COMPLETING")
    assert (job.meant(completing), completing.restarts) == (Ends.REQUEUE, 1)
    waiting = await job.until(lambda one: one.waits)
    assert (waiting.state, waiting.restarts, set(waiting.partitions)) == ("PENDING", 1, set(ASKED))
    assert waiting.submitted_at >= before.submitted_at
    assert job.meant(waiting) is Ends.NOTHING  # a node that comes back late, with the run that Slurm gave up
    assert await job.slurm.widen([waiting.name], ("plain",)) == ()
    assert (await job.now()).partitions == ("plain",)
    await job.slurm.set_limit(waiting.name, 7200)
    assert (await job.now()).limit_s == 7200
    assert await job.slurm.widen([waiting.name], ASKED) == ()
    assert set((await job.now()).partitions) == set(ASKED)  # in an order of its own, from 24.11 on
    await job.slurm.cancel(waiting.name)
    gone = await job.until(lambda one: one.over)
    assert (gone.state, gone.restarts) == ("CANCELLED", 1)


async def test_a_limit_that_is_shortened_becomes_slurms_own_timeout(site: BareSlurm, tmp_path: Path) -> None:
    job = Job(site, tmp_path, "-t", "60")
    running = await job.now()
    await job.slurm.set_limit(running.name, 90_000)
    assert (await job.now()).limit_s == 90_000
    await job.slurm.set_end(running.name, int(time.time()) + 3605)
    assert 3540 <= (await job.now()).limit_s <= 3720
    with pytest.raises(Refused):
        await job.slurm.set_end(running.name, int(time.time()) - 600)
    began = time.monotonic()
    await job.slurm.set_limit(running.name, shrunk(running, int(time.time())))
    await job.slurm.set_end(running.name, int(time.time()) + 2)
    completing = await job.until(lambda one: one.state == "COMPLETING", TIMEOUT_WAIT_S)
    assert (job.meant(completing), completing.reason) == (Ends.TIMEOUT, "TimeLimit")
    assert time.monotonic() - began < 40
    assert (await job.until(lambda one: one.over)).state == "TIMEOUT"


async def test_a_suspended_job_is_told_from_one_that_runs(site: BareSlurm, tmp_path: Path) -> None:
    job = Job(site, tmp_path)
    assert site.run("scontrol", "suspend", str(job.job_id)).returncode == 0
    suspended = await job.until(lambda one: one.state == "SUSPENDED")
    assert verdict(Heard(signal=20, from_stepd=True, restarts=0), suspended, known=True) is Ends.SUSPEND
    assert site.run("scontrol", "resume", str(job.job_id)).returncode == 0
    running = await job.until(lambda one: one.state == "RUNNING")
    assert verdict(Heard(signal=18, from_stepd=True, restarts=0), running, known=True) is Ends.RESUME
    await job.slurm.cancel(str(job.job_id))


async def test_one_that_has_started_is_not_pinned_and_the_others_are(site: BareSlurm, tmp_path: Path) -> None:
    job = Job(site, tmp_path)
    slurm, sleeper = own(site), tmp_path / "job.sh"
    done = site.run("sbatch", "--parsable", "-H", "-a", "1-3", "-p", ",".join(ASKED), "-o", "/dev/null", str(sleeper))
    array = done.stdout.strip()
    refused = await slurm.widen([f"{array}_2", str(job.job_id), f"{array}_3"], ("plain",))
    assert refused == (str(job.job_id),)
    found = {one.task_id: one.partitions for one in await slurm.jobs_on("plain") if one.array_id == int(array)}
    assert (found[2], found[3]) == (("plain",), ("plain",))
    assert sorted(ASKED) in map(sorted, found.values())  # the rest of the array
    assert await slurm.widen(["4000000"], ASKED) == ("4000000",)
    site.run("scancel", array, str(job.job_id))


async def test_a_note_is_written_and_taken_away_beside_other_words(site: BareSlurm, tmp_path: Path) -> None:
    job = Job(site, tmp_path)
    burst = scene.burst_of(await job.now())
    await job.slurm.note(burst, scene.NOTE)
    shown = site.run("squeue", "-h", "-j", str(job.job_id), "-O", "admin_comment:0").stdout.strip()
    assert shown == f"fed:{scene.NOTE}"
    assert site.run("scontrol", "update", f"jobid={job.job_id}", "admincomment=an admin's own").returncode == 0
    for text in (scene.NOTE, '{"open":1}', ""):
        await job.slurm.note(burst, text)
        assert (await job.now()).note == text
    shown = site.run("squeue", "-h", "-j", str(job.job_id), "-O", "admin_comment:0").stdout.strip()
    assert shown == "an admin's own"
    for other in (replace(burst, job_id=scene.UNKNOWN), replace(burst, submitted_at=1)):
        await job.slurm.note(other, scene.NOTE)  # of nobody, and of one that had the id before: nothing
    assert (await job.now()).comment == "an admin's own"
    await job.slurm.cancel(str(job.job_id))


async def test_a_slurmctld_that_is_not_there_does_not_answer(site: BareSlurm, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    (port,) = free_ports(1)
    lines = [f"SlurmctldPort={port}" if line.startswith("SlurmctldPort=") else line for line in _lines(site)]
    conf.write_text("\n".join([*lines, "MessageTimeout=2", ""]))
    nobody = OwnSlurm(Site(conf=conf, timeout_s=5))
    with pytest.raises(Unavailable):
        await nobody.jobs((scene.RUNNING,))
    with pytest.raises(Unavailable):
        await nobody.set_limit("1", 600)


def _lines(site: BareSlurm) -> list[str]:
    return site.conf.read_text().splitlines()
