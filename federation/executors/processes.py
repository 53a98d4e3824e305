"""A job's processes on this host, named so that a number used again is never taken for them.

What a job's user wrote about its processes is believed only as far as the kernel bears it out: a signal goes through a
descriptor of the very process whose owner was checked.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from federation.executors.layout import MARK

_PROC = Path("/proc")
_MAX_ENVIRON = 2 << 20  # bytes; Linux gives a program no more by default
_SESSION, _START = 3, 19  # fields of stat behind the name, which may hold anything; the first is the state


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def alive(pid: int, start: int, boot: str) -> bool:
    """Whether this very process runs. One that ended and is not reaped does not."""
    if boot != boot_id():
        return False
    fields = _stat(pid)
    return _lives(fields) and int(fields[_START]) == start


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    return _lives(_stat(pid))


def members(uid: int, session: int, mark: str) -> Iterator[int]:
    """Processes of this user that are in this session, or have the job's mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    for entry in _PROC.iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and entry.stat().st_uid == uid and _belongs(int(entry.name), session, wanted):
                yield int(entry.name)


def send(pid: int, uid: int, number: int) -> bool:
    """Whether that process, if it is this user's, got the signal."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if (_PROC / str(pid)).stat().st_uid != uid:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


def _belongs(pid: int, session: int, wanted: bytes) -> bool:
    fields = _stat(pid)
    if not _lives(fields):
        return False
    if int(fields[_SESSION]) == session:
        return True
    with (_PROC / str(pid) / "environ").open("rb") as file:
        return wanted in file.read(_MAX_ENVIRON).split(b"\0")


def _lives(fields: Sequence[str]) -> bool:
    return bool(fields) and fields[0] not in ("Z", "X")


def _stat(pid: int) -> list[str]:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
