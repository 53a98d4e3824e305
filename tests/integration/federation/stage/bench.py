"""A far side in this process that a test can make misbehave."""

import hashlib
import os
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from federation.access.acting import Account
from federation.model.job import Attempt
from federation.model.spec import Input, JobSpec
from federation.model.states import Outcome, Target
from federation.model.token import Key
from federation.ports import Place
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import CHUNK_BYTES
from federation.stage.far import Near
from federation.stage.fetch import Goal
from federation.stage.holdings import Holdings
from federation.stage.inputs import Inputs
from federation.stage.outputs import Outputs
from federation.stage.results import Results
from federation.store.opening import in_memory
from federation.store.store import Store
from federation.wire.convert import key_to_wire

T = TypeVar("T")

UID = 65534  # nobody's, whom every host has
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


@dataclass
class Far:
    """A site with one attempt that waits for its inputs. `ready`: it goes on when they are there."""

    folder: Path
    files: Sequence[pb.File]
    key: Key = KEY
    origin: str = "edge"
    ready: bool = False
    store: Store = field(init=False)
    here: list[Key] = field(default_factory=list)

    def __post_init__(self) -> None:
        connection = in_memory()
        self.store = Store(connection, journal=UUID(int=1))
        weakref.finalize(self.store, connection.close)
        inputs = tuple(Input(path=one.path, size=one.size, sha256=one.sha256) for one in self.files)
        attempt = Attempt(key=self.key, origin=self.origin, pool="batch", user="nobody", state=Target.STAGING)
        self.store.add_attempt(attempt, JobSpec(user="ann", inputs=inputs))
        self.told_of: defaultdict[Key, list[Callable[[], None]]] = defaultdict(list)
        self.work = self.folder / f"work.{self.key.token.int}"
        self.work.mkdir()
        os.chown(self.work, UID, UID)
        holdings = Holdings(self, {"batch": self}, least_uid=1000)
        self.inputs = Inputs(self.folder / "staging", holdings, self.told, self.watching)
        self.near = Near(self.origin, self.inputs, Results(holdings), Outputs(holdings, self.watching))

    @contextmanager
    def watching(self, key: Key, told: Callable[[], None]) -> Iterator[None]:
        self.told_of[key].append(told)
        try:
            yield
        finally:
            self.told_of[key].remove(told)

    def goes_to(self, state: Target, outcome: Outcome | None = None) -> None:
        known = self.store.attempt(self.key)
        assert known is not None
        self.store.save_attempt(replace(known, state=state, outcome=outcome), was=known, told=True)
        for told in tuple(self.told_of[self.key]):
            told()

    @property
    def heap(self) -> Path:
        """Where chunks that wait to be put together lie."""
        return self.folder / "staging" / f"{self.key.token}.{self.key.attempt}"

    async def read(self, call: Callable[[Store], T]) -> T:
        return call(self.store)

    async def place(self, key: Key, user: str) -> Place:
        return Place(folder=self.work, stdout=self.work / "o", stderr=self.work / "e")

    async def told(self, key: Key) -> None:
        self.here.append(key)
        if self.ready:
            self.goes_to(Target.READY)

    async def put(self, *parts: bytes, site: str = "edge") -> int:
        async def sent() -> AsyncIterator[pb.Chunk]:
            for one in parts:
                yield pb.Chunk(key=key_to_wire(self.key), sha256=hashlib.sha256(one).digest(), data=one)

        return (await self.inputs.put(site, sent())).chunks

    async def commit(self, *files: pb.File) -> list[bytes]:
        request = pb.CommitRequest(key=key_to_wire(self.key), manifest=pb.Manifest(files=files))
        return list((await self.inputs.commit("edge", request)).missing)

    async def missing(self) -> list[bytes]:
        """Chunks that have to be sent."""
        wanted = [one for file in self.files for one in file.chunks]
        asked = pb.ChunkList(key=key_to_wire(self.key), sha256=wanted)
        here = set((await self.inputs.which(self.origin, asked)).sha256)
        return [one for one in wanted if one not in here]
