"""The server's end: TLS lets in who holds a certificate of a CA that is believed; the gate then asks of every call
whether that certificate is still believed, by its site, its dates, the revocation lists and the list of peers.

A call that goes on for days is asked again: at each change of what is believed, and at each `sweep`.
"""

import asyncio
import datetime
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from cryptography import x509

from federation.errors import ConfigError, Refused, Untrusted
from federation.pki.credentials import Credentials, Keeper
from federation.pki.judge import judge
from federation.pki.pace import Pace
from federation.wire.status import to_status

log = logging.getLogger(__name__)

WRITTEN_S = 1.0  # longest wait for the message of a call that is to be refused
MAX_KNOWN = 1024  # certificates whose verdict is remembered
HANDSHAKE_MS = 5_000  # who connects and says nothing is cut off
CONNECTIONS = 4096  # at once; a peer needs one or two
CALLS, MOST_CALLS = 20_000, 40_000  # that wait to be taken up; from the first number on some are dropped
TAKEN_UP_S = 600  # longest wait for that; gRPC's own 30 s end all outputs of a daemon that has no CPU for so long
MESSAGE_BYTES = 8 << 20  # longest message: a job's script and environment may have 5 MiB together
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.server.max_pending_requests", CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MOST_CALLS),
    ("grpc.server_max_unrequested_time_in_server", TAKEN_UP_S),
    ("grpc.so_reuseport", 0),  # a second daemon on the port is an error, not a coin toss
)

Decided = Callable[[str, str, str], None]  # site, or "" where none is proven; what was called, why not or ""
_site: ContextVar[str] = ContextVar("calling_site")


def calling_site() -> str:
    """Inside a handler behind a gate: the site at the other end, as its certificate proves it."""
    return _site.get()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A certificate that was believed."""

    leaf: x509.Certificate
    site: str
    ends_at: datetime.datetime


@dataclass(slots=True, eq=False)
class _Open:
    """A call that is being handled."""

    leaf: x509.Certificate
    task: asyncio.Task[Any]
    refusal: Untrusted | None = None


class Gate(grpc.aio.ServerInterceptor):
    """Give it to `grpc.aio.server(interceptors=[gate])`. `decided` is for the audit log: it hears of every refusal, and
    of the first call with each certificate.
    """

    def __init__(
        self,
        keeper: Keeper,
        *,
        clock: Callable[[], datetime.datetime],
        pace: Pace,
        decided: Decided = lambda *_: None,
    ) -> None:
        self._keeper = keeper
        self._pace = pace
        self._clock = clock
        self._decided = decided
        self._known: dict[bytes, _Known] = {}  # good ones, by PEM, as of the credentials in force
        self._open: set[_Open] = set()
        keeper.listen(self._changed)

    def _changed(self) -> None:
        self._known.clear()
        self.sweep()

    def sweep(self) -> None:
        """End the calls of those who are no longer believed. Call it every few seconds: certificates end, too."""
        for call in self._open:
            try:
                self._judge(call.leaf)
            except Untrusted as error:
                if call.refusal is None:
                    call.refusal = error
                    call.task.cancel()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        inner = next(
            filter(None, (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream))
        )

        async def guarded(request: Any, context: Any) -> Any:
            async with self._admitted(context, method) as site:
                if handler.request_streaming:
                    request = self._pace.stream(site, request)
                else:
                    await self._count(context, method, site)
                if inspect.isasyncgenfunction(inner):
                    return await _written(inner(request, context), context)
                return await inner(request, context)

        return _like(handler)(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    @asynccontextmanager
    async def _admitted(self, context: Any, method: str) -> AsyncIterator[str]:
        call, site = await self._admit(context, method)
        token = _site.set(site)
        self._open.add(call)
        try:
            yield site
        except asyncio.CancelledError:
            if call.refusal is None or call.task.uncancel():  # somebody else has cancelled it, too
                raise
            await self._refuse(context, method, call.refusal)
        finally:
            self._open.discard(call)
            _site.reset(token)

    async def _admit(self, context: Any, method: str) -> tuple[_Open, str]:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("gRPC handles calls in tasks")
        try:
            known = self._believed(context, method)
        except Untrusted as error:
            await self._refuse(context, method, error)
            raise AssertionError("abort() raises") from None
        return _Open(leaf=known.leaf, task=task), known.site

    async def _count(self, context: Any, method: str, site: str) -> None:
        try:
            self._pace.call(site)
        except Refused as error:
            await self._refuse(context, method, error)

    async def _refuse(self, context: Any, method: str, error: Untrusted | Refused) -> None:
        log.warning("gate.refused", extra={"peer": str(context.peer()), "method": method, "why": str(error)})
        self._decided(error.site if isinstance(error, Untrusted) else "", method, str(error))
        too_often = isinstance(error, Refused)
        status, details, rich = to_status(error, grpc.StatusCode.RESOURCE_EXHAUSTED if too_often else None)
        await context.abort(status, details, rich)

    def _believed(self, context: Any, method: str) -> "_Known":
        shown = context.auth_context().get("x509_pem_cert")
        if not shown:
            raise Untrusted("the call shows no certificate", hint="peers speak TLS with a certificate of their own")
        pem = bytes(shown[0])
        known = self._known.get(pem)
        if known is None or known.ends_at <= self._clock():
            leaf = x509.load_pem_x509_certificate(pem)
            known = _Known(leaf=leaf, site=self._judge(leaf), ends_at=leaf.not_valid_after_utc)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[pem] = known
            self._decided(known.site, method, "")
        return known

    def _judge(self, leaf: x509.Certificate) -> str:
        return judge(leaf, self._keeper.current.trust, self._clock())


async def _written(messages: AsyncGenerator[Any, None], context: Any) -> None:
    """Until they end, or the caller has gone: gRPC would log that as a fault of ours."""
    async with aclosing(messages):
        async for message in messages:
            writing = asyncio.ensure_future(context.write(message))
            try:
                await asyncio.shield(writing)
            except grpc.aio.InternalError:
                return
            except asyncio.CancelledError:
                # gRPC sends no status while a message of the same call is on its way.
                await asyncio.wait({writing}, timeout=WRITTEN_S)
                writing.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise


def _like(handler: Any) -> Any:
    """The maker of handlers of the same shape."""
    shapes = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return shapes[bool(handler.request_streaming), bool(handler.response_streaming)]


def open_port(server: grpc.aio.Server, listen: str, keeper: Keeper) -> int:
    """Mutual TLS, 1.2 or newer, on "host:port"; each handshake uses what the keeper has then. Returns the port.

    Raises ConfigError when the port can't be had.
    """
    made = keeper.current, _configuration(keeper.current)

    def now() -> grpc.ServerCertificateConfiguration:  # asked at each handshake, on a thread of gRPC's
        nonlocal made
        current = keeper.current
        if made[0] is not current:
            made = current, _configuration(current)
        return made[1]

    tls = grpc.dynamic_ssl_server_credentials(made[1], now, require_client_authentication=True)
    try:
        return server.add_secure_port(listen, tls)
    except RuntimeError as error:
        raise ConfigError(f"can't listen on {listen}: {error}", hint="is another daemon running?") from None


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    pair = (credentials.own.key_pem, credentials.own.certificate_pem)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=credentials.authorities_pem)
