"""A cluster with accounting, mounted and behind ssh in a zone far west: what its queue forgot it still knows."""

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from federation.errors import Refused
from federation.executors.host import MountedHost
from federation.executors.slurm import SlurmExecutor, SlurmPool
from federation.executors.spool import Spool
from federation.model.states import End
from federation.model.token import Key
from federation.ports import Sight
from slurm_plugin.lab import commands, processes
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import Lab, LabSpec
from slurm_plugin.slurm.process import Site
from tests.contract.federation.executors.rig import USER, Rig
from tests.contract.federation.executors.sshd import Sshd, behind_ssh

pytestmark = pytest.mark.slurm

FORGETS_S = 90.0
NODE = "n1"
WAITS = b"#!/bin/sh\necho up > up\nwhile :; do sleep 0.1; done\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="acct", dir="/run"))
    base.chmod(0o755)
    lines = ("AccountingStorageEnforce=associations", "MinJobAge=2")
    name = f"acct{os.getpid()}"
    try:
        made = commands.up(LabSpec(name=name, nodes=1, pool=False, accounting=True, slurm_lines=lines), base)
        for argv in (("account", "proj"), ("account", "other"), ("user", USER, "account=proj")):
            slurm(made, "sacctmgr", "--immediate", "add", *argv)
        slurm(made, "sacctmgr", "--immediate", "add", "user", USER, "account=other")
        until(lambda: "Account=other" in slurm(made, "scontrol", "show", "assoc_mgr", "flags=assoc", f"users={USER}"))
        yield made
    finally:
        commands.down(name, base)


@pytest.fixture(params=["slurm", "ssh"])
async def rig(request: pytest.FixtureRequest, lab: Lab, folder: Path) -> AsyncIterator[Rig]:
    if request.param == "slurm":
        spool = Spool(folder / "spool")
        host = MountedHost(spool, Site(conf=lab.slurm_conf))
        yield Rig(lambda: SlurmExecutor(SlurmPool(name="batch"), host), spool)
        return
    sshd = Sshd(folder, {"SLURM_CONF": str(lab.slurm_conf), "TZ": "Pacific/Pago_Pago"})
    sshd.start()
    try:
        async with behind_ssh(sshd, folder) as there:
            yield there
    finally:
        sshd.kill()


def slurm(lab: Lab, *argv: str) -> str:
    env = commands.environment(lab.name, lab.folder.parent)
    return subprocess.run(argv, env=env, cwd="/", check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def until(condition: Callable[[], bool]) -> None:
    assert processes.wait_until(condition, limit_s=FORGETS_S)


@contextmanager
def node(lab: Lab, state: str) -> Iterator[None]:
    """It is so; afterwards it is idle, whether it came back by itself or not."""
    update = ("scontrol", "update", f"nodename={NODE}")
    slurm(lab, *update, f"state={state}", "reason=test")
    yield

    def idle() -> bool:
        if slurm(lab, "sinfo", "--noheader", "--format=%T") == "idle":
            return True
        with suppress(subprocess.CalledProcessError):
            slurm(lab, *update, "state=resume")
        return False

    until(idle)


async def forgotten(lab: Lab) -> None:
    until(lambda: not slurm(lab, "squeue", "--noheader", "--all", "--states=all"))


async def test_what_was_cancelled_while_it_waited_is_cancelled_though_the_queue_forgot_it(lab: Lab, rig: Rig) -> None:
    with node(lab, "drain"):
        key = await rig.submit(WAITS)
        waits = await rig.until(key, Sight.PENDING)
        slurm(lab, "scancel", waits.handle)
        await forgotten(lab)
    assert (await rig.ended(key)).end is End.CANCELLED


async def test_what_ended_with_its_node_ended_so_though_the_queue_forgot_it(lab: Lab, rig: Rig) -> None:
    key = await rig.submit(WAITS)
    await rig.wrote(key, "up")
    with node(lab, "down"):
        await forgotten(lab)
    assert (await rig.ended(key)).end is End.NODE_FAIL


async def test_a_job_is_its_accounts_and_one_that_its_user_may_not_charge_is_refused(lab: Lab, rig: Rig) -> None:
    key = await rig.submit(b"#!/bin/sh\ntrue\n", account="other")
    await rig.ended(key)
    asked = (
        "sacct",
        "--noheader",
        "--allocations",
        "--parsable2",
        "--allusers",
        "--format=Account",
        f"--name={name(key)}",
    )
    until(lambda: slurm(lab, *asked) == "other")
    with pytest.raises(Refused, match="Invalid account"):
        await rig.submit(b"#!/bin/sh\ntrue\n", account="nobodys")


def name(key: Key) -> str:
    return f"{key.token.hex}.{key.attempt}"
