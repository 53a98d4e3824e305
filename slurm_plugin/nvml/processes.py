"""Processes as /proc shows them: whose they are, what they have open, and what their threads wait in.

Whose a process is, is told by its four user ids and by who made its user namespace: in one of his own a user has more.

Source: proc(5), proc_pid_syscall(5), ioctl_ns(2), kcmp(2).
"""

import ctypes
import fcntl
import os
import platform
import struct
from collections.abc import Iterator

PROC = "/proc"  # always the kernel's own, wherever the driver's files are
MOST_READ_BYTES = 1 << 16
MOST_NESTED = 33  # the kernel allows 32 user namespaces below the first

_NS_GET_PARENT, _NS_GET_OWNER_UID = 0xB702, 0xB704
_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
_KCMP_FILES = 2
_libc = ctypes.CDLL(None)


def read(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - no Path: see atomic
            return file.read(MOST_READ_BYTES).decode(errors="replace")
    except OSError:
        return ""


def link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - as above
    except OSError:
        return ""


def names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - as above
    except OSError:  # it ended, or is not ours to look at
        return []


def users(pid: int) -> frozenset[int]:
    """Nobody of a process that is gone."""
    _, _, rest = read(f"{PROC}/{pid}/status").partition("\nUid:")
    own = [int(word) for word in rest.partition("\n")[0].split()]
    return frozenset(own).union(_makers(f"{PROC}/{pid}/ns/user"))


def everybody() -> frozenset[int]:
    """Who has a process here now."""
    return frozenset[int]().union(*(users(int(name)) for name in names(PROC) if name.isdecimal()))


def _makers(namespace: str) -> Iterator[int]:
    """Who made this user namespace, and those it is in, up to ours."""
    ours = link(f"{PROC}/self/ns/user")
    if link(namespace) in ("", ours):
        return
    try:
        at = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for _ in range(MOST_NESTED):
            if link(f"{PROC}/self/fd/{at}") == ours:
                return
            yield struct.unpack("I", fcntl.ioctl(at, _NS_GET_OWNER_UID, bytes(4)))[0]
            above = fcntl.ioctl(at, _NS_GET_PARENT)
            os.close(at)
            at = above
    except OSError:  # beyond what we may see
        return
    finally:
        os.close(at)


def tables(pid: int, threads: list[str]) -> Iterator[str]:
    """A thread's folder in /proc for each table of open files: threads may have one of their own, and a first thread
    that has ended has none.
    """
    known: list[int] = []
    for thread in map(int, threads):
        if not any(_share_files(thread, one) for one in known):
            known.append(thread)
            yield f"{PROC}/{pid}/task/{thread}"


def _share_files(one: int, other: int) -> bool:
    """False also where the kernel does not say: then both are looked at."""
    return _KCMP is not None and _libc.syscall(_KCMP, one, other, _KCMP_FILES, 0, 0) == 0
