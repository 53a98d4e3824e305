"""An origin sends a job's inputs: only the chunks that are not there yet, so a cut costs at most one."""

import asyncio
import os
from collections.abc import AsyncIterator
from uuid import UUID

from federation.errors import FedError, Refused, Unavailable
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import CHUNK_BYTES, Seen, hash_of
from federation.stage.far import Far
from federation.stage.inputs import MOST_ASKED
from federation.stage.spool import Spool
from federation.wire.convert import key_to_wire

ROUNDS = 3  # times that what is missing is sent


async def push(far: Far, spool: Spool, key: Key, seen: Seen) -> int:
    """Returns when the far side has put all files together: how many bytes travelled. Raises Unavailable, Refused."""
    try:
        manifest = await asyncio.to_thread(spool.inputs, key.token)
    except FileNotFoundError:
        raise Refused("the inputs are not here any more") from None
    where: dict[bytes, tuple[int, int]] = {}
    for nth, file in enumerate(manifest.files):
        for at, sha256 in enumerate(file.chunks):
            where.setdefault(sha256, (nth, at * CHUNK_BYTES))
    wire = key_to_wire(key)
    missing = [one async for one in _missing(far, wire, list(where))]
    seen((len(where) - len(missing)) * CHUNK_BYTES)
    sent = 0

    def travelled(count: int) -> None:
        nonlocal sent
        sent += count
        seen(count)

    for _ in range(ROUNDS):
        if missing:
            await far.put(_chunks(spool, key.token, wire, [(one, *where[one]) for one in missing], travelled))
        reply = await far.commit(pb.CommitRequest(key=wire, manifest=manifest))
        missing = [one for one in reply.missing if one in where]
        if not reply.missing:
            return sent
    raise Unavailable("the far side says again and again that chunks are missing")


async def _missing(far: Far, key: pb.Key, wanted: list[bytes]) -> AsyncIterator[bytes]:
    for start in range(0, len(wanted), MOST_ASKED):
        page = wanted[start : start + MOST_ASKED]
        here = set((await far.which(pb.ChunkList(key=key, sha256=page))).sha256)
        for one in page:
            if one not in here:
                yield one


async def _chunks(
    spool: Spool, token: UUID, key: pb.Key, wanted: list[tuple[bytes, int, int]], seen: Seen
) -> AsyncIterator[pb.Chunk]:
    for count, (sha256, nth, offset) in enumerate(wanted):
        data = await asyncio.to_thread(_read, spool, token, nth, offset)
        if hash_of(data) != sha256:
            raise FedError("the inputs kept here are damaged", hint="cancel the job and submit it again")
        yield pb.Chunk(key=key if count == 0 else None, sha256=sha256, data=data)
        seen(len(data))


def _read(spool: Spool, token: UUID, nth: int, offset: int) -> bytes:
    handle = os.open(spool.input_file(token, nth), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(handle, CHUNK_BYTES, offset)
    finally:
        os.close(handle)
