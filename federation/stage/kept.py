"""Chunks of inputs that one user's jobs of one site have brought: what another job of his brings again need not travel.

Nobody else's jobs see them, so that a hash tells nothing of other people's files. Synchronous. Crash: a chunk is there
whole, or not; each file that is made of them is checked as a whole.
"""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from federation.stage.heap import Heap

MOST_BYTES = 4 << 30  # of one user; the ones that were not used for longest go
FREE_SHARE = 0.1  # of the disk that is left alone


class Kept:
    """`folder`: of this user, made when there is something to keep."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes

    def lend(self, hashes: Iterable[bytes], heap: Heap) -> None:
        """Those that are kept here are in the heap, too."""
        if not self._folder.exists():
            return
        for sha256 in hashes:
            file = self._folder / sha256.hex()
            with suppress(OSError):
                heap.link(sha256, file)
                os.utime(file)

    def keep(self, heap: Heap) -> None:
        """All of a heap that has done its work. What can't be kept is not."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            heap.move(self._folder)
            self._trim()

    def drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _trim(self) -> None:
        found = sorted((one.stat().st_mtime, one.stat().st_size, one) for one in self._folder.iterdir())
        disk = os.statvfs(self._folder)
        missing = int(FREE_SHARE * disk.f_blocks * disk.f_frsize) - disk.f_bavail * disk.f_frsize
        too_much = max(sum(size for _, size, _ in found) - self._most_bytes, missing)
        for _, size, file in found:
            if too_much <= 0:
                return
            file.unlink(missing_ok=True)
            too_much -= size
