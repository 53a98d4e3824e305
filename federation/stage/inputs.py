"""A target takes the inputs of an attempt: chunks first, in any order and resumed at will, then whole files of them.

What the files must be is in the job's spec, which its origin has signed: a list that says anything else is refused.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from uuid import UUID

from federation.access.acting import Account, acting_as
from federation.access.paths import Folder
from federation.errors import FedError, Refused, Unavailable
from federation.model.spec import Input, JobSpec
from federation.model.states import Target
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import CHUNK_BYTES, HASH_BYTES, MAX_CHUNKS, chunks_of
from federation.stage.heap import Heap
from federation.stage.holdings import Held, Holdings, Watching
from federation.stage.kept import Kept
from federation.stage.threads import in_thread
from federation.tasks import ended, heed
from federation.wire.convert import key_from_wire

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_ASKED = 4096  # hashes of one ChunkList
LOOK_S = 30.0  # between looks at whether an attempt waits yet, where nobody tells
TIDY_PAGE = 100  # attempts asked about at once


class Inputs:
    """`here` is told when all of an attempt's inputs are in its folder, durable.

    Chunks of an attempt that waits for inputs no more are dropped, whoever is sending some.
    """

    def __init__(
        self,
        folder: Path,
        holdings: Holdings,
        here: Callable[[Key], Awaitable[None]],
        watching: Watching | None = None,
    ) -> None:
        self._folder, self._holdings = folder, holdings
        self._here, self._watching = here, watching
        self._busy: set[Key] = set()  # being put together
        self._putting: set[Key] = set()
        self._waiting: dict[Key, asyncio.Task[None]] = {}  # for inputs, as far as somebody brings some

    async def which(self, site: str, request: pb.ChunkList) -> pb.ChunkList:
        """Which of these need not be sent."""
        if len(request.sha256) > MOST_ASKED:
            raise Refused(f"more than {MOST_ASKED} hashes in one question")
        held = await self._held(site, request.key)
        key = held.attempt.key
        here = await self._fill(key, _here, request.sha256, self._kept(site, held), self._heap(key))
        return pb.ChunkList(key=request.key, sha256=here)

    async def put(self, site: str, chunks: AsyncIterator[pb.Chunk]) -> pb.PutReply:
        """Crash, or a cut: those that came are kept, and `which` tells them."""
        first = await anext(chunks, None)
        if first is None:
            return pb.PutReply()
        held = await self._held(site, first.key)
        key = held.attempt.key
        if key in self._putting:  # together they would bring more than one may
            raise Unavailable("its files are being sent already")
        self._putting.add(key)
        try:
            return pb.PutReply(chunks=await self._put(held, first, chunks))
        finally:
            self._putting.discard(key)

    async def _put(self, held: Held, first: pb.Chunk, more: AsyncIterator[pb.Chunk]) -> int:
        heap, count = self._heap(held.attempt.key), 0
        left = _bytes_of(held.spec) - await asyncio.to_thread(heap.size)
        chunk: pb.Chunk | None = first
        while chunk is not None:
            left -= len(chunk.data)
            if left < 0:
                raise Refused("there are more bytes than the job has said")
            await self._fill(held.attempt.key, heap.put, chunk.sha256, chunk.data)
            count += 1
            chunk = await anext(more, None)
        await in_thread(heap.settle)
        return count

    async def _fill(self, key: Key, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Do what adds to its chunks. Raises Refused, and leaves none, when it waits for inputs no more."""
        if key not in self._waiting:
            raise Refused("the attempt takes no inputs any more")
        try:
            return await in_thread(call, *args)
        finally:
            if key not in self._waiting:
                await in_thread(self._heap(key).drop)

    async def commit(self, site: str, request: pb.CommitRequest) -> pb.CommitReply:
        """Put the files together as the job's user. Told again, it does it again. Crash: it is told again."""
        key = key_from_wire(request.key)
        held = await self._holdings.of(site, key)
        if held.attempt.state is not Target.STAGING or held.spec is None:
            return pb.CommitReply()
        _check(request.manifest, held.spec)
        if key in self._busy:
            raise Unavailable("its files are being put together")
        self._watch(key)
        self._busy.add(key)
        try:
            missing = await self._put_together(held, request.manifest, self._kept(site, held))
        finally:
            self._busy.discard(key)
            if key not in self._waiting:
                await in_thread(self._heap(key).drop)
        return pb.CommitReply(missing=missing[:MOST_ASKED])

    async def _put_together(self, held: Held, manifest: pb.Manifest, kept: Kept) -> list[bytes]:
        heap = self._heap(held.attempt.key)
        wanted = list(dict.fromkeys(one for file in manifest.files for one in file.chunks))
        here = set(await asyncio.to_thread(heap.here, wanted))
        if missing := [one for one in wanted if one not in here]:
            return missing
        place = await self._holdings.place(held)
        for file in manifest.files:
            if not await in_thread(_assemble, file, heap, place.folder, held.account, threads=place.threads):
                for chunks in (heap, kept):
                    await in_thread(chunks.drop)  # or what came would leave no room for the right ones
                raise Refused("a file is not the one that the job names")
        await self._here(held.attempt.key)
        await in_thread(kept.keep, heap)
        await in_thread(heap.drop)
        return []

    async def _held(self, site: str, key: pb.Key) -> Held:
        held = await self._holdings.of(site, key_from_wire(key))
        if held.attempt.state is not Target.STAGING:
            raise Refused(f"the attempt is {held.attempt.state.value}: it takes no inputs")
        self._watch(held.attempt.key)
        return held

    # -- chunks of attempts that wait for inputs no more

    async def tidy(self) -> None:
        """Drop those that lie here of attempts whose end this daemon did not see. Raises FedError."""
        keys = await asyncio.to_thread(lambda: list(_keys(self._folder)))
        for start in range(0, len(keys), TIDY_PAGE):
            page = keys[start : start + TIDY_PAGE]
            staging = await self._holdings.staging(page)
            for key in page:
                if key not in staging and key not in self._busy:
                    await in_thread(self._heap(key).drop)

    async def close(self) -> None:
        await ended(*self._waiting.values())

    def _watch(self, key: Key) -> None:
        if key not in self._waiting:
            self._waiting[key] = asyncio.create_task(self._drop_in_the_end(key))

    async def _drop_in_the_end(self, key: Key) -> None:
        changed = asyncio.Event()
        try:
            with self._watching(key, changed.set) if self._watching is not None else nullcontext():
                while await self._waits(key):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await changed.wait()
                    changed.clear()
        finally:
            del self._waiting[key]
        if key not in self._busy:
            await in_thread(self._heap(key).drop)

    async def _waits(self, key: Key) -> bool:
        try:
            return bool(await self._holdings.staging([key]))
        except FedError:  # the journal can't tell now
            heed()
            return True

    def _kept(self, site: str, held: Held) -> Kept:
        return Kept(self._folder / "kept" / f"{site}.{held.account.uid}")

    def _heap(self, key: Key) -> Heap:
        return Heap(self._folder / f"{key.token}.{key.attempt}")


def _keys(folder: Path) -> Iterator[Key]:
    """Of all attempts that have chunks there."""
    with suppress(FileNotFoundError):
        for one in folder.iterdir():
            token, _, attempt = one.name.partition(".")
            with suppress(ValueError):  # what is kept for later
                yield Key(UUID(token), int(attempt))


def _here(hashes: Sequence[bytes], kept: Kept, heap: Heap) -> list[bytes]:
    wanted = [one for one in hashes if len(one) == HASH_BYTES]
    there = set(heap.here(wanted))
    kept.lend((one for one in wanted if one not in there), heap)
    return heap.here(wanted)


def _bytes_of(spec: JobSpec | None) -> int:
    return 0 if spec is None else spec.input_bytes


def _check(manifest: pb.Manifest, spec: JobSpec) -> None:
    """Raises Refused for a list that is not the one that the job came with."""
    signed: Mapping[bytes, Input] = {one.path: one for one in spec.inputs}
    if len(manifest.files) != len(signed) or {one.path for one in manifest.files} != set(signed):
        raise Refused("the files are not those that the job names")
    if sum(len(file.chunks) for file in manifest.files) > MAX_CHUNKS:
        raise Refused(f"more than {MAX_CHUNKS} chunks in one job")
    for file in manifest.files:
        told = signed[file.path]
        if (file.size, file.sha256) != (told.size, told.sha256) or len(file.chunks) != chunks_of(told.size):
            raise Refused("a file is not the one that the job names")


def _assemble(file: pb.File, heap: Heap, folder: Path, account: Account) -> bool:
    """False: the whole is not what was signed. Raises Refused for a path that leads out, Unavailable."""
    try:
        with acting_as(account), Folder(folder) as inside:
            handle = inside.open_to_write(file.path)
    except OSError as error:
        raise Unavailable(f"{account.name} can't write an input: {error.strerror}") from None
    whole = hashlib.sha256()
    try:
        os.ftruncate(handle, 0)
        for nth, sha256 in enumerate(file.chunks):
            data = heap.get(sha256)
            whole.update(data)
            os.pwrite(handle, data, nth * CHUNK_BYTES)
        if whole.digest() != file.sha256 or os.fstat(handle).st_size != file.size:
            with suppress(OSError), acting_as(account), Folder(folder) as inside:
                inside.remove(file.path)
            return False
        os.fchmod(handle, file.mode & 0o777 | 0o600)
        os.fsync(handle)
    except OSError as error:
        raise Unavailable(f"can't write an input: {error.strerror}") from None
    finally:
        os.close(handle)
    return True
