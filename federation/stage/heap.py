"""Chunks on disk that wait to be put together, in a folder of the daemon's own: one a job, each named by its hash."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from federation.errors import Refused, Unavailable
from federation.stage.chunks import CHUNK_BYTES, HASH_BYTES, hash_of
from federation.store.room import leave_room


class Heap:
    """Synchronous. Crash: a chunk is there whole, or not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def here(self, hashes: Iterable[bytes]) -> list[bytes]:
        return [one for one in hashes if len(one) == HASH_BYTES and self._file(one).exists()]

    def size(self) -> int:
        """Of all that is here, in bytes."""
        try:
            return sum(one.stat().st_size for one in self._folder.iterdir())
        except FileNotFoundError:
            return 0

    def put(self, sha256: bytes, data: bytes) -> None:
        """Durable once `settle` was called. Raises Refused, Unavailable."""
        if len(data) > CHUNK_BYTES or hash_of(data) != sha256:
            raise Refused("a chunk is not what its hash says", hint="was it damaged on the way?")
        part = self._folder / "part"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            leave_room(self._folder, len(data))
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.rename(self._file(sha256))
        except OSError as error:
            raise Unavailable(f"can't keep a chunk: {error.strerror}", hint="look at the disk of state_dir") from None

    def get(self, sha256: bytes) -> bytes:
        """Raises Unavailable."""
        try:
            data = self._file(sha256).read_bytes()
        except FileNotFoundError:
            raise Unavailable("a chunk went away") from None
        return data

    def link(self, sha256: bytes, file: Path) -> None:
        """This chunk lies there. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self._file(sha256).hardlink_to(file)

    def move(self, folder: Path) -> None:
        """All chunks to another folder of this disk. Raises OSError."""
        with suppress(FileNotFoundError):
            for file in list(self._folder.iterdir()):
                file.rename(folder / file.name)

    def settle(self) -> None:
        with suppress(FileNotFoundError):
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, sha256: bytes) -> Path:
        return self._folder / sha256.hex()
