"""The service that other sites call. Give its handlers to a server behind a gate."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio

from federation.engine.effects import Decided
from federation.errors import FedError, Refused
from federation.peer.links import Links
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.proto.federation.v1.federation_pb2_grpc import FederationServicer
from federation.stage.inputs import Inputs
from federation.stage.outputs import Outputs
from federation.stage.results import Results
from federation.tasks import ended
from federation.wire.status import to_status

T = TypeVar("T")

LAST_WRITE_S = 1.0

_Context: TypeAlias = "grpc.aio.ServicerContext[pb.Envelope, pb.Envelope]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """What this site, as a target, gives and takes of bytes."""

    inputs: Inputs
    results: Results
    outputs: Outputs


class Service(FederationServicer):
    """`calling_site` tells, inside a handler, which site is at the other end, as its certificate proves it.

    Without `bulk` it moves no bytes, and says so. `decided` hears of each of these calls that is refused.
    """

    def __init__(
        self,
        links: Links,
        calling_site: Callable[[], str],
        bulk: Bulk | None = None,
        decided: Callable[[Decided], None] = lambda _: None,
    ) -> None:
        self._links = links
        self._calling_site = calling_site
        self._bulk = bulk
        self._decided = decided

    async def Control(self, request_iterator: AsyncIterator[pb.Envelope], context: _Context) -> None:
        session = self._links.session(self._calling_site())
        serving = asyncio.ensure_future(self._links.serve(session, request_iterator))
        writing = asyncio.create_task(_write(session.outgoing(), context))
        writing.add_done_callback(lambda _: session.ended or serving.cancel())  # a link that is mute is none
        refused: Refused | None = None
        try:
            await serving
        except Refused as error:
            refused = error
        finally:
            await _ended(writing)
        if refused is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{refused}. {refused.hint}".strip())

    async def Which(self, request: pb.ChunkList, context: Any) -> pb.ChunkList:
        return await self._answered("Which", context, lambda: self._moves().inputs.which(self._calling_site(), request))

    async def Put(self, request_iterator: AsyncIterator[pb.Chunk], context: Any) -> pb.PutReply:
        return await self._answered(
            "Put", context, lambda: self._moves().inputs.put(self._calling_site(), request_iterator)
        )

    async def Commit(self, request: pb.CommitRequest, context: Any) -> pb.CommitReply:
        return await self._answered(
            "Commit", context, lambda: self._moves().inputs.commit(self._calling_site(), request)
        )

    async def Results(self, request: pb.ResultsRequest, context: Any) -> pb.Manifest:
        return await self._answered(
            "Results", context, lambda: self._moves().results.results(self._calling_site(), request)
        )

    async def Get(self, request: pb.ChunkList, context: Any) -> AsyncIterator[pb.Chunk]:
        async for chunk in self._told("Get", context, lambda: self._moves().results.get(self._calling_site(), request)):
            yield chunk

    async def Outputs(
        self, request_iterator: AsyncIterator[pb.OutputAsk], context: Any
    ) -> AsyncIterator[pb.OutputPart]:
        site = self._calling_site()
        async for part in self._told("Outputs", context, lambda: self._moves().outputs.serve(site, request_iterator)):
            yield part

    def _moves(self) -> Bulk:
        if self._bulk is None:
            raise Refused("this site moves no bytes")
        return self._bulk

    async def _answered(self, what: str, context: Any, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except (FedError, ValueError) as error:
            await self._aborted(what, context, error)

    async def _told(self, what: str, context: Any, parts: Callable[[], AsyncIterator[T]]) -> AsyncIterator[T]:
        try:
            async for part in parts():
                yield part
        except (FedError, ValueError) as error:
            await self._aborted(what, context, error)

    async def _aborted(self, what: str, context: Any, error: FedError | ValueError) -> NoReturn:
        told = error if isinstance(error, FedError) else Refused(f"this is what no site may send: {error}")
        if isinstance(told, Refused):
            self._decided(Decided(site=self._calling_site(), what=what, about="", verdict=False, why=str(told)))
        await context.abort(*to_status(told))
        raise AssertionError("abort() raises")


async def _ended(writing: asyncio.Task[None]) -> None:
    """Let a write that has begun come to its end: gRPC can't say why it ends a stream in the middle of one."""
    try:
        await asyncio.wait((writing,), timeout=LAST_WRITE_S)
    finally:
        await ended(writing)
    with suppress(asyncio.CancelledError, grpc.aio.UsageError):
        if writing.done():
            writing.result()


async def _write(envelopes: AsyncIterator[pb.Envelope], context: _Context) -> None:
    async for envelope in envelopes:
        await context.write(envelope)
