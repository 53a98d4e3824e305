"""A far side in this process that a test can make misbehave."""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from federation.access.acting import Account
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import CHUNK_BYTES
from federation.stage.fetch import Goal

KEY = Key(UUID(int=7), 1)
ROOT = Account(name="root", uid=0, gid=0, groups=(0,))


def chunks(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def file_of(path: bytes, data: bytes) -> pb.File:
    hashes = [hashlib.sha256(one).digest() for one in chunks(data)]
    return pb.File(path=path, size=len(data), mode=0o644, chunks=hashes, sha256=hashlib.sha256(data).digest())


@dataclass
class Offer:
    """Offers files and outputs. `cut_after`: chunks until the link is cut, once. `spoil` changes what is sent."""

    files: Sequence[pb.File] = ()
    data: dict[bytes, bytes] = field(default_factory=dict)
    parts: Sequence[pb.OutputPart] = ()
    cut: Callable[[int], None] = lambda count: None
    spoil: Callable[[bytes], bytes] = lambda data: data
    sent: int = 0
    asked: list[pb.OutputAsk] = field(default_factory=list)

    @classmethod
    def of(cls, **files: bytes) -> "Offer":
        data = {hashlib.sha256(one).digest(): one for content in files.values() for one in chunks(content)}
        return cls(files=[file_of(name.encode(), content) for name, content in files.items()], data=data)

    async def which(self, request: pb.ChunkList) -> pb.ChunkList:
        raise AssertionError("nobody asks this here")

    async def put(self, chunks: AsyncIterator[pb.Chunk]) -> pb.PutReply:
        raise AssertionError("nobody asks this here")

    async def commit(self, request: pb.CommitRequest) -> pb.CommitReply:
        raise AssertionError("nobody asks this here")

    async def results(self, request: pb.ResultsRequest) -> pb.Manifest:
        return pb.Manifest(files=self.files)

    async def get(self, request: pb.ChunkList) -> AsyncIterator[pb.Chunk]:
        for sha256 in request.sha256:
            self.cut(self.sent)
            self.sent += 1
            yield pb.Chunk(sha256=sha256, data=self.spoil(self.data[sha256]))

    async def outputs(self, asks: AsyncIterator[pb.OutputAsk]) -> AsyncIterator[pb.OutputPart]:
        for part in self.parts:
            yield part


def goal(folder: Path, *patterns: bytes) -> Goal:
    return Goal(folder=folder, account=ROOT, patterns=patterns or (b"*",))
