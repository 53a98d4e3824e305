"""The service that other sites call. Give its handlers to a server behind a gate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TypeAlias

import grpc
import grpc.aio

from federation.errors import Refused
from federation.peer.links import Links
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.proto.federation.v1.federation_pb2_grpc import FederationServicer

LAST_WRITE_S = 1.0

_Context: TypeAlias = "grpc.aio.ServicerContext[pb.Envelope, pb.Envelope]"


class Service(FederationServicer):
    """`calling_site` tells, inside a handler, which site is at the other end, as its certificate proves it."""

    def __init__(self, links: Links, calling_site: Callable[[], str]) -> None:
        self._links = links
        self._calling_site = calling_site

    async def Control(self, request_iterator: AsyncIterator[pb.Envelope], context: _Context) -> None:
        session = self._links.session(self._calling_site())
        writing = asyncio.create_task(_write(session.outgoing(), context))
        refused: Refused | None = None
        try:
            await self._links.serve(session, request_iterator)
        except Refused as error:
            refused = error
        finally:
            await _ended(writing)
        if refused is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{refused}. {refused.hint}".strip())


async def _ended(writing: asyncio.Task[None]) -> None:
    """Let a write that has begun come to its end: gRPC can't say why it ends a stream in the middle of one."""
    await asyncio.wait((writing,), timeout=LAST_WRITE_S)
    writing.cancel()
    with suppress(asyncio.CancelledError, grpc.aio.UsageError):
        await writing


async def _write(envelopes: AsyncIterator[pb.Envelope], context: _Context) -> None:
    async for envelope in envelopes:
        await context.write(envelope)
