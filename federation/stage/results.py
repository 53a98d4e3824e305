"""A target gives back the files that an ended attempt left: a list with hashes, then the chunks that are asked for."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from federation.access.acting import Account, acting_as
from federation.access.finding import find
from federation.access.paths import Folder
from federation.errors import Refused, Unavailable
from federation.model.states import Target
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import CHUNK_BYTES, MAX_CHUNKS, MAX_FILES, Listed, hash_of, listed
from federation.stage.holdings import Held, Holdings
from federation.stage.inputs import MOST_ASKED
from federation.stage.slots import Shares
from federation.wire.convert import key_from_wire

MOST_LISTS = 256  # that are remembered; one that is not is made again
MOST_LISTED = 2 * MAX_CHUNKS  # files and chunks of them all


class Results:
    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._lists: dict[Key, tuple[Listed, ...]] = {}
        self._listed = 0  # files and chunks in them
        self._shares = Shares()

    async def results(self, site: str, request: pb.ResultsRequest) -> pb.Manifest:
        """Every file that the job's patterns mean, read to its end. Raises Refused: too many, or a path leads out."""
        found = await self._list(await self._held(site, request.key))
        return pb.Manifest(files=[manifest_file(one) for one in found])

    async def get(self, site: str, request: pb.ChunkList) -> AsyncIterator[pb.Chunk]:
        """In the order in which they were asked for. Raises Unavailable when a file has changed since it was listed."""
        if len(request.sha256) > MOST_ASKED:
            raise Refused(f"more than {MOST_ASKED} hashes in one question")
        held = await self._held(site, request.key)
        key = held.attempt.key
        files = self._lists.get(key) or await self._list(held)
        where = {sha256: (file.path, nth) for file in files for nth, sha256 in enumerate(file.chunks)}
        place, loop = await self._holdings.place(held), asyncio.get_running_loop()
        for sha256 in request.sha256:
            if sha256 not in where:
                raise Refused("no file of the job has such a chunk")
            path, nth = where[sha256]
            async with self._shares[site, held.attempt.pool]:  # until it is sent
                data = await loop.run_in_executor(
                    place.threads, _read, held.account, place.folder, path, nth * CHUNK_BYTES
                )
                if hash_of(data) != sha256:
                    self._forget(key)
                    raise Unavailable("a file has changed since it was listed")
                yield pb.Chunk(key=request.key, sha256=sha256, data=data)

    async def _list(self, held: Held) -> tuple[Listed, ...]:
        patterns = held.spec.outputs if held.spec is not None else ()
        place, loop = await self._holdings.place(held), asyncio.get_running_loop()
        found = await loop.run_in_executor(place.threads, _listed, held.account, place.folder, patterns)
        self._forget(held.attempt.key)
        self._lists[held.attempt.key] = found
        self._listed += _weight(found)
        while len(self._lists) > MOST_LISTS or self._listed > MOST_LISTED:
            self._forget(next(iter(self._lists)))  # the oldest
        return found

    def _forget(self, key: Key) -> None:
        self._listed -= _weight(self._lists.pop(key, ()))

    async def _held(self, site: str, key: pb.Key) -> Held:
        held = await self._holdings.of(site, key_from_wire(key))
        if held.attempt.state is not Target.ENDED:
            raise Refused(f"the attempt is {held.attempt.state.value}: it has no results")
        return held


def _weight(files: Sequence[Listed]) -> int:
    return sum(1 + len(one.chunks) for one in files)


def manifest_file(one: Listed) -> pb.File:
    return pb.File(path=one.path, size=one.size, mode=one.mode, chunks=one.chunks, sha256=one.sha256)


def _listed(account: Account, root: Path, patterns: Sequence[bytes]) -> tuple[Listed, ...]:
    try:
        with acting_as(account), Folder(root) as folder:
            paths = find(folder, patterns, most=MAX_FILES)
        found = [_list_one(account, root, path) for path in paths]
    except OSError as error:
        raise Unavailable(f"{account.name} can't read a result: {error.strerror}") from None
    if sum(len(one.chunks) for one in found) > MAX_CHUNKS:
        raise Refused(f"the results are larger than {MAX_CHUNKS * CHUNK_BYTES >> 30} GiB", hint="name fewer files")
    return tuple(found)


def _list_one(account: Account, root: Path, path: bytes) -> Listed:
    with acting_as(account), Folder(root) as folder:
        handle = folder.open_to_read(path)
    try:
        return listed(handle, path)
    finally:
        os.close(handle)


def _read(account: Account, root: Path, path: bytes, offset: int) -> bytes:
    try:
        with acting_as(account), Folder(root) as folder:
            handle = folder.open_to_read(path)
        try:
            return os.pread(handle, CHUNK_BYTES, offset)
        finally:
            os.close(handle)
    except OSError as error:
        raise Unavailable(f"{account.name} can't read a result: {error.strerror}") from None
