"""Jobs behind a login node whose sshd dies again and again: each runs once, and every byte of it comes."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from federation.errors import FedError
from federation.model.spec import JobSpec
from federation.model.token import Key
from federation.ports import Seen, Sight
from slurm_plugin.lab.people import ensure_people
from tests.contract.federation.executors.rig import USER, Rig
from tests.contract.federation.executors.sshd import Sshd, behind_ssh
from tests.e2e.bare_slurm import BareSlurm, bare_slurm

JOBS = 4
KILLS = 8
SIZE = 3_000_000
_LUA = "function slurm_job_submit() return slurm.SUCCESS end\nfunction slurm_job_modify() return slurm.SUCCESS end\n"
_SCRIPT = b"#!/bin/sh\necho ran >> ran\ncat input input > big\ncat input\ncat input >&2\nsleep 1\nexit 3\n"


@pytest.fixture
def slurm() -> Iterator[BareSlurm]:
    ensure_people()
    with bare_slurm({"job_submit.lua": _LUA + "return slurm.SUCCESS\n"}) as cluster:
        yield cluster


@pytest.fixture
def mortal(folder: Path, slurm: BareSlurm) -> Iterator[Sshd]:
    daemon = Sshd(folder, {"SLURM_CONF": str(slurm.conf)})
    daemon.start()
    yield daemon
    daemon.kill()


async def through(rig: Rig, key: Key, data: bytes) -> Seen:
    """As the engine does it: what got no answer is looked at, and what is absent is handed over again."""
    place = await rig.executor.place(key, USER)
    (place.folder / "input").write_bytes(data)
    (place.folder / "input").chmod(0o644)
    spec = JobSpec(user=USER, script=_SCRIPT, outputs=(b"big", b"ran"))
    async with asyncio.timeout(120):
        while True:
            with suppress(FedError):
                seen = await rig.seen(key)
                if seen is not None and seen.sight is Sight.EXITED:
                    return seen
                assert seen is None or seen.sight is not Sight.GONE
                if seen is not None and seen.sight is Sight.ABSENT:
                    await rig.executor.submit(key, spec, USER)
            await asyncio.sleep(0.1)


async def murder(sshd: Sshd) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(0.7)
        await asyncio.to_thread(sshd.kill)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(sshd.start)


async def test_an_sshd_that_dies_again_and_again_loses_and_doubles_nothing(mortal: Sshd, folder: Path) -> None:
    async with behind_ssh(mortal, folder, ping_s=0.5) as rig:
        murders = asyncio.create_task(murder(mortal))
        data = [os.urandom(SIZE) for _ in range(JOBS)]
        keys = [Key(uuid4(), 1) for _ in range(JOBS)]
        ends = await asyncio.gather(*(through(rig, key, one) for key, one in zip(keys, data, strict=True)))
        await murders
        for key, one, seen in zip(keys, data, ends, strict=True):
            place = await rig.place(key)
            assert seen.outcome is not None
            assert (seen.outcome.exit_code, seen.outcome.stdout_size) == (3, SIZE)
            assert (place.folder / "ran").read_text() == "ran\n"
            assert place.stdout.read_bytes() == one
            assert place.stderr.read_bytes() == one
            assert (place.folder / "big").read_bytes() == one + one
