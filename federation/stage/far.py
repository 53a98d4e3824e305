"""The far side of a job, as its origin sees it: another site over gRPC, or this one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Protocol

import grpc.aio

from federation.errors import Unavailable
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.proto.federation.v1.federation_pb2_grpc import FederationStub
from federation.stage.inputs import Inputs
from federation.stage.outputs import Outputs
from federation.stage.results import Results
from federation.tasks import heed
from federation.wire.status import from_status


class Far(Protocol):
    """All raise Refused for good, Unavailable for a cut or anything that may be asked again."""

    async def which(self, request: pb.ChunkList) -> pb.ChunkList: ...

    async def put(self, chunks: AsyncIterator[pb.Chunk]) -> pb.PutReply: ...

    async def commit(self, request: pb.CommitRequest) -> pb.CommitReply: ...

    async def results(self, request: pb.ResultsRequest) -> pb.Manifest: ...

    def get(self, request: pb.ChunkList) -> AsyncIterator[pb.Chunk]: ...

    def outputs(self, asks: AsyncIterator[pb.OutputAsk]) -> AsyncIterator[pb.OutputPart]: ...


class Near:
    """This site's own pools, with no wire between."""

    def __init__(self, site: str, inputs: Inputs, results: Results, outputs: Outputs) -> None:
        self._site, self._inputs, self._results, self._outputs = site, inputs, results, outputs

    async def which(self, request: pb.ChunkList) -> pb.ChunkList:
        return await self._inputs.which(self._site, request)

    async def put(self, chunks: AsyncIterator[pb.Chunk]) -> pb.PutReply:
        return await self._inputs.put(self._site, chunks)

    async def commit(self, request: pb.CommitRequest) -> pb.CommitReply:
        return await self._inputs.commit(self._site, request)

    async def results(self, request: pb.ResultsRequest) -> pb.Manifest:
        return await self._results.results(self._site, request)

    def get(self, request: pb.ChunkList) -> AsyncIterator[pb.Chunk]:
        return self._results.get(self._site, request)

    def outputs(self, asks: AsyncIterator[pb.OutputAsk]) -> AsyncIterator[pb.OutputPart]:
        return self._outputs.serve(self._site, asks)


class Remote:
    """Over a channel that is proven to be that site's: each call is a stream of its own beside the control stream."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = FederationStub(channel)

    async def which(self, request: pb.ChunkList) -> pb.ChunkList:
        with _told():
            reply: pb.ChunkList = await self._stub.Which(request)
        return reply

    async def put(self, chunks: AsyncIterator[pb.Chunk]) -> pb.PutReply:
        sent = _Sent(chunks)
        try:
            with _told():
                reply: pb.PutReply = await self._stub.Put(sent.all())
        except Unavailable as error:
            raise (sent.failed or error) from None
        return reply

    async def commit(self, request: pb.CommitRequest) -> pb.CommitReply:
        with _told():
            reply: pb.CommitReply = await self._stub.Commit(request)
        return reply

    async def results(self, request: pb.ResultsRequest) -> pb.Manifest:
        with _told():
            reply: pb.Manifest = await self._stub.Results(request)
        return reply

    async def get(self, request: pb.ChunkList) -> AsyncIterator[pb.Chunk]:
        with _told():
            async for chunk in self._stub.Get(request):
                yield chunk

    async def outputs(self, asks: AsyncIterator[pb.OutputAsk]) -> AsyncIterator[pb.OutputPart]:
        with _told():
            async for part in self._stub.Outputs(asks):
                yield part


class _Sent:
    """What goes out over a call. gRPC tells nobody why it could not go on: `failed`."""

    def __init__(self, chunks: AsyncIterator[pb.Chunk]) -> None:
        self._chunks = chunks
        self.failed: Exception | None = None

    async def all(self) -> AsyncIterator[pb.Chunk]:
        try:
            async for chunk in self._chunks:
                yield chunk
        except Exception as error:
            self.failed = error
            raise


@contextmanager
def _told() -> Iterator[None]:
    """A call's end as one of our errors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_status(error) from None
    except grpc.aio.UsageError:  # the channel was closed when its link was cut
        raise Unavailable("the link was cut") from None
    except asyncio.CancelledError:  # gRPC's too, of a call that it gave up itself
        heed()
        raise Unavailable("the call was given up") from None
