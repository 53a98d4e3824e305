"""Who has a GPU's device files open. NVML says only that somebody does."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

MOST_NAMED = 5
MOST_PROCESSES = 10_000  # looked at; a bound, far above what a node runs

_PROC = Path("/proc")  # always the kernel's own, wherever the driver's files are


def holders(devices: Iterable[Path]) -> str:
    """`pid 812 (nv-hostengine, nvidia-dcgm.service), pid 907 (...)`; "" when nobody but this process is seen."""
    wanted = {os.path.realpath(device) for device in devices}
    found = [_describe(pid) for pid in _pids() if pid != os.getpid() and _has_open(pid, wanted)]
    more = [f"{len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return ", ".join(found[:MOST_NAMED] + more)


def _pids() -> Iterator[int]:
    names = (entry.name for entry in _PROC.iterdir() if entry.name.isdecimal())
    return (int(name) for name in islice(names, MOST_PROCESSES))


def _has_open(pid: int, wanted: set[str]) -> bool:
    try:
        return any(_target(link) in wanted for link in (_PROC / str(pid) / "fd").iterdir())
    except OSError:  # it ended, or is not ours to look at
        return False


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _describe(pid: int) -> str:
    facts = [fact for fact in (_comm(pid), _unit(pid)) if fact]
    return f"pid {pid} ({', '.join(facts)})" if facts else f"pid {pid}"


def _comm(pid: int) -> str:
    name = _read(_PROC / str(pid) / "comm").strip()
    return "".join(letter if letter.isprintable() else "?" for letter in name)  # a process chooses its own


def _unit(pid: int) -> str:
    parts = _read(_PROC / str(pid) / "cgroup").replace("\n", "/").split("/")
    return next((part for part in parts if part.endswith(".service")), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
