"""Who has device files of a GPU open. NVML says only that somebody does."""

import logging
import os
import pwd
import stat
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)
Key = TypeVar("Key", bound=Hashable)

MOST_NAMED = 5
MOST_PROCESSES = 32_768  # looked at; a bound, far above what a node runs
MOST_DESCRIPTORS = 65_536  # looked at of one process
MOST_IN_ALL = 2_000_000  # about ten seconds of a processor

_PROC = "/proc"  # always the kernel's own, wherever the driver's files are
_GONE = " (deleted)"  # what the kernel adds to the name of a file that is no more


def holders(devices: Iterable[Path]) -> str:
    """`pid 812 (nv-hostengine, nvidia-dcgm.service), pid 907 (...)`; "" when nobody but this process is seen."""
    found = open_in({0: tuple(Path(os.path.realpath(device)) for device in devices)}).get(0, ())
    named = [describe(pid) for pid in found[:MOST_NAMED]]
    more = [f"{len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return ", ".join(named + more)


def open_in(wanted: Mapping[Key, tuple[Path, ...]]) -> dict[Key, tuple[int, ...]]:
    """Pids of other processes that have any of these files open, by key, those of containers included.

    A file's name is what is looked for first, since asking for more can hang on a dead file system.
    Bounds: MOST_PROCESSES, MOST_DESCRIPTORS, MOST_IN_ALL; what is beyond them is logged and not seen. A descriptor that
    is in no process, but on its way through a socket, is not seen either.
    """
    keys: dict[str, list[tuple[Key, Path]]] = defaultdict(list)
    for key, paths in wanted.items():
        for path in paths:
            keys[path.name].append((key, path))
    found: dict[Key, set[int]] = defaultdict(set)
    left = MOST_IN_ALL
    for pid in _pids() if keys else ():
        for link, target in _open_files(pid, min(left, MOST_DESCRIPTORS)):
            left -= 1
            for key, path in keys.get(target.removesuffix(_GONE).rpartition("/")[2], ()):
                if _is_same(link, target, path):
                    found[key].add(pid)
    return {key: tuple(sorted(pids)) for key, pids in found.items()}


def _pids() -> Iterator[int]:
    names = (name for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208 - a million of them: no Path for each
    return (pid for name in islice(names, MOST_PROCESSES) if (pid := int(name)) != os.getpid())


def _open_files(pid: int, most: int) -> Iterator[tuple[str, str]]:
    """(link, what it names) of each descriptor."""
    folder = f"{_PROC}/{pid}/fd"
    try:
        descriptors = os.listdir(folder)  # noqa: PTH208
    except OSError:  # it ended, or is not ours to look at
        return
    if len(descriptors) > most:
        log.warning("holders.not_all_seen", extra={"pid": pid, "descriptors": len(descriptors), "seen": most})
    for descriptor in descriptors[:most]:
        try:
            yield f"{folder}/{descriptor}", os.readlink(f"{folder}/{descriptor}")  # noqa: PTH115
        except OSError:
            continue


def _is_same(link: str, target: str, path: Path) -> bool:
    """The names agree. In a container the same device may have another path; in another lab it is another one."""
    if target.removesuffix(_GONE) == str(path):
        return True
    try:
        theirs, ours = os.stat(link), path.stat()  # noqa: PTH116
    except OSError:
        return False
    if stat.S_ISCHR(ours.st_mode) and stat.S_ISCHR(theirs.st_mode):
        return theirs.st_rdev == ours.st_rdev
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def describe(pid: int) -> str:
    """`pid 812 (nv-hostengine, nvidia-dcgm.service)`, `pid 907 (python3, alice)`."""
    facts = [fact for fact in (_comm(pid), _unit(pid) or _user(pid)) if fact]
    return f"pid {pid} ({', '.join(facts)})" if facts else f"pid {pid}"


def _comm(pid: int) -> str:
    name = _read(f"{_PROC}/{pid}/comm").strip()
    return "".join(letter if letter.isprintable() else "?" for letter in name)  # a process chooses its own


def _unit(pid: int) -> str:
    parts = _read(f"{_PROC}/{pid}/cgroup").replace("\n", "/").split("/")
    return next((part for part in parts if part.endswith(".service")), "")


def _user(pid: int) -> str:
    uids = [line.split()[1] for line in _read(f"{_PROC}/{pid}/status").splitlines() if line.startswith("Uid:")]
    try:
        return pwd.getpwuid(int(uids[0])).pw_name if uids else ""
    except KeyError:
        return uids[0]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - no Path: see atomic
            return file.read()
    except OSError:
        return ""
