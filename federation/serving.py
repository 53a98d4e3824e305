"""A site's gRPC in service: the port that peers dial, the links to peers that we dial, and their bytes."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import grpc
import grpc.aio
from grpc_health.v1.health import aio as grpc_health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from federation.access.audit import Audit, Entry
from federation.access.rates import Rate
from federation.access.signing import Request, Signature, Verifier, sign
from federation.config import FedConfig, PeerRules
from federation.engine.effects import Decided
from federation.errors import FedError
from federation.model.messages import Message, Rooms, Submit
from federation.peer.faults import Faults
from federation.peer.links import OPTIONS, Dial, Links
from federation.peer.session import Border, messages_in
from federation.pki.credentials import Keeper
from federation.pki.dial import Far as Address
from federation.pki.dial import connected
from federation.pki.gate import OPTIONS as GATE_OPTIONS
from federation.pki.gate import Gate, calling_site, open_port
from federation.pki.pace import Pace
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.proto.federation.v1.federation_pb2_grpc import add_FederationServicer_to_server
from federation.runner import Runner
from federation.server.service import Bulk, Service
from federation.stage.far import Remote
from federation.tasks import ended

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Federation"].full_name  # that health is asked of
STOP_S = 2.0  # for calls to come to their end


def now() -> datetime:
    return datetime.now(UTC)


class Signing:
    """Signs each job when it is sent, and checks each that comes."""

    def __init__(self, site: str, keeper: Keeper, audit: Audit) -> None:
        self._site, self._keeper, self._audit = site, keeper, audit
        self._verifier = Verifier(keeper.current.trust)
        keeper.listen(self._changed)

    def _changed(self) -> None:
        self._verifier = Verifier(self._keeper.current.trust)

    def sign(self, target: str, submit: Submit) -> pb.Signature:
        request = Request(origin=self._site, target=target, pool=submit.pool, key=submit.key, spec=submit.spec)
        signature = sign(request, self._keeper.current.own)
        return pb.Signature(value=signature.value, certificate=signature.certificate)

    def check(self, origin: str, submit: Submit, shown: pb.Signature) -> str:
        """Why it is not believed, or ""."""
        request = Request(origin=origin, target=self._site, pool=submit.pool, key=submit.key, spec=submit.spec)
        key, why = b"", ""
        try:
            key = self._verifier.verify(request, Signature(value=shown.value, certificate=shown.certificate), now())
        except FedError as error:
            why = str(error)
        about = f"{submit.key} for {submit.spec.user} in {submit.pool}"
        told = why or f"signed with {key.hex()}"
        self._audit.write(Entry(at=time.time(), who=origin, what="signature", about=about, verdict=not why, why=told))
        return why


@dataclass
class Lines:
    """Channels to the sites that we dial, while they are up."""

    remotes: dict[str, Remote] = field(default_factory=dict)
    tasks: dict[Address, "asyncio.Task[None]"] = field(default_factory=dict)
    leaving: set["asyncio.Task[None]"] = field(default_factory=set)  # of peers that are struck off
    faults: Faults = field(default_factory=Faults)

    def follow(self, known: Links, keeper: Keeper, peers: Mapping[str, PeerRules]) -> None:
        """Dial these from now on, and nobody else."""
        wanted = {Address(site=name, address=peer.address) for name, peer in peers.items() if peer.address}
        for address in self.tasks.keys() - wanted:
            task = self.tasks.pop(address)
            task.cancel()
            self.leaving.add(task)
            task.add_done_callback(self.leaving.discard)
        for address in wanted - self.tasks.keys():
            self.tasks[address] = asyncio.create_task(known.keep(address.site, self.dial(address, keeper)))

    def dial(self, far: Address, keeper: Keeper) -> Dial:
        @asynccontextmanager
        async def dialled() -> AsyncIterator[grpc.aio.Channel]:
            with self.faults.dialling(far.site):
                async with connected(far, keeper, now, OPTIONS) as channel:
                    self.remotes[far.site] = remote = Remote(channel)
                    try:
                        yield channel
                    finally:
                        if self.remotes.get(far.site) is remote:
                            del self.remotes[far.site]

        return dialled


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What a site's gRPC works with."""

    config: Callable[[], FedConfig]  # as it is in force
    keeper: Keeper
    audit: Audit
    lines: Lines

    def decided(self, one: Decided) -> None:
        entry = Entry(at=time.time(), who=one.site, what=one.what, about=one.about, verdict=one.verdict, why=one.why)
        self.audit.write(entry)


def links(front: Front, runner: Callable[[], Runner], software: str) -> Links:
    """A peer that we can't dial gets no jobs of ours, as their bytes could not be fetched: its pools are not heard."""
    own = front.config().site
    signing = Signing(own, front.keeper, front.audit)

    async def receive(sender: str, messages: Sequence[Message]) -> None:
        peer = front.config().peers.get(sender)
        if peer is None or not peer.address:
            messages = [one for one in messages if not isinstance(one, Rooms)]
        await runner().messages(sender, messages)

    async def linked(site: str, up: bool) -> None:
        log.info("peer.link", extra={"site": site, "up": up})
        if up:
            front.lines.faults.linked(site)
        await runner().link(site, up)

    border = Border(site=own, software=software, receive=receive, sign=signing.sign, check=signing.check)
    return Links(border, linked)


@asynccontextmanager
async def served(front: Front, known: Links, bulk: Bulk) -> AsyncIterator[int]:
    """The port that peers dial, and our own dialling, for as long as the block lasts. Yields the port; 0: none."""
    config, keeper = front.config(), front.keeper

    def decided(site: str, what: str, why: str) -> None:
        front.audit.write(Entry(at=time.time(), who=site or "?", what=what, verdict=not why, why=why))
        if site and why:
            front.lines.faults.note(site, why)

    def rate(site: str) -> Rate | None:
        peer = front.config().peers.get(site)
        return peer.messages if peer is not None else None

    gate = Gate(keeper, clock=now, pace=Pace(rate, time.monotonic, count=messages_in), decided=decided)
    server = grpc.aio.server(interceptors=[gate], options=(*GATE_OPTIONS, *OPTIONS))
    add_FederationServicer_to_server(Service(known, calling_site, bulk, front.decided), server)
    health = grpc_health.HealthServicer()
    add_HealthServicer_to_server(health, server)
    await health.set(SERVICE, HealthCheckResponse.SERVING)
    port = open_port(server, config.listen, keeper) if config.listen else 0
    await server.start()
    watch = asyncio.create_task(keeper.watch(gate.sweep))
    front.lines.follow(known, keeper, config.peers)
    try:
        yield port
    finally:
        await health.enter_graceful_shutdown()
        await ended(watch, *front.lines.tasks.values(), *front.lines.leaving)
        await server.stop(STOP_S)
