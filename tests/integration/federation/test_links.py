"""Two sites over real gRPC with mutual TLS: hello, credit, cut links, and peers that don't know how to behave."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from federation.errors import Unavailable
from federation.model.messages import Message
from federation.peer.links import OPTIONS, Links
from federation.peer.session import Border, Session
from federation.pki.gate import OPTIONS as GATE_OPTIONS
from federation.pki.gate import Gate, calling_site, open_port
from federation.pki.pace import Pace
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.proto.federation.v1.federation_pb2_grpc import FederationStub, add_FederationServicer_to_server
from federation.runner import Runner
from federation.server.service import Service
from tests.integration.federation.pki.world import World, dialled, now, world
from tests.integration.federation.site import SPEC, Net, Site, all_done, until


class End:
    """A site with its links."""

    def __init__(self, site: Site, certificates: World) -> None:
        self.site, self.certificates = site, certificates
        self.links = Links(Border(site=site.name, software="test", receive=self.receive), self.linked)
        self.heard = asyncio.Event()

    async def receive(self, sender: str, messages: Sequence[Message]) -> None:
        if self.site.runner is not None:
            await self.site.runner.messages(sender, messages)

    async def linked(self, site: str, up: bool) -> None:
        if self.site.runner is not None:
            await self.site.runner.link(site, up)
        self.heard.set()

    @asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator[int]:
        keeper = self.certificates.keeper(self.site.name)
        gate = Gate(keeper, clock=now, pace=Pace(lambda _: None, time.monotonic))
        server = grpc.aio.server(interceptors=[gate], options=(*GATE_OPTIONS, *OPTIONS))
        add_FederationServicer_to_server(Service(self.links, calling_site), server)
        port = open_port(server, f"127.0.0.1:{port}", keeper)
        await server.start()
        try:
            yield port
        finally:
            await server.stop(None)

    @asynccontextmanager
    async def dialling(self, site: str, port: int) -> AsyncIterator[None]:
        @asynccontextmanager
        async def dial() -> AsyncIterator[grpc.aio.Channel]:
            async with dialled(self.certificates, self.site.name, site, f"127.0.0.1:{port}") as line:
                yield line.channel

        task = asyncio.create_task(self.links.keep(site, dial))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def ends(tmp_path: Path) -> tuple[End, End]:
    (tmp_path / "certificates").mkdir()
    net, certificates = Net(tmp_path), world(tmp_path / "certificates", "edge", "hpc")
    edge, hpc = End(net.site("edge", "hpc"), certificates), End(net.site("hpc", "edge"), certificates)
    edge.site.backend.full = True
    return edge, hpc


@asynccontextmanager
async def up(end: End) -> AsyncIterator[Runner]:
    async with end.site.up(end.links) as runner:
        yield runner


async def test_jobs_go_over_a_real_link_more_than_there_is_credit_for(ends: tuple[End, End]) -> None:
    edge, hpc = ends
    async with up(edge) as runner, up(hpc), hpc.served() as port, edge.dialling("hpc", port):
        tokens = [uuid4() for _ in range(700)]
        await asyncio.gather(*(runner.accept(token, SPEC) for token in tokens))
        await until(lambda: all_done(edge.site, tokens))
    assert set(hpc.site.backend.ran.values()) == {1}
    assert len(hpc.site.backend.ran) == 700


async def test_a_server_that_goes_and_comes_is_dialled_again(ends: tuple[End, End]) -> None:
    edge, hpc = ends
    async with up(edge) as runner:
        async with up(hpc), hpc.served() as port:
            pass
        async with edge.dialling("hpc", port):
            token = uuid4()
            await runner.accept(token, SPEC)
            for _ in range(2):
                edge.heard.clear()
                async with up(hpc), hpc.served(port):
                    await asyncio.wait_for(edge.heard.wait(), 30)
                    await until(lambda: all_done(edge.site, [token]))
    assert list(hpc.site.backend.ran.values()) == [1]


async def test_a_link_that_is_cut_when_nobody_can_be_told_is_not_dialled_again(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a peer is struck off, or the daemon ends, and the journal takes nothing more."""
    edge, hpc = ends
    linked = asyncio.Event()

    async def tell(site: str, up: bool) -> None:
        if not up:
            raise Unavailable("the journal is closed")
        linked.set()

    monkeypatch.setattr(edge.links, "_linked", tell)
    async with up(edge), up(hpc), hpc.served() as port, asyncio.timeout(30), edge.dialling("hpc", port):
        await linked.wait()


@pytest.mark.parametrize("at", ["edge", "hpc"])
async def test_an_end_that_fails_to_speak_is_linked_anew(
    ends: tuple[End, End], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge, hpc = ends
    whole = Session.outgoing
    failed: list[Session] = []

    async def outgoing(session: Session) -> AsyncIterator[pb.Envelope]:
        async for envelope in whole(session):
            if not failed and session._border.site == at and session.agreed is not None:
                failed.append(session)
                raise ZeroDivisionError
            yield envelope

    monkeypatch.setattr(Session, "outgoing", outgoing)
    async with up(edge) as runner, up(hpc), hpc.served() as port, edge.dialling("hpc", port):
        token = uuid4()
        await runner.accept(token, SPEC)
        await until(lambda: all_done(edge.site, [token]))
    assert len(failed) == 1


NOT_HELLO = pb.Envelope(release=pb.Release())
BAD = pb.Envelope(release=pb.Release(key=pb.Key(token=b"short", attempt=1)))


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ([NOT_HELLO], "said no hello"),
        ([pb.Envelope(hello=pb.Hello(oldest_version=9, newest_version=9))], "no common version"),
        ([pb.Envelope(hello=pb.Hello(oldest_version=1, newest_version=1)), BAD], "sent what no site may send"),
    ],
)
async def test_a_peer_that_does_not_speak_our_language_is_told(
    ends: tuple[End, End], said: list[pb.Envelope], answer: str
) -> None:
    _, hpc = ends

    async def speak() -> AsyncIterator[pb.Envelope]:
        for envelope in said:
            yield envelope
        await asyncio.Event().wait()

    async with up(hpc), hpc.served() as port, dialled(hpc.certificates, "edge", "hpc", f"127.0.0.1:{port}") as line:
        call = FederationStub(line.channel).Control(speak())
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in call:
                pass
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert answer in (raised.value.details() or "")


async def test_a_message_that_is_too_large_ends_its_stream_and_nothing_else(ends: tuple[End, End]) -> None:
    edge, hpc = ends
    async with up(edge) as runner, up(hpc), hpc.served() as port:
        async with dialled(hpc.certificates, "edge", "hpc", f"127.0.0.1:{port}") as line:
            huge = pb.Envelope(submit=pb.Submit(spec=pb.Spec(script=bytes(9 << 20))))

            async def speak() -> AsyncIterator[pb.Envelope]:
                yield huge
                await asyncio.Event().wait()

            with pytest.raises(grpc.aio.AioRpcError) as raised:
                async for _ in FederationStub(line.channel).Control(speak()):
                    pass
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with edge.dialling("hpc", port):
            token = uuid4()
            await runner.accept(token, SPEC)
            await until(lambda: all_done(edge.site, [token]))
