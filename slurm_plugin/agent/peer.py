"""Who is at the other end of the hook socket: the kernel's word on the process, and the Slurm step it belongs to.

The environment of a task is its user's to write, so it proves nothing. What proves it is an ancestor: the nearest
slurmstepd that root runs, whose title names job and step (live on 22.05: "slurmstepd: [12.batch]", "[12.0]").
"""

import os
import re
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

MAX_DEPTH = 64  # ancestors looked at
_TITLE = re.compile(rb"slurmstepd: \[(\d+)(?:\+\d+)?\.([a-z]+|\d+)(?:\+\d+)?\]")
_NO_STEP = re.compile(rb"slurmstepd: \[\d+:namespace\]|[^\0]*\0(?:ns_)?infinity\0")
_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    pid: int
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProcess:
    """A running step on this node, and the slurmstepd that is there as long as it is."""

    job_id: int
    step: str  # "batch", "interactive", "0"
    pid: int
    started: int  # kernel ticks since boot: with the pid, an identity

    @property
    def key(self) -> str:
        return f"{self.pid}:{self.started}"


def peer_of(connection: socket.socket) -> Peer:
    """Raises OSError."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid=pid, uid=uid)


def step_of(pid: int, proc: Path = Path("/proc")) -> StepProcess | None:
    """The step that process `pid` runs in, or None when it is in none. Bound: MAX_DEPTH ancestors."""
    found: StepProcess | None = None
    for _ in range(MAX_DEPTH):
        here = _look(pid, proc)
        if here is None:
            break
        parent, step = here
        if found is not None and (step is None or (step.job_id, step.step) != (found.job_id, found.step)):
            break
        found = step  # slurmstepd forks for each task: the topmost one with this title is the step's own
        pid = parent
        if pid <= 1:
            break
    return found


def jobs_with_steps(proc: Path = Path("/proc")) -> frozenset[int | None]:
    """Jobs that a step of runs on this node. None stands for a step that tells none, such as one that just begins.

    Two of Slurm's own processes are no step: `slurmstepd infinity`, which slurmd keeps for as long as it lives where
    Slurm has a cgroup2 of its own, and `slurmstepd ns_infinity JOB`, which keeps a job's namespace.
    Source: Slurm 25.11, plugins/namespace/linux.
    """
    found: set[int | None] = set()
    for entry in os.listdir(proc):  # noqa: PTH208 - no Path: see atomic
        folder = f"{proc}/{entry}"
        try:
            words = read(f"{folder}/cmdline") if entry.isdecimal() else b""
            if b"slurmstepd" not in words or not _is_slurmstepd(folder):
                continue
        except (OSError, StopIteration):
            continue  # it is gone
        title = _TITLE.match(words)
        if title or not _NO_STEP.match(words):
            found.add(int(title[1]) if title else None)
    return frozenset(found)


def _look(pid: int, proc: Path) -> tuple[int, StepProcess | None] | None:
    """A process's parent, and the step if it is a step's slurmstepd. None: it is gone."""
    folder = f"{proc}/{pid}"
    try:
        fields = read(f"{folder}/stat").rpartition(b")")[2].split()
        parent, started = int(fields[1]), int(fields[19])
        title = _TITLE.match(read(f"{folder}/cmdline"))
        is_roots = title is not None and _is_slurmstepd(folder)
    except (OSError, ValueError, IndexError):
        return None
    if title is None or not is_roots:
        return parent, None
    return parent, StepProcess(job_id=int(title[1]), step=title[2].decode(), pid=pid, started=started)


def read(path: str) -> bytes:
    """A file of /proc. No Path: see atomic. Raises OSError."""
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


def _is_slurmstepd(folder: str) -> bool:
    """Anybody can write a title: only root's process, started from root's slurmstepd, is believed.

    Its effective uid is the user's at times, while it opens his files.
    """
    uids = next(line for line in read(f"{folder}/status").splitlines() if line.startswith(b"Uid:")).split()[1:]
    binary = f"{folder}/exe"
    name = os.readlink(binary).rpartition("/")[2]  # noqa: PTH115 - the link may say "(deleted)" after an upgrade
    is_ = os.stat(binary)  # noqa: PTH116
    mine = is_.st_uid == 0 and not is_.st_mode & (stat.S_ISUID | stat.S_IWGRP | stat.S_IWOTH)
    return uids[0] == uids[2] == b"0" and name.startswith("slurmstepd") and mine
