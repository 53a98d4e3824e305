"""The history on disk: a line of JSON an entry, in a file that is begun anew when it is full; the one before is kept.

Blocking: called on threads. Crash: every line is whole but perhaps the last, which is then passed over.
"""

import errno
import json
import os
import threading
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path

from slurm_plugin.history import LIMIT_MAX, Entry, from_line, to_line

FILE_BYTES = 8 << 20  # some 30,000 entries; there are two files
MODE = 0o600
CLOCK_S = 3600.0  # entries are in order but for what a clock was put back: by no more than this


class HistoryFile:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.jsonl"
        self._before = folder / "history.1.jsonl"
        self._lock = threading.Lock()

    def append(self, entries: Sequence[Entry]) -> None:
        """They are on disk when this returns. Raises OSError: then none of them is."""
        data = "".join(f"{to_line(entry)}\n" for entry in entries).encode()
        with self._lock:
            if not self._path.parent.exists():
                self._path.parent.mkdir(parents=True, mode=0o700)
            if self._path.exists() and self._path.stat().st_size + len(data) > FILE_BYTES:
                self._path.replace(self._before)
            handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
            with os.fdopen(handle, "r+b", buffering=0) as file:
                size = os.fstat(handle).st_size
                torn = size and os.pread(handle, 1, size - 1) != b"\n"
                try:
                    _write_whole(file, b"\n" + data if torn else data)
                except OSError:
                    os.ftruncate(handle, size)  # they are written again as a whole
                    raise

    def read(self, node: str, since: float, limit: int) -> tuple[list[Entry], bool]:
        """The newest entries, oldest first, and whether there are older ones. Raises OSError.

        Bound: 0.5 s, whatever is asked for.
        """
        found: list[Entry] = []
        most = min(max(1, limit), LIMIT_MAX)
        about = f'"node":{json.dumps(node)}'
        for line in self._backwards():
            if node and about not in line:
                continue
            entry = from_line(line)
            if entry is not None and entry.at < since - CLOCK_S:
                break
            if entry is None or (node and entry.node != node) or entry.at < since:
                continue
            if len(found) == most:
                return found[::-1], True
            found.append(entry)
        return found[::-1], False

    def _backwards(self) -> Iterator[str]:
        with self._lock:
            texts = [_text(path) for path in (self._path, self._before)]
        for text in texts:
            yield from reversed(text.splitlines())


def _write_whole(file: FileIO, data: bytes) -> None:
    if file.write(data) != len(data):
        raise OSError(errno.ENOSPC, "only a part could be written")
    os.fsync(file.fileno())


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""
