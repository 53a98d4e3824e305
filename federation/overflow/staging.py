"""A Slurm job's inputs, read as its user from the folder where it runs, and kept as they are now.

Crash: all of them are durable, or it is begun anew.
"""

import asyncio
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from federation.access.acting import Account, acting_as
from federation.access.finding import find, meant
from federation.access.paths import Folder
from federation.errors import Refused, StoreFull
from federation.model.spec import Input
from federation.policy.admit import MAX_INPUTS
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import CHUNK_BYTES, MAX_CHUNKS, hash_of
from federation.stage.spool import Home, Spool

MOST_BYTES = MAX_CHUNKS * CHUNK_BYTES // 2  # of one job


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a job has its files. `patterns`: what --stage-in named; `most_bytes`: that it may bring, all together."""

    account: Account
    folder: bytes
    patterns: Sequence[bytes] = ()
    most_bytes: int = MOST_BYTES


async def take(spool: Spool, token: UUID, source: Source) -> tuple[Input, ...]:
    """Durable when it returns. Raises Refused with what is wrong with the files, StoreFull: no room to keep them."""
    return await asyncio.to_thread(_take, spool, token, source)


def _take(spool: Spool, token: UUID, source: Source) -> tuple[Input, ...]:
    paths = _found(source)
    try:
        spool.begin(token, Home(user=source.account.name, folder=os.fsdecode(source.folder)))
    except OSError as error:
        raise _no_room(error) from None
    files, left = [], source.most_bytes
    for nth, path in enumerate(paths):
        file = _copied(source, path, spool.input_file(token, nth), left)
        left -= file.size
        files.append(file)
    spool.finish(token, pb.Manifest(files=files))
    return tuple(Input(path=one.path, size=one.size, sha256=one.sha256) for one in files)


def _found(source: Source) -> tuple[bytes, ...]:
    try:
        with acting_as(source.account), Folder(Path(os.fsdecode(source.folder))) as folder:
            paths = find(folder, source.patterns, most=MAX_INPUTS)
    except OSError as error:
        raise Refused(f"--stage-in: {source.account.name} can't look for the files: {error.strerror}") from None
    for pattern in source.patterns:
        if not any(meant(path, (pattern,)) for path in paths):
            raise Refused(f"--stage-in: no file is meant by {_shown(pattern)}")
    return paths


def _copied(source: Source, path: bytes, to: Path, left: int) -> pb.File:
    try:
        with acting_as(source.account), Folder(Path(os.fsdecode(source.folder))) as folder:
            handle = folder.open_to_read(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    file, whole = pb.File(path=path, mode=os.fstat(handle).st_mode & 0o777), hashlib.sha256()
    try:
        with os.fdopen(handle, "rb") as data, to.open("wb") as out:
            while chunk := _chunk(data, path):
                file.size += len(chunk)
                if file.size > left:
                    raise Refused(f"--stage-in: more than {source.most_bytes >> 20} MiB", hint="name fewer files")
                whole.update(chunk)
                file.chunks.append(hash_of(chunk))
                out.write(chunk)
    except OSError as error:
        raise _no_room(error) from None
    file.sha256 = whole.digest()
    return file


def _chunk(data: BinaryIO, path: bytes) -> bytes:
    try:
        return data.read(CHUNK_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: bytes, error: OSError) -> Refused:
    return Refused(f"--stage-in: {_shown(path)} can't be read: {error.strerror}")


def _no_room(error: OSError) -> StoreFull:
    return StoreFull(f"can't keep the inputs: {error.strerror}", hint="make room in state_dir")


def _shown(path: bytes) -> str:
    return path[:200].decode("utf-8", "backslashreplace")
