"""What a job left behind a login node comes: a file that can't be brought never hides that the job ended."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from federation.access.acting import account_of
from federation.access.paths import MAX_DEPTH
from federation.executors import ssh_files
from federation.executors.ssh_host import SshHost
from federation.model.spec import JobSpec
from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.stage.chunks import MAX_FILES
from tests.contract.federation.executors.rig import USER
from tests.contract.federation.executors.sshd import Sshd, host_behind_ssh

ENDED = Outcome(end=End.EXITED, exit_code=0, stdout_size=4, stderr_size=0)


@pytest.fixture
async def host(sshd: Sshd, folder: Path) -> AsyncIterator[SshHost]:
    made = host_behind_ssh(sshd, folder)
    yield made
    await made.close()


async def job(host: SshHost, *outputs: bytes) -> tuple[Key, Path]:
    """One that has ended there, and its folder."""
    key = Key(uuid4(), 1)
    path = Path(await host.lay(key, JobSpec(user=USER, script=b"#!/bin/sh\ntrue\n", outputs=outputs), USER))
    for name, data in (("stdout", b"said"), ("stderr", b"")):
        left(path / name, data)
    return key, path / "work"


def left(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    account = account_of(USER)
    os.chown(path, account.uid, account.gid)


async def brought(host: SshHost, key: Key) -> list[str]:
    async with asyncio.timeout(60):
        while not await host.here(key, ENDED):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    place = await host.place(key, USER)
    assert place.stdout.read_bytes() == b"said"
    return sorted(str(one.relative_to(place.folder)) for one in place.folder.rglob("*") if one.is_file())


async def test_what_lies_too_deep_is_passed_over_and_the_longest_names_come(host: SshHost) -> None:
    key, work = await job(host, b"*")
    deepest = "/".join(["d"] * MAX_DEPTH)
    for name in (deepest, f"{deepest}d/x", "n" * 255):
        left(work / name)
    assert await brought(host, key) == [deepest, "n" * 255]


async def test_of_more_than_any_site_gives_back_enough_comes_for_that_to_be_told(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ssh_files.MOST_BROUGHT > MAX_FILES
    monkeypatch.setattr(ssh_files, "MOST_BROUGHT", 3)
    key, work = await job(host, b"wanted")
    for nth in range(10):
        left(work / "wanted" / str(nth))
    assert len(await brought(host, key)) == 3


async def test_files_that_nobody_asked_for_are_no_reason_not_to_bring_the_others(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("federation.executors.ssh_scripts.MOST_TOLD", 1000)
    key, work = await job(host, b"wanted")
    for nth in range(100):
        left(work / f"other-{nth}")
    left(work / "wanted")
    assert await brought(host, key) == ["wanted"]
