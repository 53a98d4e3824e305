"""A Slurm job's inputs, read as its user from the folder where it runs, and kept as they are now.

Crash: all of them are durable, or it is begun anew.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import BinaryIO
from uuid import UUID

from federation.access.acting import Account, acting_as
from federation.access.finding import find, meant
from federation.access.paths import Folder
from federation.errors import Refused, Unavailable
from federation.model.spec import STDIN, Input
from federation.policy.admit import MAX_INPUTS
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import CHUNK_BYTES, MAX_CHUNKS, hash_of
from federation.stage.spool import Home, Spool, no_room
from federation.stage.threads import in_thread
from federation.store.room import leave_room

MOST_BYTES = MAX_CHUNKS * CHUNK_BYTES // 2  # of one job


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One file, and what asked for it. `path` is from its folder on, `name` what it is called as an input."""

    folder: bytes
    path: bytes
    name: bytes
    option: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a job has its files. `patterns`: what --stage-in named; `most_bytes`: that it may bring, all together.

    `stdin`: the path of what it reads, which becomes the input STDIN.
    """

    account: Account
    folder: bytes
    patterns: Sequence[bytes] = ()
    stdin: bytes = b""
    most_bytes: int = MOST_BYTES
    threads: ThreadPoolExecutor | None = None  # that they are read on


async def take(spool: Spool, token: UUID, source: Source) -> tuple[Input, ...]:
    """Durable when it returns. Raises Refused with what is wrong with the files, StoreFull: no room to keep them.

    Who is cancelled meanwhile waits until nothing of it is written any more.
    """
    cut = Event()
    return await in_thread(_take, spool, token, source, cut, hurry=cut.set, threads=source.threads)


def _take(spool: Spool, token: UUID, source: Source, cut: Event) -> tuple[Input, ...]:
    places = [_Place(folder=source.folder, path=path, name=path, option="--stage-in") for path in _found(source)]
    if source.stdin:
        folder, _, name = source.stdin.rpartition(b"/")
        places.append(_Place(folder=folder or b"/", path=name, name=STDIN, option="--input"))
    spool.begin(token, Home(user=source.account.name, folder=os.fsdecode(source.folder)))
    files, left = [], source.most_bytes
    for nth, place in enumerate(places):
        file = _copied(source, place, spool.input_file(token, nth), left, cut)
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
    if STDIN in paths:
        raise Refused(f"--stage-in: {_shown(STDIN)} is the name of what --input brings")
    for pattern in source.patterns:
        if not any(meant(path, (pattern,)) for path in paths):
            raise Refused(f"--stage-in: no file is meant by {_shown(pattern)}")
    return paths


def _copied(source: Source, place: _Place, to: Path, left: int, cut: Event) -> pb.File:
    try:
        with acting_as(source.account), Folder(Path(os.fsdecode(place.folder))) as folder:
            handle = folder.open_to_read(place.path)
    except OSError as error:
        raise _unreadable(place, error) from None
    file, whole = pb.File(path=place.name, mode=os.fstat(handle).st_mode & 0o777), hashlib.sha256()
    try:
        with os.fdopen(handle, "rb") as data, to.open("wb") as out:
            while chunk := _chunk(data, place):
                file.size += len(chunk)
                if cut.is_set():
                    raise Unavailable("nobody waits for its inputs any more")
                if file.size > left:
                    raise Refused(f"{place.option}: more than {source.most_bytes >> 20} MiB", hint="name fewer files")
                whole.update(chunk)
                file.chunks.append(hash_of(chunk))
                leave_room(to.parent, len(chunk))
                out.write(chunk)
    except OSError as error:
        raise no_room(error) from None
    file.sha256 = whole.digest()
    return file


def _chunk(data: BinaryIO, place: _Place) -> bytes:
    try:
        return data.read(CHUNK_BYTES)
    except OSError as error:
        raise _unreadable(place, error) from None


def _unreadable(place: _Place, error: OSError) -> Refused:
    return Refused(f"{place.option}: {_shown(place.path)} can't be read: {error.strerror}")


def _shown(path: bytes) -> str:
    return path[:200].decode("utf-8", "backslashreplace")
