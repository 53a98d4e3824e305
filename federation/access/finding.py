"""Which files of a job's folder its patterns mean: like the shell's, and never through a link.

`*`, `?` and `[...]` match within one name, and a name that begins with a dot only where the pattern does. A folder that
matches stands for all that is in it. What is neither a file nor a folder is passed over.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import count

from federation.access.paths import MAX_DEPTH, Folder, parts_of
from federation.errors import Refused

MAX_SEEN = 1_000_000  # names looked at for all patterns together
_EVERYTHING = (b"*", b".*")


def find(folder: Folder, patterns: Sequence[bytes], *, most: int) -> tuple[bytes, ...]:
    """Paths that `Folder.open_to_read` takes, each once, in order. Whoever looks does it as himself: see `acting_as`.

    Raises Refused for a pattern that leads out, or when there are more than `most`. OSError where he may not look.
    """
    found: set[bytes] = set()
    seen = count(1)
    for pattern in patterns:
        parts = parts_of(pattern)
        handle = folder.listing()
        try:
            for path in _below(handle, parts, (), seen):
                found.add(path)
                if len(found) > most:
                    raise Refused(f"more than {most} files match", hint="name fewer, or pack them into one")
        finally:
            os.close(handle)
    return tuple(sorted(found))


def matches(path: bytes, pattern: bytes) -> bool:
    """PURE: whether `find` would tell of a file with this path. Raises Refused for what is no path."""
    names, wanted = parts_of(path), parts_of(pattern)
    return len(names) >= len(wanted) and all(_match(*pair) for pair in zip(names, wanted, strict=False))


def meant(path: bytes, patterns: Sequence[bytes]) -> bool:
    """PURE: would `find` with these patterns name this path? Raises Refused for a path that leads out."""
    parts = parts_of(path)
    return any(len(wanted) <= len(parts) and all(map(_match, parts, wanted)) for wanted in map(parts_of, patterns))


def _below(handle: int, parts: tuple[bytes, ...], way: tuple[bytes, ...], seen: Iterator[int]) -> Iterator[bytes]:
    """`parts` empty: everything below. Bounds: MAX_DEPTH, MAX_SEEN."""
    wanted = (parts[0],) if parts else _EVERYTHING
    for name in sorted(os.fsencode(one) for one in os.listdir(handle)):
        if next(seen) > MAX_SEEN:
            raise Refused(f"the patterns lead past more than {MAX_SEEN} names", hint="write narrower ones")
        if not any(_match(name, pattern) for pattern in wanted):
            continue
        try:
            mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
        except FileNotFoundError:  # it was removed meanwhile
            continue
        here = (*way, name)
        if stat.S_ISREG(mode) and len(parts) <= 1:
            yield b"/".join(here)
        elif stat.S_ISDIR(mode) and len(here) < MAX_DEPTH:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            try:
                yield from _below(inner, parts[1:], here, seen)
            finally:
                os.close(inner)


def _match(name: bytes, pattern: bytes) -> bool:
    return fnmatchcase(name, pattern) and (pattern.startswith(b".") or not name.startswith(b"."))
