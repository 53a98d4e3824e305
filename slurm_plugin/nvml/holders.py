"""Who has device files of a GPU open. NVML says only that somebody does."""

import logging
import os
import re
import stat
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TypeVar

from slurm_plugin.nvml.processes import PROC, link, names, read

log = logging.getLogger(__name__)
Key = TypeVar("Key", bound=Hashable)

MOST_NAMED = 5
MOST_PROCESSES = 32_768  # looked at; a bound, far above what a node runs
MOST_DESCRIPTORS = 65_536  # looked at of one process
MOST_IN_ALL = 2_000_000  # about ten seconds of a processor

MOST_ABOVE = 64  # ancestors looked at

_TELLS = re.compile(r"[^\w.+-]")  # what gives a sentence its form
_SERVICE = re.compile(r"^\d+:[^:]*:/system\.slice/(?:[^/]+\.slice/)?([\w@.-]+\.service)(?:/|$)", re.MULTILINE)
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
    Bounds: MOST_PROCESSES, MOST_DESCRIPTORS, MOST_IN_ALL; what is beyond them is logged and not seen. See `hiding` for
    what is not in plain sight.
    """
    keys: dict[str, list[tuple[Key, Path]]] = defaultdict(list)
    for key, paths in wanted.items():
        for path in paths:
            keys[path.name].append((key, path))
    found: dict[Key, set[int]] = defaultdict(set)
    left = MOST_IN_ALL
    for pid in _pids() if keys else ():
        for descriptor, target in _open_files(pid, min(left, MOST_DESCRIPTORS)):
            left -= 1
            for key, path in keys.get(target.removesuffix(_GONE).rpartition("/")[2], ()):
                if _is_same(descriptor, target, path):
                    found[key].add(pid)
    return {key: tuple(sorted(pids)) for key, pids in found.items()}


def _pids() -> Iterator[int]:
    numbers = (name for name in names(PROC) if name.isdecimal())
    return (pid for name in islice(numbers, MOST_PROCESSES) if (pid := int(name)) != os.getpid())


def _open_files(pid: int, most: int) -> Iterator[tuple[str, str]]:
    """(link, what it names) of each descriptor."""
    folder = f"{PROC}/{pid}/fd"
    descriptors = names(folder)
    if len(descriptors) > most:
        log.warning("holders.not_all_seen", extra={"pid": pid, "descriptors": len(descriptors), "seen": most})
    for descriptor in descriptors[:most]:
        if target := link(f"{folder}/{descriptor}"):
            yield f"{folder}/{descriptor}", target


def _is_same(descriptor: str, target: str, path: Path) -> bool:
    """The names agree. In a container the same device may have another path; in another lab it is another one."""
    if target.removesuffix(_GONE) == str(path):
        return True
    try:
        theirs, ours = os.stat(descriptor), path.stat()  # noqa: PTH116
    except OSError:
        return False
    if stat.S_ISCHR(ours.st_mode) and stat.S_ISCHR(theirs.st_mode):
        return theirs.st_rdev == ours.st_rdev
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def describe(pid: int) -> str:
    """`pid 812 (nv-hostengine, nvidia-dcgm.service)`, `pid 907 (python3, uid 1000)`.

    Users by number: a directory that is asked for a name may not answer, and jobs start and end behind whoever asks.
    """
    facts = [fact for fact in (_comm(pid), _unit(pid) or _user(pid)) if fact]
    return f"pid {pid} ({', '.join(facts)})" if facts else f"pid {pid}"


def _comm(pid: int) -> str:
    """A process chooses its own: one word, so that it reads like nothing that we say."""
    return _TELLS.sub("?", read(f"{PROC}/{pid}/comm").removesuffix("\n"))


def _unit(pid: int) -> str:
    """The system service that a process belongs to, which may be stopped: none of Slurm's, in which all jobs end."""
    service = _SERVICE.search(read(f"{PROC}/{pid}/cgroup"))
    return service[1] if service and "slurm" not in service[1] and not _is_a_jobs(pid) else ""


def _is_a_jobs(pid: int) -> bool:
    """Below what calls itself slurmstepd. Who forges that is only named by his number instead."""
    for _ in range(MOST_ABOVE):
        about = read(f"{PROC}/{pid}/stat")
        if "(slurmstepd)" in about:
            return True
        above = about.rpartition(")")[2].split()
        if len(above) < 2 or int(above[1]) <= 1:
            return False
        pid = int(above[1])
    return True


def _user(pid: int) -> str:
    uids = [line.split()[1] for line in read(f"{PROC}/{pid}/status").splitlines() if line.startswith("Uid:")]
    return f"uid {uids[0]}" if uids else ""
