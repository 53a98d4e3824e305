"""Finding the processes of a lab, and ending them: by pid through a pidfd, never by name."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "VGPU_LAB_DAEMON"  # in the environment of every daemon of a lab: "<folder>:<daemon>"
_PROC = Path("/proc")
_MAX_ENVIRON = 1 << 20  # bytes read of one process's environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process. A pid is reused; with its start time (clock ticks since boot) it is an identity."""

    pid: int
    parent: int
    started: int
    name: str


def table() -> dict[int, Process]:
    """All living processes; those that only wait to be reaped are left out."""
    found = (_read(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return {process.pid: process for process in found if process is not None}


def _read(pid: int) -> Process | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()  # from field 3 of proc(5), the state, on
    if fields[0] in "ZX":
        return None
    return Process(pid=pid, parent=int(fields[1]), started=int(fields[19]), name=name)


def environ_of(pid: int) -> dict[str, str]:
    """What the process was started with; {} when it is gone."""
    try:
        with (_PROC / str(pid) / "environ").open("rb") as file:
            data = file.read(_MAX_ENVIRON)
    except OSError:
        return {}
    pairs = (item.decode(errors="replace").partition("=") for item in data.split(b"\0") if b"=" in item)
    return {key: value for key, _, value in pairs}


def _same_root(pid: int) -> bool:
    """Does it see our file system? In a chroot the same path is another lab's."""
    try:
        return (_PROC / str(pid) / "root").samefile("/")
    except OSError:
        return False


def _marks() -> dict[Process, str]:
    """Every daemon of any lab in our file system, with its mark."""
    marked = ((process, environ_of(process.pid).get(MARK, "")) for process in table().values())
    return {process: mark for process, mark in marked if mark and _same_root(process.pid)}


def daemons_of(folder: Path) -> dict[str, Process]:
    """Every process started by the lab's supervisor, and the supervisor, by daemon name."""
    found: dict[str, Process] = {}
    for process, mark in _marks().items():
        if mark.startswith(f"{folder}:"):
            daemon = mark.removeprefix(f"{folder}:")
            # A daemon's own children carry the mark too: the eldest is the daemon.
            if daemon not in found or process.started < found[daemon].started:
                found[daemon] = process
    return found


def all_of(folder: Path) -> tuple[Process, ...]:
    """Everything of a lab that lives: daemons, their children, slurmstepds and the processes of its jobs.

    The caller and its ancestors are never among them.
    """
    processes = table()
    roots = [process for process, mark in _marks().items() if mark.startswith(f"{folder}:")]
    roots += _steps(processes, conf=f"{folder}/", sockets=f"{folder}/")
    mine = _ancestors(os.getpid(), processes)
    return tuple(process for process in _with_descendants(roots, processes) if process.pid not in mine)


def jobs_of(conf: Path, spool: Path) -> tuple[Process, ...]:
    """The slurmstepds under one slurmd, with all the processes of their jobs.

    `conf` is that slurmd's slurm.conf, `spool` its SlurmdSpoolDir.
    """
    processes = table()
    return tuple(_with_descendants(_steps(processes, conf=str(conf), sockets=f"{spool}/"), processes))


def _steps(processes: Mapping[int, Process], *, conf: str, sockets: str) -> list[Process]:
    """slurmstepds, and tasks that detached themselves from theirs, by the beginnings of two paths.

    A slurmstepd shows its slurm.conf, or another one's copy of it, or nothing (its title may have overwritten its
    environment), but it listens on a socket in its slurmd's spool folder. A user's own shell has no SLURM_TASK_PID.
    """
    bound = _bound_sockets(sockets)
    found = []
    for process in processes.values():
        environ = environ_of(process.pid)
        of_conf = environ.get("SLURM_CONF", "").startswith(conf)
        is_step = process.name.startswith("slurmstepd")
        ours = (of_conf and (is_step or "SLURM_TASK_PID" in environ)) or (is_step and _holds_socket(process.pid, bound))
        if ours and _same_root(process.pid):
            found.append(process)
    return found


def _bound_sockets(path: str) -> frozenset[str]:
    lines = (_PROC / "net" / "unix").read_text(errors="replace").splitlines()
    rows = (line.split(maxsplit=7) for line in lines)
    return frozenset(f"socket:[{row[6]}]" for row in rows if len(row) == 8 and row[7].startswith(path))


def _holds_socket(pid: int, bound: frozenset[str]) -> bool:
    with suppress(OSError):
        return any(str(link.readlink()) in bound for link in (_PROC / str(pid) / "fd").iterdir())
    return False


def _ancestors(pid: int, processes: Mapping[int, Process]) -> frozenset[int]:
    chain: set[int] = set()
    while pid in processes and pid not in chain:
        chain.add(pid)
        pid = processes[pid].parent
    return frozenset(chain | {pid})


def _with_descendants(roots: Iterable[Process], processes: Mapping[int, Process]) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    queue = list(roots)
    while queue:
        process = queue.pop()
        if process.pid not in found:
            found[process.pid] = process
            queue += children.get(process.pid, [])
    return list(found.values())


def end(processes: Iterable[Process], *, grace_s: float) -> None:
    """Ask these processes to end, and after `grace_s` make them. Returns when all are gone.

    Bounds: `grace_s` and as long again after SIGKILL. A pid that meanwhile belongs to another process is left alone.
    """
    handles = {process.pid: fd for process in processes if (fd := _open(process)) is not None}
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for fd in handles.values():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
            if _wait_all(handles.values(), grace_s):
                return
    finally:
        for fd in handles.values():
            os.close(fd)


def kill(processes: Iterable[Process]) -> None:
    """SIGKILL, at once, and wait (bounded) until they are gone.

    All are stopped before the first one ends: a slurmstepd that saw its job's processes die would tell of it.
    """
    handles = [fd for process in processes if (fd := _open(process)) is not None]
    for what in (signal.SIGSTOP, signal.SIGKILL):
        for fd in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, what)
    _wait_all(handles, 5.0)
    for fd in handles:
        os.close(fd)


def _open(process: Process) -> int | None:
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return None
    now = _read(process.pid)
    if now is not None and now.started == process.started:
        return fd
    os.close(fd)
    return None


def _wait_all(handles: Iterable[int], limit_s: float) -> bool:
    poller = select.poll()
    left = set(handles)
    for fd in left:
        poller.register(fd, select.POLLIN)
    until = time.monotonic() + limit_s
    while left and (rest := until - time.monotonic()) > 0:
        for fd, _ in poller.poll(rest * 1000):
            poller.unregister(fd)
            left.discard(fd)
    return not left


def wait_until(condition: Callable[[], bool], *, limit_s: float, every_s: float = 0.05) -> bool:
    """Look until it holds; False when the limit came first."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(every_s)
    return True
