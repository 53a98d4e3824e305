"""A CA, sites with files of their own, and an echo behind a gate, for tests."""

import asyncio
import datetime
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from federation.access.rates import Rate
from federation.pki.authority import CERTIFICATE, CRL, SITE_FILE, Authority, create, hand_out
from federation.pki.certificates import LEAF_LIFE, Extra
from federation.pki.credentials import Credentials, Files, Keeper, Peer, load
from federation.pki.dial import Line, dial
from federation.pki.gate import OPTIONS, Gate, calling_site, open_port
from federation.pki.pace import Pace

ECHO, STREAM, SPEAK = "/test/Echo", "/test/Stream", "/test/Speak"
WAIT_S = 10.0
DAY = datetime.timedelta(days=1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass
class World:
    root: Path
    authority: Authority
    peers: list[Peer] = field(default_factory=list)

    def issue(self, site: str, *, at: datetime.datetime | None = None, life: datetime.timedelta = LEAF_LIFE) -> None:
        pair = self.authority.issue(site, Extra(), life, at or now())
        hand_out(self.authority, pair, self.root / site)

    def renew(self, site: str) -> None:
        hand_out(self.authority, self.authority.renew(site, LEAF_LIFE, now()), self.root / site)

    def revoke(self, site: str, *, told: tuple[str, ...]) -> None:
        """The new list reaches the sites `told`."""
        self.authority.revoke(site, None, now())
        for one in told:
            (self.root / one / CRL).write_bytes((self.authority.folder / CRL).read_bytes())

    def files(self, site: str) -> Files:
        folder = self.root / site
        pem = folder / SITE_FILE
        return Files(
            certificate=pem,
            key=pem,
            authorities=(folder / CERTIFICATE,),
            crls=(folder / CRL,),
            peers=tuple(self.peers),
        )

    def credentials(self, site: str) -> Credentials:
        return load(self.files(site))

    def keeper(self, site: str) -> Keeper:
        return Keeper(lambda: load(self.files(site)))


def world(root: Path, *sites: str) -> World:
    """A CA that gave each site a certificate; all are on the list of peers."""
    made = World(root=root, authority=create(root / "ca", "test", Extra(), now() - 3 * DAY))
    made.peers = [Peer(site=site) for site in sites]
    for site in sites:
        made.issue(site)
    return made


class _Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:
        async def echo(request: bytes, context: Any) -> bytes:
            return calling_site().encode() + b" " + request

        async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for request in requests:
                yield calling_site().encode() + b" " + request

        async def speak(requests: AsyncIterator[bytes], context: Any) -> None:
            async for request in requests:
                await context.write(request)

        if handler_call_details.method == ECHO:
            return grpc.unary_unary_rpc_method_handler(echo)
        shown = stream if handler_call_details.method == STREAM else speak
        return grpc.stream_stream_rpc_method_handler(shown)


@dataclass
class Served:
    address: str
    keeper: Keeper
    gate: Gate
    pace: Pace
    decisions: list[tuple[str, str, str]]


@asynccontextmanager
async def served(
    world: World, site: str, *, clock: Callable[[], datetime.datetime] = now, rate: Rate | None = None
) -> AsyncIterator[Served]:
    """`rate`: of the site `edge`; the others have none."""
    decisions: list[tuple[str, str, str]] = []
    keeper = world.keeper(site)
    pace = Pace(lambda site: rate if site == "edge" else None, time.monotonic)
    gate = Gate(keeper, clock=clock, pace=pace, decided=lambda *what: decisions.append(what))
    server = grpc.aio.server(interceptors=[gate], options=OPTIONS)
    server.add_generic_rpc_handlers((_Echo(),))
    port = open_port(server, "127.0.0.1:0", keeper)
    await server.start()
    try:
        yield Served(address=f"127.0.0.1:{port}", keeper=keeper, gate=gate, pace=pace, decisions=decisions)
    finally:
        await server.stop(None)


@asynccontextmanager
async def dialled(world: World, near: str, far: str, address: str) -> AsyncIterator[Line]:
    line = await dial(address, far, world.credentials(near), now())
    try:
        yield line
    finally:
        await line.channel.close()


async def echo(line: Line, what: bytes = b"hello") -> bytes:
    return await echoes(line.channel)(what, timeout=WAIT_S)


def echoes(channel: grpc.aio.Channel) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]":
    """What its other end does with bytes."""
    return channel.unary_unary(ECHO)


async def exchange(call: Any, what: bytes) -> bytes:
    """One message there and back on an open stream."""
    await call.write(what)
    reply: bytes = await asyncio.wait_for(call.read(), WAIT_S)
    return reply
