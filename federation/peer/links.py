"""Which sites can be reached now, over which session; and the dialling of those that are ours to dial."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import grpc
import grpc.aio

from federation.errors import FedError
from federation.model.messages import Message
from federation.peer.session import Border, Session
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.proto.federation.v1.federation_pb2_grpc import FederationStub
from federation.tasks import heed
from federation.wire.convert import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

FIRST_REDIAL_S, MOST_REDIAL_S = 0.5, 30.0
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
)
"""Of both ends: a link whose packets are lost is noticed within half a minute, one whose far end takes them and says
nothing within a minute; and neither end takes the other's pings for abuse.
"""

Dial = Callable[[], AbstractAsyncContextManager[grpc.aio.Channel]]
"""A channel to one site, already proven to be it. Raises FedError."""


class Links:
    """The runner's `Peers`. A site may have two sessions for a moment; the newest is used."""

    def __init__(self, border: Border, linked: Callable[[str, bool], Awaitable[None]]) -> None:
        self._border = border
        self._linked = linked
        self._sessions: dict[str, list[Session]] = {}

    def send(self, site: str, message: Message) -> bool:
        sessions = self._sessions.get(site)
        return sessions[-1].send(message) if sessions else False

    def session(self, site: str) -> Session:
        return Session(site, self._border)

    async def serve(self, session: Session, incoming: AsyncIterator[pb.Envelope]) -> None:
        """Run a session to its end. Raises what `Session.run` raises."""
        async with self._known(session) as ready:
            await session.run(incoming, ready)

    async def keep(self, site: str, dial: Dial) -> None:
        """Dial until cancelled: anew whenever the session has ended, later and later while nobody answers."""
        wait_s = FIRST_REDIAL_S
        while True:
            session = self.session(site)
            try:
                async with dial() as channel:
                    call = FederationStub(channel).Control(session.outgoing())
                    await self.serve(session, aiter(call))
            except (FedError, grpc.aio.AioRpcError) as error:
                heed()
                why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                log.info("peer.unreachable", extra={"site": site, "why": why, "again_in_s": wait_s})
            except asyncio.CancelledError:  # gRPC's too, of a call whose requests failed
                heed()
                log.warning("peer.cut", extra={"site": site, "again_in_s": wait_s})
            except Exception:
                heed()
                log.exception("peer.failed", extra={"site": site, "again_in_s": wait_s})
            wait_s = FIRST_REDIAL_S if session.agreed else wait_s
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MOST_REDIAL_S)

    @asynccontextmanager
    async def _known(self, session: Session) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        sessions = self._sessions.setdefault(session.site, [])

        async def ready() -> None:
            sessions.append(session)
            await self._linked(session.site, True)

        try:
            yield ready
        finally:
            if session in sessions:
                sessions.remove(session)
                if not sessions:
                    await self._cut(session.site)

    async def _cut(self, site: str) -> None:
        """What ended the session is told by who ended it, and by no fault of this."""
        try:
            await self._linked(site, False)
        except FedError as error:
            log.warning("peer.cut_not_told", extra={"site": site, "code": error.code, "why": str(error)})
