"""Descriptors that no look through /proc/PID/fd shows: who, of the last users of a slice, may be hiding one there?

A descriptor lives on in the queue of a Unix socket, in a message that is being sent or received, in an io_uring, in the
table of a thread of its own, or under another name. What is in a queue can't be told without taking it out, so it
counts as one of the slice's; hence only processes of those who had the slice are asked, or anybody could keep it.

Source: Linux net/unix/af_unix.c (scm_fds: since 5.9), io_uring/fdinfo.c, fs/proc/fd.c (ino: since 5.14).
"""

import logging
import os
import platform
import socket
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from slurm_plugin.nvml.processes import PROC, link, names, read, tables, users

log = logging.getLogger(__name__)
Key = TypeVar("Key", bound=Hashable)

PASSES = 8  # over a user's processes, if he has any: he may move a descriptor about while we look
MOST_PROCESSES = 32_768
MOST_THREADS = 4_096  # looked at of one process; whoever has more counts as hiding
MOST_DESCRIPTORS = 65_536  # likewise, of one table
MOST_OF_A_USER = 250_000  # threads and descriptors, likewise; about three seconds of a processor

SOCKET = "descriptors on their way through a socket"
RING = "files registered in an io_uring"
RENAMED = "open under another name, or in a thread alone"
TOO_MANY = "more threads or descriptors than are looked at"

# Numbers of sendmsg and sendmmsg, and of recvmsg and recvmmsg, those of 32-bit programs included
_SENDING = {"x86_64": "46 307 102 345 370 1073742342 1073742362", "aarch64": "211 269 296 374"}
_RECEIVING = {"x86_64": "47 299 337 372 1073742343 1073742361", "aarch64": "212 243 297 365"}
_SENDS = frozenset(_SENDING.get(platform.machine(), "").split())
_RECEIVES = frozenset(_RECEIVING.get(platform.machine(), "").split())
_NO_UNIX_SOCKET = frozenset({"sk_stream_wait_memory", "wait_woken"})  # where a sender waits for the network
_IN_A_FAULT = ("handle_userfault", "request_wait_answer", "folio_", "__folio_", "filemap_", "fuse_", "wait_on_page")
_IN_A_SEND = ("sock_alloc_send", "unix_wait_for_peer")  # also where a worker of an io_uring waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """The devices of a slice, and who has had it since it was last seen empty."""

    devices: tuple[Path, ...]
    users: frozenset[int]


@dataclass(slots=True, kw_only=True)
class _Budget:
    """What may still be looked at of a user in one pass."""

    left: int = field(default_factory=lambda: MOST_OF_A_USER)

    def take(self, wanted: int, most: int) -> int:
        taken = min(wanted, most, self.left)
        self.left -= taken
        return taken


def hiding(suspicions: Mapping[Key, Suspicion]) -> dict[Key, dict[int, str]]:
    """By key, the pids of who may be hiding a descriptor of it, and how. Root hides nothing.

    Bounds: MOST_PROCESSES, which is logged; PASSES times MOST_OF_A_USER for each of them.
    """
    asked = frozenset[int]().union(*(one.users for one in suspicions.values())) - {0}
    found: dict[Key, dict[int, str]] = {}
    whose: dict[int, frozenset[int]] = {}
    for _ in range(PASSES if asked else 0):
        wanted = {key: one for key, one in suspicions.items() if key not in found}
        budgets: dict[frozenset[int], _Budget] = {}
        for pid in _pids() - whose.keys():
            whose[pid] = users(pid) & asked
        suspects = [pid for pid, uids in whose.items() if uids]
        if not suspects:
            break
        numbers = {key: _numbers(one.devices) for key, one in wanted.items()}
        for pid in suspects:
            concerned = {key: numbers[key] for key, one in wanted.items() if whose[pid] & one.users}
            budget = budgets.setdefault(whose[pid], _Budget())
            for key, how in _look(pid, concerned, budget) if concerned else ():
                found.setdefault(key, {}).setdefault(pid, how)
    return found


def blind_to() -> str:
    """What this kernel does not tell of; empty when it tells all that is looked for."""
    with socket.socket(socket.AF_UNIX) as one:
        told = read(f"{PROC}/self/fdinfo/{one.fileno()}")
    if "\nscm_fds:" not in told:
        return "descriptors in a socket's queue, or open under another name (Linux older than 5.9)"
    return "" if "\nino:" in told else "descriptors open under another name (Linux older than 5.14)"


def _pids() -> set[int]:
    listed = [int(name) for name in names(PROC) if name.isdecimal()]
    if len(listed) > MOST_PROCESSES:
        log.warning("hiding.not_all_seen", extra={"processes": len(listed), "seen": MOST_PROCESSES})
    return set(listed[:MOST_PROCESSES]) - {os.getpid()}


def _numbers(devices: tuple[Path, ...]) -> dict[int, os.stat_result]:
    """By inode number, what the devices are."""
    there = (device.stat() for device in devices if device.exists())
    return {one.st_ino: one for one in there}


def _look(pid: int, wanted: Mapping[Key, Mapping[int, os.stat_result]], budget: _Budget) -> Iterator[tuple[Key, str]]:
    threads = names(f"{PROC}/{pid}/task")
    if (most := budget.take(len(threads), MOST_THREADS)) < len(threads):
        yield from ((key, TOO_MANY) for key in wanted)
    for thread in threads[:most]:
        if _is_passing(f"{PROC}/{pid}/task/{thread}"):
            yield from ((key, SOCKET) for key in wanted)
    for table in tables(pid, threads[:most]):
        descriptors = names(f"{table}/fd")
        if (most := budget.take(len(descriptors), MOST_DESCRIPTORS)) < len(descriptors):
            yield from ((key, TOO_MANY) for key in wanted)
        for descriptor in descriptors[:most]:
            yield from _look_at(table, descriptor, wanted)


def _look_at(
    table: str, descriptor: str, wanted: Mapping[Key, Mapping[int, os.stat_result]]
) -> Iterator[tuple[Key, str]]:
    target = link(f"{table}/fd/{descriptor}")
    if target.startswith("socket:"):
        if _number(f"{table}/fdinfo/{descriptor}", "scm_fds"):
            yield from ((key, SOCKET) for key in wanted)
    elif target == "anon_inode:[io_uring]":
        if _has_files(read(f"{table}/fdinfo/{descriptor}")):
            yield from ((key, RING) for key in wanted)
    elif target.startswith("/"):
        number = _number(f"{table}/fdinfo/{descriptor}", "ino")
        for key in [key for key, numbers in wanted.items() if number in numbers]:
            if _is(f"{table}/fd/{descriptor}", wanted[key][number]):
                yield key, RENAMED


def _is(path: str, device: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), device)  # noqa: PTH116 - as in holders
    except OSError:
        return False


def _number(path: str, field: str) -> int:
    _, found, rest = f"\n{read(path)}".partition(f"\n{field}:")
    return int(rest.split(maxsplit=1)[0]) if found else 0


def _has_files(ring: str) -> bool:
    """A ring that is at work tells no files, or only how many."""
    lines = ring.splitlines()
    at = next((number for number, line in enumerate(lines) if line.startswith("UserFiles:")), None)
    if at is None:
        return bool(lines)
    if lines[at].split()[1] == "0":
        return False
    listed = []
    for line in lines[at + 1 :]:
        if not line.startswith(" "):
            break
        listed.append(line)
    return not listed or any(not line.endswith("<none>") for line in listed)


def _is_passing(thread: str) -> bool:
    """A message that waits to be sent, or is being received into memory that is not there, has its descriptors with it.

    Most waits in recvmsg are for a message that has yet to come.
    """
    call, waits_in = read(f"{thread}/syscall").split(" ")[0], read(f"{thread}/wchan")
    if call in _SENDS:
        return waits_in not in _NO_UNIX_SOCKET
    return waits_in.startswith(_IN_A_SEND) or (call in _RECEIVES and waits_in.startswith(_IN_A_FAULT))
