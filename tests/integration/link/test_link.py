"""The handshake on real gRPC and a real munged: who gets in, who does not, and what each side is told."""

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket as Socket

import pytest

from slurm_plugin.errors import ConfigError, LinkError, Untrusted
from slurm_plugin.link import client, server
from slurm_plugin.link.client import Link, open_link
from slurm_plugin.link.handshake import answer_payload, call_payload, check_answer, nonce_of_call
from slurm_plugin.link.identity import make_identity
from slurm_plugin.link.munge import Munge
from slurm_plugin.link.server import Caller, Send, raise_file_limit, serve
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from tests.integration.link.munged import Late, munged

ROOT = frozenset({0})


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


@dataclass
class Echo:
    """Answers each Released with its Verdict, and keeps who called."""

    callers: list[Caller] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def session(self, caller: Caller, received: AsyncIterator[pb.FromAgent], send: Send) -> None:
        self.callers.append(caller)
        try:
            async for message in received:
                await send(pb.ToAgent(verdict=pb.Verdict(job_id=message.released.job_id)))
        finally:
            self.gone.set()

    async def status(self, caller: Caller) -> pb.PoolStatus:
        return pb.PoolStatus(pool="hpc")

    async def plan(self, caller: Caller, pool_yaml: str) -> pb.PlanReply:
        raise ConfigError("pool.yaml:3: no such thing", hint="did you mean this one?")

    async def apply(self, caller: Caller) -> pb.ApplyReply:
        return pb.ApplyReply()

    async def explain(self, caller: Caller, job_id: int, element: int | None) -> pb.ExplainReply:
        return pb.ExplainReply(job_id=job_id, uid=caller.uid, why="trusted" if caller.trusted else "anybody")

    async def pause(self, caller: Caller, wanted: bool, reason: str) -> pb.PauseReply:
        return pb.PauseReply(pause=pb.Pause(uid=caller.uid, reason=reason) if wanted else None)

    async def history(self, caller: Caller, node: str, since: float, limit: int) -> pb.HistoryReply:
        return pb.HistoryReply(entries=[pb.HistoryEntry(node=node, at=since, index=limit)])


@asynccontextmanager
async def running(socket: Path, handler: Echo, trusted: frozenset[int] = ROOT) -> AsyncIterator[str]:
    server, port = await serve(handler, listen="127.0.0.1:0", munge=Munge(socket), trusted=trusted)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_session_is_trusted_both_ways_and_carries_messages(socket: Path) -> None:
    handler = Echo()
    async with running(socket, handler) as address, await open_link(address, munge=Munge(socket)) as link:
        async with link.session() as session:
            await session.send(pb.FromAgent(released=pb.Released(job_id=7)))
            async for message in session:
                assert message.verdict.job_id == 7
                break
        await asyncio.wait_for(handler.gone.wait(), 5)  # closing our end ends the server's
    assert [caller.uid for caller in handler.callers] == [0]


async def test_error_of_the_controller_is_the_same_error_at_the_caller(socket: Path) -> None:
    async with running(socket, Echo()) as address, await open_link(address, munge=Munge(socket)) as link:
        assert (await link.status()).pool == "hpc"
        await link.apply()
        with pytest.raises(ConfigError, match=r"pool\.yaml:3: no such thing") as caught:
            await link.plan("x")
        assert caught.value.hint == "did you mean this one?"


async def test_a_user_may_ask_for_status_but_not_apply_or_be_an_agent(socket: Path) -> None:
    handler = Echo()
    async with running(socket, handler) as address:
        out = await asyncio.to_thread(as_nobody, address, socket)
    assert out == "hpc\napply: uid 65534 may not make this call\nsession: uid 65534 may not make this call\n"
    assert handler.callers == []


@pytest.mark.parametrize(("trusted", "why"), [(ROOT, "trusted"), (frozenset({65534}), "anybody")])
async def test_who_asks_about_a_job_is_told_to_the_controller(socket: Path, trusted: frozenset[int], why: str) -> None:
    async with running(socket, Echo(), trusted) as address, await open_link(address, munge=Munge(socket)) as link:
        reply = await link.explain(7)
    assert (reply.job_id, reply.uid, reply.why) == (7, 0, why)


async def test_server_that_munge_does_not_know_as_root_is_not_believed(socket: Path) -> None:
    identity = make_identity()
    expected = answer_payload("aa", identity.fingerprint)
    with pytest.raises(Untrusted, match="runs as uid 65534"):
        check_answer(expected, 65534, expected=expected, trusted=ROOT)
    with pytest.raises(Untrusted, match="answered another call"):
        check_answer(answer_payload("bb", identity.fingerprint), 0, expected=expected, trusted=ROOT)


class Careless(Munge):
    """Its credentials are for the impostor: he learns the nonce."""

    async def encode(self, payload: str, *, for_uid: int) -> bytes:
        return await super().encode(payload, for_uid=65534)


@contextmanager
def impostor(*argv: str) -> Iterator[str]:
    """One of uid 65534's, and where it listens."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cases.impostor", *argv], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
            told = process.stdout.read().split()
    assert set(told) <= {"called"}  # nobody tells it anything


@pytest.mark.parametrize(
    ("proves", "careless", "why"),
    [
        (False, False, "did not prove who it is"),
        (True, False, "answered another call"),
        (True, True, "the controller runs as uid 65534"),
    ],
)
async def test_a_controller_of_another_users_is_believed_by_neither_agent_nor_command(
    socket: Path, proves: bool, careless: bool, why: str
) -> None:
    munge = (Careless if careless else Munge)(socket)
    with impostor(*([str(socket)] if proves else [])) as address:
        async with await open_link(address, munge=munge) as link:
            with pytest.raises(Untrusted, match=why):
                await link.status()
            with pytest.raises(Untrusted, match=why):
                async with link.session():
                    pytest.fail("an agent would take its orders")


async def test_credential_made_for_another_certificate_is_refused(socket: Path) -> None:
    """A host in between shows its own certificate and passes the caller's credential on: it must not get in."""
    async with running(socket, Echo()) as address:
        honest = await open_link(address, munge=Munge(socket))
        async with Link(
            honest._channel, fingerprint=make_identity().fingerprint, munge=Munge(socket), server_uid=0
        ) as misled:
            with pytest.raises(Untrusted, match="made to another certificate"):
                await misled.status()
            with pytest.raises(Untrusted, match="made to another certificate"):
                async with misled.session():
                    pass


async def test_other_munge_key_is_refused_with_a_hint(socket: Path) -> None:
    with munged() as strangers:
        async with running(socket, Echo()) as address, await open_link(address, munge=Munge(strangers)) as link:
            with pytest.raises(Untrusted) as caught:
                await link.status()
    assert "same munge key" in caught.value.hint


async def test_credential_is_good_once_and_only_for_whom_it_was_made(socket: Path) -> None:
    munge = Munge(socket)
    credential = await munge.encode(call_payload("00" * 16, "ff"), for_uid=os.getuid())
    signed = await munge.decode(credential)
    assert (signed.uid, nonce_of_call(signed.payload, "ff")) == (0, "00" * 16)
    with pytest.raises(Untrusted, match=r"[Rr]eplay"):
        await munge.decode(credential)
    with pytest.raises(Untrusted, match=r"[Uu]nauthorized"):
        await munge.decode(await munge.encode("x", for_uid=65534))


async def test_who_is_refused_for_his_clock_is_told_to_the_controller_by_his_address(socket: Path) -> None:
    told: list[str] = []
    there, port = await serve(Echo(), listen="127.0.0.1:0", munge=Munge(socket), trusted=ROOT, mistimed=told.append)
    try:
        async with await open_link(f"127.0.0.1:{port}", munge=Late(socket, ttl_s=1)) as link:
            with pytest.raises(Untrusted, match="Expired credential") as caught:
                await link.status()
            assert "nearly the same clock" in caught.value.hint
        with munged() as strangers:
            async with await open_link(f"127.0.0.1:{port}", munge=Munge(strangers)) as link:
                with pytest.raises(Untrusted):
                    await link.status()
    finally:
        await there.stop(None)
    assert told == ["127.0.0.1"]


@pytest.mark.parametrize(("peer", "host"), [("ipv4:10.0.0.7:4321", "10.0.0.7"), ("ipv6:%5Bfd00::7%5D:4321", "fd00::7")])
def test_a_peers_address_is_told_as_ssh_takes_it(peer: str, host: str) -> None:
    assert server._host(peer) == host


@pytest.mark.parametrize("payload", ["", "vgpu-link-1 call", "vgpu-link-1 answer " + "0" * 32 + " ff", "x\ny z w"])
def test_text_that_is_no_call_is_refused(payload: str) -> None:
    with pytest.raises(Untrusted, match="not a call"):
        nonce_of_call(payload, "ff")


@pytest.mark.parametrize("credential", [b"", b"MUNGE:AAAA:", b"\0" * 100, b"x" * 9000])
async def test_garbage_is_untrusted_not_a_crash(socket: Path, credential: bytes) -> None:
    with pytest.raises(Untrusted):
        await Munge(socket).decode(credential)


async def test_munged_away_is_a_link_error_and_no_verdict_on_the_caller(socket: Path, tmp_path: Path) -> None:
    with pytest.raises(LinkError) as caught:
        await Munge(tmp_path / "none").encode("x", for_uid=0)
    assert not isinstance(caught.value, Untrusted)
    assert caught.value.transient


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("no-such-host.invalid:1", "[A-Z].*"),
        ("127.0.0.1:http", ".*http.*"),
        ("127.0.0.1", ".+"),
    ],
)
async def test_no_controller_is_a_link_error(socket: Path, address: str, why: str) -> None:
    with pytest.raises(LinkError, match=rf"^no controller at {address}: {why}$"):
        await open_link(address, munge=Munge(socket))


async def test_what_listens_and_is_no_controller_is_told_as_such(tmp_path: Path) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-other\r\n")
        writer.close()

    async with await asyncio.start_server(other, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(LinkError, match=f"^no controller at 127.0.0.1:{port}: something else listens there$"):
            await open_link(f"127.0.0.1:{port}", munge=Munge(tmp_path / "none"))


async def test_who_takes_the_controller_for_another_user_is_told(socket: Path) -> None:
    server, port = await serve(Echo(), listen="127.0.0.1:0", munge=Munge(socket), trusted=ROOT)
    with pytest.raises(Untrusted, match=r"^munge: Unauthorized credential") as told:
        async with await open_link(f"127.0.0.1:{port}", munge=Munge(socket), server_uid=5) as link:
            await link.status()
    assert "--controller-uid" in told.value.hint
    await server.stop(None)


async def test_a_controller_that_hangs_is_told_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "DIAL_S", 0.05)
    with Socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # the kernel takes the call, and nobody answers
        with pytest.raises(LinkError, match=r"no controller at \S+: no answer$"):
            await open_link(f"127.0.0.1:{silent.getsockname()[1]}", munge=Munge(tmp_path / "none"))


async def test_agent_learns_that_the_controller_died(socket: Path) -> None:
    server, port = await serve(Echo(), listen="127.0.0.1:0", munge=Munge(socket), trusted=ROOT)
    async with await open_link(f"127.0.0.1:{port}", munge=Munge(socket)) as link, link.session() as session:
        await server.stop(None)
        with pytest.raises(LinkError):
            async for _ in session:
                pass
        with pytest.raises(LinkError):
            await session.send(pb.FromAgent())


async def test_second_controller_on_the_port_is_an_error(socket: Path) -> None:
    async with running(socket, Echo()) as address:
        with pytest.raises(LinkError, match="can't listen"):
            await serve(Echo(), listen=address, munge=Munge(socket), trusted=ROOT)


def as_nobody(address: str, socket: Path) -> str:
    """Status, apply and session as uid 65534, in a process of its own."""
    script = """
import asyncio, encodings.idna, os, sys  # what is imported late must be readable by all: import it now
from pathlib import Path
from slurm_plugin.errors import Untrusted
from slurm_plugin.link.client import open_link
from slurm_plugin.link.munge import Munge
os.setgid(65534); os.setuid(65534)
async def main():
    async with await open_link(sys.argv[1], munge=Munge(Path(sys.argv[2]))) as link:
        print((await link.status()).pool)
        try: await link.apply()
        except Untrusted as error: print("apply:", error)
        try:
            async with link.session(): print("session!")
        except Untrusted as error: print("session:", error)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, address, str(socket)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


IDLERS = 1500


@pytest.fixture
def files() -> Iterator[None]:
    """Room for both ends of many connections in this one process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_file_limit()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def idlers(address: str, count: int) -> list[Socket]:
    """Connections of somebody who says nothing."""
    host, port = address.split(":")
    some = []
    for nth in range(count):
        one = Socket()
        one.setblocking(False)
        one.connect_ex((host, int(port)))
        some.append(one)
        if nth % 100 == 0:
            await asyncio.sleep(0)
    return some


def cut_off(one: Socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def until_cut_off(some: Sequence[Socket]) -> None:
    async with asyncio.timeout(20):
        while not all(cut_off(one) for one in some):  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0.05)
    for one in some:
        one.close()


@pytest.mark.usefixtures("files")
async def test_whoever_connects_and_says_nothing_is_cut_off_and_keeps_nobody_out(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_MS", 1000)
    handler = Echo()
    async with running(socket, handler) as address:
        silent = await idlers(address, IDLERS)
        await until_cut_off(silent)
        async with await open_link(address, munge=Munge(socket)) as link, link.session() as session:
            assert (await link.status()).pool == "hpc"
            await session.send(pb.FromAgent(released=pb.Released(job_id=7)))
            assert (await anext(aiter(session))).verdict.job_id == 7


async def test_connections_leave_descriptors_for_children_and_there_is_room_again(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is reached before the last descriptor is taken; then sessions that are there go on."""
    monkeypatch.setattr(server, "HANDSHAKE_MS", 1000)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(server, "SPARE_FILES", soft - 20)
    async with running(socket, Echo()) as address:
        async with await open_link(address, munge=Munge(socket)) as link, link.session() as session:
            silent = await idlers(address, 40)
            await until_cut_off(silent[20:])  # at once, there is no room for them
            assert not all(cut_off(one) for one in silent[:19])
            await session.send(pb.FromAgent(released=pb.Released(job_id=7)))
            assert (await anext(aiter(session))).verdict.job_id == 7
            await until_cut_off(silent[:20])
        async with await open_link(address, munge=Munge(socket)) as link:
            assert (await link.status()).pool == "hpc"


def test_takes_as_many_descriptors_as_it_may() -> None:
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (256, 2000));"
        "from slurm_plugin.link.server import raise_file_limit as go; go(); print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "(2000, 2000)\n"


@pytest.mark.usefixtures("files")
async def test_those_who_have_made_no_call_have_no_more_connections_than_there_is_memory_for(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_MS", 1000)
    monkeypatch.setattr(server, "CONNECTIONS", 20)
    async with running(socket, Echo()) as address:
        async with await open_link(address, munge=Munge(socket)) as link, link.session() as session:
            silent = await idlers(address, 40)
            await until_cut_off(silent[20:])  # at once, there is no room for them
            assert not all(cut_off(one) for one in silent[:19])
            await session.send(pb.FromAgent(released=pb.Released(job_id=7)))
            assert (await anext(aiter(session))).verdict.job_id == 7
            await until_cut_off(silent[:20])
        async with await open_link(address, munge=Munge(socket)) as link:
            assert (await link.status()).pool == "hpc"
