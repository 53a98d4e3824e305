"""The connection to a login node: trusted by pinned keys only, and broken links are noticed and made anew."""

import asyncio
import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import paramiko
import pytest

from federation.access.acting import Account, account_of
from federation.errors import OutcomeUnknown, Unavailable
from federation.executors import transfer
from federation.executors.ssh_link import CHANNELS, Login, SshLink
from federation.executors.transfer import Here
from tests.contract.federation.executors.rig import USER
from tests.contract.federation.executors.sshd import Sshd

MIB = 1 << 20


@asynccontextmanager
async def linked(login: Login, *, ping_s: float = 20.0, ping_answer_s: float = 10.0) -> AsyncIterator[SshLink]:
    link = SshLink(login, ping_s=ping_s, ping_answer_s=ping_answer_s)
    try:
        yield link
    finally:
        await link.close()


async def test_a_command_tells_its_code_and_both_streams_and_finds_no_input(sshd: Sshd) -> None:
    async with linked(sshd.login()) as link:
        said = await link.run("cat; echo out; echo err >&2; exit 7")
        assert (said.status, said.out) == (7, b"out\n")
        assert said.err.endswith(b"err\n")


async def test_two_streams_that_are_longer_than_any_window_come_whole(sshd: Sshd) -> None:
    async with linked(sshd.login()) as link:
        said = await link.run("head -c 10485760 /dev/zero >&2 & head -c 10485760 /dev/zero; wait")
        assert (len(said.out), said.err.count(b"\0")) == (10 * MIB, 10 * MIB)


async def test_many_calls_share_few_channels(sshd: Sshd) -> None:
    async with linked(sshd.login()) as link:
        said = await asyncio.gather(*(link.run(f"echo {at}") for at in range(5 * CHANNELS)))
        assert [one.out for one in said] == [f"{at}\n".encode() for at in range(5 * CHANNELS)]
        shells = await link.run("ps -o ppid= -p $$")
        assert shells.status == 0


async def test_a_host_whose_key_is_not_pinned_is_told_nothing(sshd: Sshd, folder: Path) -> None:
    nobody = folder / "empty"
    nobody.touch()
    async with linked(replace(sshd.login(), known_hosts=nobody)) as link:
        with pytest.raises(Unavailable, match="not found in known_hosts"):
            await link.run(":")


async def test_a_host_that_shows_another_key_is_told_nothing(sshd: Sshd, folder: Path) -> None:
    other = (sshd.folder / "key.pub").read_text().split()[:2]
    pinned = folder / "pinned"
    pinned.write_text(f"[127.0.0.1]:{sshd.port} {' '.join(other)}\n")
    async with linked(replace(sshd.login(), known_hosts=pinned)) as link:
        with pytest.raises(Unavailable, match="another key than the one that is pinned"):
            await link.run(":")


async def test_a_login_without_the_right_key_says_that_nothing_was_done(sshd: Sshd, folder: Path) -> None:
    async with linked(replace(sshd.login(), key=sshd.folder / "host_key")) as link:
        with pytest.raises(Unavailable, match="can't log in"):
            await link.run(":")


@pytest.fixture
def agent(folder: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(folder / "agent")], stdout=subprocess.DEVNULL) as daemon:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(folder / "agent"))
        deadline = time.monotonic() + 10
        while subprocess.run(["ssh-add", "-q", str(sshd.folder / "key")], capture_output=True).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield
        daemon.terminate()


@pytest.mark.usefixtures("agent")
async def test_an_agent_proves_who_we_are(sshd: Sshd) -> None:
    async with linked(replace(sshd.login(), key=None, agent=True)) as link:
        assert (await link.run("id -un")).out == b"alice\n"
    async with linked(replace(sshd.login(), key=None)) as link:
        with pytest.raises(Unavailable):
            await link.run("id -un")


async def test_a_jump_host_leads_there(sshd: Sshd, folder: Path) -> None:
    (folder / "inner").mkdir()
    inner = Sshd(folder / "inner", {})
    inner.start()
    try:
        async with linked(replace(inner.login(), jump=sshd.login())) as link:
            said = await link.run("echo $SSH_CONNECTION")
            assert said.out.split()[3] == str(inner.port).encode()
            sshd.kill()
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await link.run(":")
    finally:
        inner.kill()


async def test_an_sshd_that_dies_in_a_call_leaves_its_outcome_unknown_and_one_that_is_back_is_used(sshd: Sshd) -> None:
    mark = sshd.folder / "begun"
    sshd.folder.chmod(0o777)
    async with linked(sshd.login()) as link:
        call = asyncio.create_task(link.run(f"touch {mark}; exec sleep 30"))
        await there(mark)
        began = time.monotonic()
        sshd.kill()
        with pytest.raises(OutcomeUnknown):
            await call
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await link.run(":")
        assert time.monotonic() - began < 10
        sshd.start()
        assert (await link.run("echo back")).out == b"back\n"


async def test_a_link_that_is_up_and_says_nothing_is_noticed_by_its_ping(sshd: Sshd) -> None:
    mark = sshd.folder / "begun"
    sshd.folder.chmod(0o777)
    async with linked(sshd.login(), ping_s=0.3, ping_answer_s=0.7) as link:
        call = asyncio.create_task(link.run(f"touch {mark}; exec sleep 30"))
        await there(mark)
        began = time.monotonic()
        sshd.pause(signal.SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknown):
                await call
            assert time.monotonic() - began < 10
        finally:
            sshd.pause(signal.SIGCONT)
        assert (await link.run("echo back")).out == b"back\n"


async def test_a_command_that_takes_too_long_is_of_unknown_outcome_and_its_link_goes_on(sshd: Sshd) -> None:
    async with linked(sshd.login()) as link:
        with pytest.raises(OutcomeUnknown, match="time is over"):
            await link.run("exec sleep 30", timeout_s=0.5)
        assert (await link.run("echo on")).out == b"on\n"


# -- files


class Cut(Exception):
    """What a test does to a transfer."""


@pytest.fixture
def account() -> Account:
    return account_of(USER)


@pytest.fixture
def mine(folder: Path, account: Account) -> Path:
    """A folder of the user's."""
    path = folder / "mine"
    path.mkdir()
    os.chown(path, account.uid, account.gid)
    return path


async def test_files_of_any_name_and_size_go_there_and_come_back(sshd: Sshd, mine: Path, account: Account) -> None:
    names = [b"plain", b"a b\n'\"$(x)", b"\xe9\xff", b"n" * 255]
    content = [b"", b"x", os.urandom(3 * MIB + 1), bytes(transfer.WINDOW)]
    async with linked(sshd.login()) as link:
        for name, data in zip(names, content, strict=True):
            put(mine / os.fsdecode(name), data)
            here, far = Here(folder=mine, path=name, account=account), os.fsencode(mine) + b"/far"
            right = hashlib.sha256(data).hexdigest()
            assert await link.files(partial(transfer.put, here=here, there=far, cut=threading.Event())) == right
            back = Here(folder=mine, path=b"back", account=account)
            got = await link.files(partial(transfer.get, there=transfer.part_of(far), size=len(data), here=back))
            assert got == right
            transfer.keep(back, 0o640)
            assert (mine / "back").read_bytes() == data
            assert (mine / "back").stat().st_mode & 0o777 == 0o640
            (mine / transfer.part_of(b"far").decode()).unlink()


async def test_what_was_cut_off_goes_on_where_it_was(
    sshd: Sshd, mine: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(3 * transfer.WINDOW)
    put(mine / "data", data)
    back = Here(folder=mine, path=b"back", account=account)
    asked: list[int] = []
    readv = paramiko.SFTPFile.readv

    def watched(file: paramiko.SFTPFile, chunks: list[tuple[int, int]], most: int) -> Iterator[bytes]:
        asked.append(chunks[0][0])
        if len(asked) == 2:
            raise Cut
        return readv(file, chunks, most)

    monkeypatch.setattr(paramiko.SFTPFile, "readv", watched)
    get = partial(transfer.get, there=os.fsencode(mine / "data"), size=len(data), here=back)
    async with linked(sshd.login()) as link:
        with pytest.raises(Cut):
            await link.files(get)
        assert await link.files(get) == hashlib.sha256(data).hexdigest()
    assert asked == [0, transfer.WINDOW, transfer.WINDOW, 2 * transfer.WINDOW]


async def test_what_the_user_put_in_the_way_is_not_written_through(sshd: Sshd, mine: Path, account: Account) -> None:
    victim = mine.parent / "victim"
    victim.write_text("mine")
    put(mine / "data", b"data")
    (mine / transfer.part_of(b"back").decode()).symlink_to(victim)
    back = Here(folder=mine, path=b"back", account=account)
    async with linked(sshd.login()) as link:
        with pytest.raises(Exception, match="symbolic link"):
            await link.files(partial(transfer.get, there=os.fsencode(mine / "data"), size=4, here=back))
    assert victim.read_text() == "mine"


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o644)


async def there(path: Path) -> None:
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
