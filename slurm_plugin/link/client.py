"""The caller's end, for agents and the command line: pin what the server shows, then make it prove who it is.

link = await open_link("ctl:6820", munge=Munge())
async with link, link.session() as session:
    await session.send(pool_pb2.FromAgent(inventory=...))
    async for message in session: ...
"""

import asyncio
import hashlib
import os
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from slurm_plugin.errors import LinkError, Untrusted, VgpuError
from slurm_plugin.link.handshake import (
    METADATA_KEY,
    NONCE_BYTES,
    SERVER_NAME,
    answer_payload,
    call_payload,
    check_answer,
)
from slurm_plugin.link.munge import Munge
from slurm_plugin.proto.vgpu.v1 import pool_pb2, pool_pb2_grpc

DIAL_S = 5.0  # longest wait for the certificate, and for the answer to a session
CALL_S = 30.0  # longest wait for status, plan, apply
MESSAGE_BYTES = 16 << 20  # longest message either way
_OPTIONS = (
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),  # never through a proxy that the environment names
)


class Link:
    """A pinned channel to one controller. Good for as long as that controller lives; dial again after a LinkError."""

    def __init__(self, channel: grpc.aio.Channel, *, fingerprint: str, munge: Munge, server_uid: int) -> None:
        self._channel = channel
        self._stub = pool_pb2_grpc.PoolStub(channel)
        self._fingerprint = fingerprint
        self._munge = munge
        self._server_uid = server_uid

    async def __aenter__(self) -> "Link":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def status(self) -> pool_pb2.PoolStatus:
        """Raises LinkError, Untrusted; so do plan and apply."""
        reply: pool_pb2.PoolStatus = await self._unary(self._stub.Status, pool_pb2.StatusRequest())
        return reply

    async def plan(self, pool_yaml: str = "") -> pool_pb2.PlanReply:
        reply: pool_pb2.PlanReply = await self._unary(self._stub.Plan, pool_pb2.PlanRequest(pool_yaml=pool_yaml))
        return reply

    async def apply(self) -> pool_pb2.ApplyReply:
        reply: pool_pb2.ApplyReply = await self._unary(self._stub.Apply, pool_pb2.ApplyRequest())
        return reply

    async def explain(self, job_id: int, element: int | None = None) -> pool_pb2.ExplainReply:
        """`element`: of the array `job_id`. Also raises RequestError."""
        request = pool_pb2.ExplainRequest(job_id=job_id, element=element)
        reply: pool_pb2.ExplainReply = await self._unary(self._stub.Explain, request)
        return reply

    async def pause(self, *, wanted: bool, reason: str = "") -> pool_pb2.PauseReply:
        """Also raises RequestError; so does history."""
        request = pool_pb2.PauseRequest(pause=wanted, reason=reason)
        reply: pool_pb2.PauseReply = await self._unary(self._stub.Pause, request)
        return reply

    async def history(self, *, node: str = "", since: float = 0.0, limit: int = 0) -> pool_pb2.HistoryReply:
        request = pool_pb2.HistoryRequest(node=node, since=since, limit=limit)
        reply: pool_pb2.HistoryReply = await self._unary(self._stub.History, request)
        return reply

    @asynccontextmanager
    async def session(self) -> AsyncIterator["Session"]:
        """The agent's stream, open and trusted both ways. Raises LinkError, Untrusted."""
        nonce, metadata = await self._credential()
        call = self._stub.Session(metadata=metadata)
        try:
            await self._check(call, nonce, DIAL_S)
            yield Session(call)
        finally:
            call.cancel()

    async def _unary(self, method: Any, request: Any) -> Any:
        nonce, metadata = await self._credential()
        call = method(request, metadata=metadata, timeout=CALL_S)
        try:
            reply = await call
        except grpc.aio.AioRpcError as error:
            raise _translated(error.code(), error.details()) from None
        await self._check(call, nonce, DIAL_S)
        return reply

    async def _credential(self) -> tuple[str, tuple[tuple[str, bytes], ...]]:
        nonce = secrets.token_hex(NONCE_BYTES)
        credential = await self._munge.encode(call_payload(nonce, self._fingerprint), for_uid=self._server_uid)
        return nonce, ((METADATA_KEY, credential),)

    async def _check(self, call: Any, nonce: str, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                metadata = dict(await call.initial_metadata() or ())
            refused = METADATA_KEY not in metadata and call.done()  # before it answered
            if refused and (code := await call.code()) is not grpc.StatusCode.OK:
                raise _translated(code, await call.details())
        except TimeoutError:
            raise LinkError(f"the controller did not answer within {wait_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise _translated(error.code(), error.details()) from None
        answer = metadata.get(METADATA_KEY, b"")
        if not answer:
            raise Untrusted("the controller did not prove who it is")
        signed = await self._munge.decode(answer)
        expected = answer_payload(nonce, self._fingerprint)
        check_answer(signed.payload, signed.uid, expected=expected, trusted=frozenset({0, self._server_uid}))


class Session:
    """The agent's side of one session. One task may send while another iterates."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def send(self, message: pool_pb2.FromAgent) -> None:
        """Returns when the transport has taken it. Raises LinkError when the session is over."""
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _translated(error.code(), error.details()) from None
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            raise LinkError("the session is over") from None

    async def __aiter__(self) -> AsyncIterator[pool_pb2.ToAgent]:
        """Messages, for ever: that the session is over, for whatever reason, raises LinkError or Untrusted."""
        while True:
            try:
                message = await self._call.read()
            except grpc.aio.AioRpcError as error:
                raise _translated(error.code(), error.details()) from None
            if message is grpc.aio.EOF:
                raise LinkError("the controller ended the session")
            yield message


async def open_link(address: str, *, munge: Munge, server_uid: int = 0) -> Link:
    """Dial a controller ("host:port") and pin the certificate it shows. Trust comes with each call's checked answer.

    `server_uid`: the user the controller runs as (root or SlurmUser); root is always believed too. Raises LinkError.
    """
    der = await _certificate(address)
    pinned = grpc.ssl_channel_credentials(root_certificates=ssl.DER_cert_to_PEM_cert(der).encode())
    channel = grpc.aio.secure_channel(address, pinned, options=_OPTIONS)
    return Link(channel, fingerprint=hashlib.sha256(der).hexdigest(), munge=munge, server_uid=server_uid)


async def _certificate(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE  # this dial only looks; the pinned channel and munge do the trusting
    unverified.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(DIAL_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=unverified)
            der: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.transport.abort()
    except (OSError, TimeoutError, ValueError) as error:
        raise LinkError(
            f"no controller at {address}: {_in_words(error)}", hint="is it running, and is the address right?"
        ) from None
    if not der:
        raise LinkError(f"{address} showed no certificate")
    return der


def _in_words(error: OSError | ValueError) -> str:
    """Without the address once more, and the numbers that asyncio and ssl write."""
    if isinstance(error, ssl.SSLError):
        return "something else listens there"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)
    return str(error) or "no answer"


def _translated(status: grpc.StatusCode, details: str | None) -> VgpuError:
    """The error the server raised, or a LinkError when it was gRPC itself that failed."""
    code, _, rest = (details or "").partition("\n")
    first, _, hint = rest.partition("\n")
    kind = _kinds(VgpuError).get(code)
    if kind is None:
        return LinkError(f"link to the controller failed: {status.name} {code}"[:300])
    return kind(first, hint=hint)


def _kinds(root: type[VgpuError]) -> dict[str, type[VgpuError]]:
    below = {code: kind for child in root.__subclasses__() for code, kind in _kinds(child).items()}
    return {root.code: root} | below
