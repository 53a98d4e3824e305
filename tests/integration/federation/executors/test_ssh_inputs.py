"""Inputs on their way to a login node: sent once, for as long as it takes, and in nobody's way."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import paramiko
import pytest

from federation.access.acting import account_of
from federation.errors import NoRoom
from federation.executors import ssh_files, transfer
from federation.executors.ssh_host import SshHost
from federation.executors.transfer import Here
from federation.model.spec import Input, JobSpec
from federation.model.token import Key
from tests.contract.federation.executors.rig import USER
from tests.contract.federation.executors.sshd import Sshd, host_behind_ssh

DATA = bytes(range(256)) * 1000
SPEC = JobSpec(user=USER, script=b"#!/bin/sh\ntrue\n")
WITH_INPUT = JobSpec(
    user=USER, script=b"#!/bin/sh\ntrue\n", inputs=(Input(path=b"d/input", size=len(DATA), sha256=b""),)
)
PATIENCE_S = 60.0


@dataclass
class Sending:
    """Every file that is sent, and inputs wait to be let through."""

    put: Callable[[paramiko.SFTPClient, Here, bytes, threading.Event], str]
    sent: list[bytes] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    let_through: threading.Event = field(default_factory=threading.Event)
    cuts: list[threading.Event] = field(default_factory=list)
    given_up: threading.Event = field(default_factory=threading.Event)

    def __call__(self, client: paramiko.SFTPClient, here: Here, there: bytes, cut: threading.Event) -> str:
        self.sent.append(here.path)
        if here.path.startswith(b"work/"):
            self.cuts.append(cut)
            self.begun.set()
            assert self.let_through.wait(PATIENCE_S)
        try:
            return self.put(client, here, there, cut)
        except EOFError:
            self.given_up.set()
            raise

    def inputs(self) -> int:
        return sum(path == b"work/d/input" for path in self.sent)


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sending]:
    one = Sending(transfer.put)
    monkeypatch.setattr(transfer, "put", one)
    monkeypatch.setattr(ssh_files, "LAY_S", 0.2)
    yield one
    one.let_through.set()


@pytest.fixture
async def host(sshd: Sshd, folder: Path) -> AsyncIterator[SshHost]:
    made = host_behind_ssh(sshd, folder)
    yield made
    await made.close()


async def with_input(host: SshHost) -> Key:
    key = Key(uuid4(), 1)
    place, account = await host.place(key, USER), account_of(USER)
    (place.folder / "d").mkdir()
    path = place.folder / "d" / "input"
    path.write_bytes(DATA)
    path.chmod(0o640)
    for one in (path, path.parent):
        os.chown(one, account.uid, account.gid)
    return key


async def laid(host: SshHost, key: Key, spec: JobSpec) -> Path:
    """As the engine does it: until there is room for it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return Path(await host.lay(key, spec, USER))
            except NoRoom:
                await asyncio.sleep(0.05)


async def test_what_takes_long_is_sent_once_and_its_hand_over_holds_nothing_up(host: SshHost, sending: Sending) -> None:
    key = await with_input(host)
    for _ in range(3):
        with pytest.raises(NoRoom, match="on their way"):
            await host.lay(key, WITH_INPUT, USER)
    assert await asyncio.to_thread(sending.begun.wait, PATIENCE_S)
    more = [await with_input(host) for _ in range(8)]
    for one in more:
        with pytest.raises(NoRoom):
            await host.lay(one, WITH_INPUT, USER)
    assert (await laid(host, Key(uuid4(), 1), SPEC)).is_dir()  # whoever sends nothing passes them all by
    assert sending.inputs() <= ssh_files.SENDS
    sending.let_through.set()
    for one in (key, *more):
        path = await laid(host, one, WITH_INPUT) / "work" / "d" / "input"
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (DATA, 0o640)
    assert sending.inputs() == 1 + len(more)


async def test_what_has_arrived_is_not_sent_again_and_what_is_wrong_there_is(host: SshHost, sending: Sending) -> None:
    sending.let_through.set()
    key = await with_input(host)
    path = await laid(host, key, WITH_INPUT)
    assert sending.inputs() == 1
    before = len(sending.sent)
    assert await laid(host, key, WITH_INPUT) == path
    assert len(sending.sent) == before
    (path / "work" / "d" / "input").write_bytes(b"torn")
    await laid(host, key, WITH_INPUT)
    assert (path / "work" / "d" / "input").read_bytes() == DATA
    assert sending.sent[before:] == [b"work/d/input"]


async def test_what_is_fenced_is_not_sent_any_more(host: SshHost, sending: Sending) -> None:
    key = await with_input(host)
    with pytest.raises(NoRoom):
        await host.lay(key, WITH_INPUT, USER)
    assert await asyncio.to_thread(sending.begun.wait, PATIENCE_S)
    assert not sending.cuts[0].is_set()
    assert await host.fence(key)
    assert await asyncio.to_thread(sending.cuts[0].wait, PATIENCE_S)
    sending.let_through.set()
    assert await asyncio.to_thread(sending.given_up.wait, PATIENCE_S)


async def test_what_was_cut_off_on_its_way_there_goes_on_where_it_was(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await with_input(host)
    there = await laid(host, key, WITH_INPUT) / "work" / "d" / "input"
    os.truncate(there.rename(there.with_name(transfer.part_of(b"input").decode())), 1000)
    written: list[int] = []
    write = paramiko.SFTPFile.write

    def counted(file: paramiko.SFTPFile, data: bytes) -> None:
        written.append(len(data))
        write(file, data)

    monkeypatch.setattr(paramiko.SFTPFile, "write", counted)
    await laid(host, key, WITH_INPUT)
    assert there.read_bytes() == DATA
    assert sum(written) == len(DATA) - 1000
