"""A link whose other end has gone without a word, as with a NAT that forgot it, is noticed by both of its ends."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio

from federation.peer import links
from federation.peer.session import Border
from federation.pki.dial import dial
from federation.pki.gate import OPTIONS as GATE_OPTIONS
from federation.pki.gate import Gate, calling_site, open_port
from federation.pki.pace import Pace
from federation.proto.federation.v1.federation_pb2_grpc import add_FederationServicer_to_server
from federation.server.service import Service
from tests.integration.federation.pki.world import World, now, world
from tests.integration.federation.site import until

PORTION = 1 << 16
FASTER = 20  # times than the options of a daemon say
OPTIONS = tuple((name, value // FASTER if name.endswith("_ms") else value) for name, value in links.OPTIONS)


class Relay:
    """Between two ends. `mute`: both of its connections stay, and nothing comes through."""

    def __init__(self) -> None:
        self.speaks = asyncio.Event()
        self.speaks.set()

    @asynccontextmanager
    async def to(self, port: int) -> AsyncIterator[int]:
        tasks: set[asyncio.Task[None]] = set()

        async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            both = self._carry(reader, far_writer), self._carry(far_reader, writer)
            tasks.update(map(asyncio.create_task, both))

        server = await asyncio.start_server(taken, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(PORTION):
                await self.speaks.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            """An end that gave it up."""
        finally:
            writer.transport.abort()


class End:
    def __init__(self, site: str, certificates: World) -> None:
        self.site, self.certificates = site, certificates
        self.links = links.Links(Border(site=site, software="test", receive=self.receive), self.linked)
        self.up = False

    async def receive(self, *_: object) -> None:
        """Nothing is said but hello."""

    async def linked(self, _: str, up: bool) -> None:
        self.up = up

    @asynccontextmanager
    async def served(self) -> AsyncIterator[int]:
        keeper = self.certificates.keeper(self.site)
        gate = Gate(keeper, clock=now, pace=Pace(lambda _: None, time.monotonic))
        server = grpc.aio.server(interceptors=[gate], options=(*GATE_OPTIONS, *OPTIONS))
        add_FederationServicer_to_server(Service(self.links, calling_site), server)
        port = open_port(server, "127.0.0.1:0", keeper)
        await server.start()
        try:
            yield port
        finally:
            await server.stop(None)

    @asynccontextmanager
    async def dialling(self, site: str, port: int) -> AsyncIterator[None]:
        @asynccontextmanager
        async def dialled() -> AsyncIterator[grpc.aio.Channel]:
            credentials = self.certificates.credentials(self.site)
            line = await dial(f"127.0.0.1:{port}", site, credentials, now(), OPTIONS)
            try:
                yield line.channel
            finally:
                await line.channel.close()

        task = asyncio.create_task(self.links.keep(site, dialled))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_both_ends_notice_a_link_that_went_without_a_word_and_have_it_again(tmp_path: Path) -> None:
    certificates, relay = world(tmp_path, "edge", "hpc"), Relay()
    edge, hpc = End("edge", certificates), End("hpc", certificates)

    async def are(up: bool) -> bool:
        return edge.up is hpc.up is up

    async with hpc.served() as port, relay.to(port) as relayed, edge.dialling("hpc", relayed):
        await until(lambda: are(True))
        relay.speaks.clear()
        await until(lambda: are(False))
        relay.speaks.set()
        await until(lambda: are(True))
