"""Files as lists of chunks, each known by its SHA-256."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from federation.errors import Refused

CHUNK_BYTES = 1 << 20
MAX_FILES = 10_000  # of one job, in one direction
MAX_CHUNKS = 200_000  # of one job's list: it travels as one message of at most 8 MiB
HASH_BYTES = 32

Seen = Callable[[int], None]
"""Told of bytes that are through, for progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One file of a job."""

    path: bytes
    size: int
    mode: int  # permission bits
    chunks: tuple[bytes, ...]
    sha256: bytes


def hash_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def listed(handle: int, path: bytes) -> Listed:
    """Read it all. Its descriptor stays open. Raises Refused when it is too large."""
    whole, chunks, size = hashlib.sha256(), [], 0
    while data := os.pread(handle, CHUNK_BYTES, size):
        whole.update(data)
        chunks.append(hash_of(data))
        size += len(data)
        if len(chunks) > MAX_CHUNKS:
            raise Refused(f"a file is larger than {MAX_CHUNKS * CHUNK_BYTES >> 30} GiB", hint="split it")
    mode = os.fstat(handle).st_mode & 0o777
    return Listed(path=path, size=size, mode=mode, chunks=tuple(chunks), sha256=whole.digest())


def chunks_of(size: int) -> int:
    """How many a file of this size has."""
    return -(-size // CHUNK_BYTES)
