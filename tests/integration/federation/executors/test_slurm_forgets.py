"""A slurmctld that dies, is away, and comes back without jobs that it acknowledged and with their ids to give again."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from federation.errors import OutcomeUnknown
from federation.executors.host import MountedHost
from federation.executors.slurm import SlurmExecutor, SlurmPool
from federation.executors.slurm_commands import Where
from federation.executors.spool import Spool
from federation.model.token import Key
from federation.ports import Sight
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.slurm.process import Site
from tests.contract.federation.executors.rig import Rig
from tests.e2e.bare_slurm import BareSlurm, bare_slurm, wait

_LUA = "function slurm_job_submit() return slurm.SUCCESS end\nfunction slurm_job_modify() return slurm.SUCCESS end\n"
_WAITS = b"#!/bin/sh\necho ran >> ran\nuntil [ -e go-on ]; do sleep 0.05; done\n"


@pytest.fixture
def slurm() -> Iterator[BareSlurm]:
    ensure_people()
    with bare_slurm({"job_submit.lua": _LUA + "return slurm.SUCCESS\n"}, lambda _: "MessageTimeout=2\n") as cluster:
        yield cluster


@pytest.fixture
def rig(slurm: BareSlurm, folder: Path) -> Rig:
    spool = Spool(folder / "spool")
    site = Site(conf=slurm.conf, timeout_s=5.0)
    pool = SlurmPool(name="hpc", where=Where(partition="plain"))
    return Rig(lambda: SlurmExecutor(pool, MountedHost(spool, site)), spool)


def kill(slurm: BareSlurm) -> None:
    controller = next(one for one in slurm.daemons if "slurmctld" in str(one.args))
    slurm.daemons.remove(controller)
    controller.send_signal(signal.SIGKILL)
    controller.wait()


def start_anew(slurm: BareSlurm) -> None:
    """As one that had not saved its state for a while."""
    shutil.rmtree(slurm.folder / "state")
    (slurm.folder / "state").mkdir()
    slurm.start("slurmctld", "-D", "-f", str(slurm.conf))
    wait(lambda: slurm.run("sinfo", "-h", "-p", "plain", "-t", "idle", "-o", "%D").stdout.strip() == "2", "two nodes")


async def test_what_was_forgotten_before_its_claim_is_absent_and_runs_once_when_it_is_handed_over_again(
    slurm: BareSlurm, rig: Rig
) -> None:
    slurm.run("scontrol", "update", "partitionname=plain", "state=down")
    key = await rig.submit(_WAITS)
    first = await rig.until(key, Sight.PENDING)
    kill(slurm)
    assert await rig.seen(key) is None
    with pytest.raises(OutcomeUnknown):
        await rig.submit(_WAITS, Key(uuid4(), 1))
    start_anew(slurm)
    other = slurm.run("sbatch", "--parsable", "-p", "plain", "-o", "/dev/null", "--wrap", "sleep 100").stdout.strip()
    assert other == first.handle  # its id is another job's now
    assert (await rig.until(key, Sight.ABSENT)).handle == ""
    await rig.executor.stop(key)
    assert slurm.job(other)["JobState"] in ("PENDING", "RUNNING")
    await rig.submit(_WAITS, key)
    (await rig.wrote(key, "ran")).with_name("go-on").touch()
    assert (await rig.ended(key)).exit_code == 0
    assert (await rig.wrote(key, "ran")).read_text() == "ran\n"


async def test_what_was_forgotten_after_its_claim_never_runs_again(slurm: BareSlurm, rig: Rig) -> None:
    key = await rig.submit(_WAITS)
    ran = await rig.wrote(key, "ran")
    await rig.until(key, Sight.RUNNING)
    kill(slurm)
    assert await rig.seen(key) is None
    start_anew(slurm)
    seen = await rig.until(key, Sight.GONE, Sight.EXITED)
    assert seen.outcome is None or seen.outcome.signal is not None
    assert not await rig.executor.fence(key)
    await rig.submit(_WAITS, key)
    assert (await rig.until(key, Sight.GONE, Sight.EXITED)).sight is seen.sight
    assert ran.read_text() == "ran\n"
