"""Has everybody left a slice? Looked at before it is given out, since what is open stays open.

A descriptor of a slice's capability devices goes on working for whoever holds it, and the next instance has the same
minor number. So a slice that was freed, or is new, is not idle before a look in /proc and one through NVML see nobody,
and nobody who had it may be hiding a descriptor; what passes through a socket for a moment is waited for.
Where somebody is left it is withheld and he is named; it comes back as soon as he goes. Nobody waits for a look.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.devices import Devices
from slurm_plugin.agent.threads import Threads
from slurm_plugin.agent.visitors import Visitors
from slurm_plugin.errors import NvmlError
from slurm_plugin.nvml.hiding import Suspicion, hiding
from slurm_plugin.nvml.holders import describe, open_in
from slurm_plugin.ports import Gpus

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 30.0  # between two looks at a slice that somebody has not left
SHORTEST_PAUSE_S = 0.05  # however fast they end
PASSING_LOOKS = 3  # so many in a row see a user's sockets at work before he counts as hiding something there
MOST_WATCHED = 32  # processes of one slice whose end is noticed at once
MOST_TOLD = 3  # named in the report

Left = Mapping[int, str]  # by pid, how a process may be hiding a descriptor; "" when it has the slice in plain sight


class Vacancy:
    """`moved` is called when a slice turns out to be idle, or haunted. `before_look` is called before each look, on the
    cgroups' thread: it sees to it that nobody who is outside now gets in later.
    """

    def __init__(
        self,
        book: Book,
        *,
        gpus: Gpus,
        devices: Devices,
        threads: Threads,
        visitors: Visitors,
        moved: Callable[[], None],
        before_look: Callable[[], None],
    ) -> None:
        self._book = book
        self._gpus = gpus
        self._devices = devices
        self._threads = threads
        self._visitors = visitors
        self._moved = moved
        self._before_look = before_look
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by slice
        self._again: set[str] = set()  # to be looked at anew: it changed hands during a look
        self._scanning = asyncio.Lock()
        self._scan: asyncio.Task[dict[str, Left]] | None = None  # one that has not begun
        self._closed = False

    def look(self, slices: Iterable[str]) -> None:
        """From here on these are not idle, until nobody is left there."""
        for slice_ in slices:
            if slice_ not in self._book.haunted:
                self._book.unseen.add(slice_)
            if slice_ in self._tasks:
                self._again.add(slice_)
            elif not self._closed:
                self._tasks[slice_] = asyncio.create_task(self._watch(slice_))

    def forgotten(self) -> set[str]:
        """Unseen slices that no look is under way for."""
        return self._book.unseen - self._tasks.keys()

    def close(self) -> None:
        self._closed = True
        for task in (*self._tasks.values(), *([self._scan] if self._scan else [])):
            task.cancel()

    async def _watch(self, slice_: str) -> None:
        """Until nobody is there, or it is no more. A driver that says nothing has not said nobody."""
        pause_s, passing = FIRST_PAUSE_S, 0
        try:
            while self._book.instance(slice_) is not None:
                self._again.discard(slice_)
                left = await self._left(slice_)
                if slice_ in self._again:
                    continue
                if left == {}:
                    break
                passing = passing + 1 if left and all(left.values()) else 0
                if 0 < passing < PASSING_LOOKS and slice_ not in self._book.haunted:
                    await asyncio.sleep(SHORTEST_PAUSE_S)
                    continue
                if left:
                    self._haunt(slice_, left)
                if await _one_ends(left or (), pause_s):
                    pause_s = FIRST_PAUSE_S
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
        finally:
            self._tasks.pop(slice_, None)
            self._book.unseen.discard(slice_)
            if self._book.haunted.pop(slice_, None) is not None:
                log.info("slice.left", extra={"slice": slice_})
        self._moved()

    def _haunt(self, slice_: str, left: Left) -> None:
        more = f", {len(left) - MOST_TOLD} more" if len(left) > MOST_TOLD else ""
        who = ", ".join(_told(pid, how) for pid, how in sorted(left.items())[:MOST_TOLD]) + more
        if self._book.haunted.get(slice_) != who:
            log.warning("slice.haunted", extra={"slice": slice_, "by": who})
            self._book.haunted[slice_] = who
            self._book.unseen.discard(slice_)
            self._moved()

    async def _left(self, slice_: str) -> Left | None:
        """Who is there without a grant; None when that could not be seen."""
        try:
            if not await self._threads.disk(self._closed_to_users, slice_):
                return None
            computing = await self._threads.driver(self._gpus.processes, slice_)
            found = (await self._scanned()).get(slice_, {})
            if not computing and not found:
                await self._threads.disk(self._forget_visitors, slice_)
        except (NvmlError, OSError) as error:
            log.warning("slice.unseen", extra={"slice": slice_, "error": str(error)})
            return None
        except Exception:  # a look that failed has not seen nobody, whatever it failed at
            log.exception("slice.look_failed", extra={"slice": slice_})
            return None
        return {**found, **dict.fromkeys(computing, "")}

    def _forget_visitors(self, slice_: str) -> None:
        if slice_ not in self._again and (found := self._book.instance(slice_)):
            self._visitors.left(found[1].caps)

    def _closed_to_users(self, slice_: str) -> bool:
        """Its devices may still be its last user's, if they could not be taken back."""
        found = self._book.instance(slice_)
        if found is None or self._devices.is_roots(found[1]):
            return True
        return self._devices.give(*found, 0)

    async def _scanned(self) -> dict[str, Left]:
        """Who has what open, by a scan that begins after this call; one serves all who ask before it begins."""
        if self._scan is None:
            self._scan = asyncio.create_task(self._next_scan())
        return await asyncio.shield(self._scan)

    async def _next_scan(self) -> dict[str, Left]:
        async with self._scanning:
            self._scan = None
            await self._threads.cgroups(self._before_look)
            wanted = await self._threads.disk(self._suspicions, tuple(self._tasks))
            return await self._threads.looks(_look, wanted)

    def _suspicions(self, slices: Iterable[str]) -> dict[str, Suspicion]:
        there = {slice_: found[1] for slice_ in slices if (found := self._book.instance(slice_))}
        return {
            slice_: Suspicion(devices=self._devices.nodes(one), users=self._visitors.of(one.caps))
            for slice_, one in there.items()
        }


def _look(wanted: Mapping[str, Suspicion]) -> dict[str, Left]:
    opened = open_in({slice_: one.devices for slice_, one in wanted.items()})
    hidden = hiding(wanted)
    return {slice_: hidden.get(slice_, {}) | dict.fromkeys(opened.get(slice_, ()), "") for slice_ in wanted}


def _told(pid: int, how: str) -> str:
    return f"{describe(pid)}: {how}" if how else describe(pid)


async def _one_ends(pids: Iterable[int], limit_s: float) -> bool:
    """Wait until one of these processes ends, for `limit_s` at the most."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    watched: list[int] = []
    try:
        for pid in tuple(pids)[:MOST_WATCHED]:
            try:
                watched.append(os.pidfd_open(pid))
            except OSError:
                ended.set()  # gone by now
            else:
                loop.add_reader(watched[-1], ended.set)
        async with asyncio.timeout(limit_s):
            await asyncio.sleep(min(SHORTEST_PAUSE_S, limit_s))
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        for fd in watched:
            loop.remove_reader(fd)
            os.close(fd)
    return True
