"""Every backend, each with the least that it needs."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from federation.executors.host import MountedHost
from federation.executors.local import LocalExecutor, LocalPool
from federation.executors.slurm import SlurmExecutor, SlurmPool
from federation.executors.spool import Spool
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.slurm.process import Site
from tests.contract.federation.executors.rig import Rig
from tests.contract.federation.executors.sshd import Sshd, behind_ssh
from tests.e2e.bare_slurm import BareSlurm, bare_slurm

_LUA = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture(scope="session")
def slurm() -> Iterator[BareSlurm]:
    ensure_people()
    with bare_slurm({"job_submit.lua": _LUA}, lambda _: "KillWait=2\nMinJobAge=300\n") as cluster:
        yield cluster


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that users may pass."""
    with tempfile.TemporaryDirectory(prefix="fed-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def sshd(folder: Path, slurm: BareSlurm) -> Iterator[Sshd]:
    daemon = Sshd(folder, {"SLURM_CONF": str(slurm.conf)})
    daemon.start()
    yield daemon
    daemon.kill()


@pytest.fixture(params=["local", "slurm", "ssh"])
async def rig(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Rig]:
    ensure_people()
    spool = Spool(folder / "spool")
    if request.param == "ssh":
        async with behind_ssh(request.getfixturevalue("sshd"), folder) as there:
            yield there
        return
    if request.param == "local":
        yield Rig(lambda: LocalExecutor(LocalPool(name="batch", spool=spool, cpus=8)), spool)
        return
    site = Site(conf=request.getfixturevalue("slurm").conf)
    yield Rig(lambda: SlurmExecutor(SlurmPool(name="batch"), MountedHost(spool, site)), spool)
