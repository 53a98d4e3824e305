"""The controller's end: one TLS port, every call admitted through munge before its handler sees it."""

import contextlib
import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio

from slurm_plugin.errors import LinkError, Untrusted, VgpuError
from slurm_plugin.link.handshake import METADATA_KEY, answer_payload, nonce_of_call
from slurm_plugin.link.identity import Identity, make_identity
from slurm_plugin.link.munge import Munge, tells_of_the_clock
from slurm_plugin.proto.vgpu.v1 import pool_pb2, pool_pb2_grpc

log = logging.getLogger(__name__)

MESSAGE_BYTES = 16 << 20  # longest message either way; a node of 16 GPUs is under 64 KiB, a pool's status under 10 MiB
STREAMS = 8192  # most sessions at once on one connection; each agent has a connection of its own
HANDSHAKE_MS = 5_000  # who connects and says nothing is cut off
IDLE_MS = 60_000  # and who makes no call; an agent's session is one
SPARE_FILES = 256  # descriptors that connections leave for Slurm's commands and the controller's own files
# Connections beside two for each agent. Who has not made a call yet may be anybody, and costs 80 KiB.
CONNECTIONS = 4096
FILES = 65_536  # descriptors the controller wants, if the host lets it have so many
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", STREAMS),
    ("grpc.max_connection_idle_ms", IDLE_MS),
    ("grpc.keepalive_time_ms", 15_000),  # a dead agent is seen within 20 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # agents ping each 10 s
    ("grpc.so_reuseport", 0),  # a second controller on the port is an error, not a coin toss
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    uid: int
    peer: str  # address, for the log
    trusted: bool = False  # root, SlurmUser, or whom the controller runs as


Send = Callable[[pool_pb2.ToAgent], Awaitable[None]]


class PoolHandler(Protocol):
    """What the controller does with calls that were admitted. A VgpuError it raises is raised again at the caller."""

    async def session(self, caller: Caller, received: AsyncIterator[pool_pb2.FromAgent], send: Send) -> None:
        """One agent, until it goes: `received` then ends. The session ends when this returns."""

    async def status(self, caller: Caller) -> pool_pb2.PoolStatus: ...

    async def plan(self, caller: Caller, pool_yaml: str) -> pool_pb2.PlanReply:
        """`pool_yaml` empty: the running one."""

    async def apply(self, caller: Caller) -> pool_pb2.ApplyReply: ...

    async def explain(self, caller: Caller, job_id: int, element: int | None) -> pool_pb2.ExplainReply:
        """`element`: of the array `job_id`."""

    async def pause(self, caller: Caller, wanted: bool, reason: str) -> pool_pb2.PauseReply: ...

    async def history(self, caller: Caller, node: str, since: float, limit: int) -> pool_pb2.HistoryReply: ...


class Gate:
    """Who may call: a munge credential made for this very certificate, and for some calls by a trusted user only."""

    def __init__(
        self, *, identity: Identity, munge: Munge, trusted: frozenset[int], mistimed: Callable[[str], None]
    ) -> None:
        self._mistimed = mistimed
        self._identity = identity
        self._munge = munge
        self._trusted = trusted

    async def admit(self, context: Any, *, trusted_only: bool) -> Caller:
        """Check the caller and answer with our own credential. Raises Untrusted, LinkError (munged is away)."""
        metadata = dict(context.invocation_metadata() or ())
        credential = metadata.get(METADATA_KEY, b"")
        if not isinstance(credential, bytes) or not credential:
            raise Untrusted("the call carries no munge credential")
        try:
            signed = await self._munge.decode(credential)
        except Untrusted as error:
            if tells_of_the_clock(error):
                self._mistimed(_host(str(context.peer())))
            raise
        nonce = nonce_of_call(signed.payload, self._identity.fingerprint)
        if trusted_only and signed.uid not in self._trusted:
            raise Untrusted(f"uid {signed.uid} may not make this call", hint="run it as root or SlurmUser")
        answer = await self._munge.encode(answer_payload(nonce, self._identity.fingerprint), for_uid=signed.uid)
        await context.send_initial_metadata(((METADATA_KEY, answer),))
        return Caller(uid=signed.uid, peer=str(context.peer()), trusted=signed.uid in self._trusted)


def _host(peer: str) -> str:
    """Of "ipv4:10.0.0.7:4321" or "ipv6:%5Bfd00::7%5D:4321"."""
    return unquote(peer).rpartition(":")[0].partition(":")[2].strip("[]")


_Reply = TypeVar("_Reply")


class _Servicer(pool_pb2_grpc.PoolServicer):
    def __init__(self, gate: Gate, handler: PoolHandler) -> None:
        self._gate = gate
        self._handler = handler

    async def Session(self, request_iterator: AsyncIterator[pool_pb2.FromAgent], context: Any) -> None:
        async def work() -> None:
            caller = await self._gate.admit(context, trusted_only=True)
            await self._handler.session(caller, request_iterator, context.write)

        await _answered(context, work())

    async def Status(self, request: pool_pb2.StatusRequest, context: Any) -> pool_pb2.PoolStatus:  # noqa: ARG002
        return await self._unary(context, self._handler.status, trusted_only=False)

    async def Plan(self, request: pool_pb2.PlanRequest, context: Any) -> pool_pb2.PlanReply:
        plan = self._handler.plan
        return await self._unary(context, lambda caller: plan(caller, request.pool_yaml), trusted_only=False)

    async def Apply(self, request: pool_pb2.ApplyRequest, context: Any) -> pool_pb2.ApplyReply:  # noqa: ARG002
        return await self._unary(context, self._handler.apply, trusted_only=True)

    async def Explain(self, request: pool_pb2.ExplainRequest, context: Any) -> pool_pb2.ExplainReply:
        explain, element = self._handler.explain, request.element if request.HasField("element") else None
        return await self._unary(context, lambda caller: explain(caller, request.job_id, element), trusted_only=False)

    async def Pause(self, request: pool_pb2.PauseRequest, context: Any) -> pool_pb2.PauseReply:
        pause = self._handler.pause
        handle = lambda caller: pause(caller, request.pause, request.reason)  # noqa: E731
        return await self._unary(context, handle, trusted_only=True)

    async def History(self, request: pool_pb2.HistoryRequest, context: Any) -> pool_pb2.HistoryReply:
        history = self._handler.history
        handle = lambda caller: history(caller, request.node, request.since, request.limit)  # noqa: E731
        return await self._unary(context, handle, trusted_only=False)

    async def _unary(
        self, context: Any, handle: Callable[[Caller], Awaitable[_Reply]], *, trusted_only: bool
    ) -> _Reply:
        async def work() -> _Reply:
            return await handle(await self._gate.admit(context, trusted_only=trusted_only))

        return await _answered(context, work())


async def _answered(context: Any, work: Awaitable[_Reply]) -> _Reply:
    """Turn an error of ours into the call's status: code, first line and hint."""
    try:
        return await work
    except Untrusted as error:
        log.warning("link.refused", extra={"peer": str(context.peer()), "why": str(error)})
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, _text(error))
    except LinkError as error:
        log.warning("link.munge_away", extra={"peer": str(context.peer()), "why": str(error)})
        await context.abort(grpc.StatusCode.UNAVAILABLE, _text(error))
    except VgpuError as error:
        status = grpc.StatusCode.UNAVAILABLE if error.transient else grpc.StatusCode.FAILED_PRECONDITION
        await context.abort(status, _text(error))
    raise AssertionError("abort() raises")


def _text(error: VgpuError) -> str:
    """Code, first line, hint, a line each; the client makes the same error of them."""
    return "\n".join((error.code, str(error).replace("\n", " "), error.hint))


def raise_file_limit() -> None:
    """Each agent and each caller holds a descriptor: let this process have FILES, or as many as it may."""
    with contextlib.suppress(ValueError, OSError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _limits(agents: int) -> tuple[tuple[str, int], ...]:
    """Anybody may connect: nobody can have all descriptors or memory, or hold one without a word."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES if soft == resource.RLIM_INFINITY else soft
    return (
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_allowed_incoming_connections", max(1, min(files - SPARE_FILES, CONNECTIONS + 2 * agents))),
    )


async def serve(
    handler: PoolHandler,
    *,
    listen: str,
    munge: Munge,
    trusted: frozenset[int],
    agents: int = 0,
    mistimed: Callable[[str], None] = lambda _: None,
) -> tuple[grpc.aio.Server, int]:
    """Start the port `listen` ("host:port", port 0: any free one). Returns the running server and its port.

    `agents`: how many there are to be. `mistimed` is told the address of who had a credential of another time.
    Raises LinkError when the port can't be had.
    """
    identity = make_identity()
    server = grpc.aio.server(options=(*_OPTIONS, *_limits(agents)))
    gate = Gate(identity=identity, munge=munge, trusted=trusted, mistimed=mistimed)
    pool_pb2_grpc.add_PoolServicer_to_server(_Servicer(gate, handler), server)
    tls = grpc.ssl_server_credentials([(identity.key_pem, identity.certificate_pem)])
    try:
        port = server.add_secure_port(listen, tls)
    except RuntimeError as error:
        raise LinkError(f"can't listen on {listen}: {error}", hint="is another controller running?") from None
    await server.start()
    return server, port
