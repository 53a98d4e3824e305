"""Paths that a stranger wrote, opened so that they can't lead out of the folder they belong in.

Each name on the way is opened in the folder before it, through no symbolic link, and '..' is no name: nothing leads up
or away, whoever renames what meanwhile. The last is looked at before it is opened: a device or a FIFO can do harm by
being opened. A file with more than one name is refused: it may be somebody else's under another.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from federation.errors import Refused

MAX_PATH, MAX_NAME, MAX_DEPTH = 4095, 255, 64
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY
_FOLDER = _SAFE | os.O_DIRECTORY | os.O_PATH


def parts_of(path: bytes) -> tuple[bytes, ...]:
    """PURE: the names of a relative path. Raises Refused for one that could lead out, or that no file system takes."""
    parts = tuple(path.split(b"/"))
    if not path or b"\0" in path or len(path) > MAX_PATH or len(parts) > MAX_DEPTH:
        raise _refused(path, "is no path")
    if path.startswith(b"/"):
        raise _refused(path, "is absolute; it must be relative to the job's folder")
    if any(part in (b"", b".", b"..") or len(part) > MAX_NAME for part in parts):
        raise _refused(path, "must be names with / between them, and none of them '', '.' or '..'")
    return parts


class Folder:
    """A folder whose own path we chose, held open: what it is renamed to later does not matter.

    Whoever opens and makes things here does it as himself: see `acting_as`. Descriptors are the caller's to close. All
    raise Refused for a path that leads out or to no plain file, and OSError (such as FileNotFoundError).
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, _FOLDER)

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._handle)

    def listing(self) -> int:
        """The folder itself, to list what is in it."""
        return os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._handle)

    def open_to_read(self, path: bytes) -> int:
        with self._parent(path, make=False) as (parent, name):
            return _open(parent, name, path, os.O_RDONLY)

    def open_to_write(self, path: bytes, mode: int = 0o600) -> int:
        """Made if it is not there, and the folders on the way as well; its content is kept, for who resumes."""
        with self._parent(path, make=True) as (parent, name):
            try:
                return os.open(name, _SAFE | os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o777, dir_fd=parent)
            except FileExistsError:
                return _open(parent, name, path, os.O_WRONLY)

    def move(self, old: bytes, new: bytes) -> None:
        """Put a finished file in its place, over what is there, for good."""
        with self._parent(old, make=False) as (source, name), self._parent(new, make=True) as (target, final):
            os.rename(name, final, src_dir_fd=source, dst_dir_fd=target)
            handle = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=target)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def remove(self, path: bytes) -> None:
        with self._parent(path, make=False) as (parent, name):
            os.unlink(name, dir_fd=parent)

    @contextmanager
    def _parent(self, path: bytes, *, make: bool) -> Iterator[tuple[int, bytes]]:
        *folders, name = parts_of(path)
        handle = _walk(os.dup(self._handle), folders, path, make=make)
        try:
            yield handle, name
        finally:
            os.close(handle)


def _walk(handle: int, folders: Sequence[bytes], path: bytes, *, make: bool) -> int:
    """From one folder to another below it; `handle` is closed."""
    for name in folders:
        try:
            below = _step(handle, name, make=make)
        except NotADirectoryError:
            raise _refused(path, "leads through a link, or through what is no folder") from None
        finally:
            os.close(handle)
        handle = below
    return handle


def _step(handle: int, name: bytes, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=handle)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # somebody was faster: whatever it is now is looked at like the rest
        os.mkdir(name, 0o700, dir_fd=handle)
    return os.open(name, _FOLDER, dir_fd=handle)


def _open(parent: int, name: bytes, path: bytes, flags: int) -> int:
    seen = os.open(name, _SAFE | os.O_PATH, dir_fd=parent)
    try:
        facts = os.fstat(seen)
        if stat.S_ISLNK(facts.st_mode):
            raise _refused(path, "is a symbolic link")
        if not stat.S_ISREG(facts.st_mode):
            raise _refused(path, "is no regular file")
        if facts.st_nlink != 1:
            raise _refused(path, f"has {facts.st_nlink} names (hard links)")
        # The very same file, and now the kernel asks whether the caller may.
        return os.open(f"/proc/self/fd/{seen}", flags | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(seen)


def _refused(path: bytes, why: str) -> Refused:
    return Refused(f"path {path[:200].decode('utf-8', 'backslashreplace')!r} {why}")
