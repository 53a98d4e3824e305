"""Has everybody left a slice? Looked at before it is given out, since what is open stays open.

A descriptor of a slice's capability devices goes on working for whoever holds it, and the next instance has the same
minor number. So a slice that was freed, or is new, is not idle before a look in /proc and one through NVML see nobody,
and nobody who had it may be hiding a descriptor; what passes through a socket for a moment is waited for. What is left
of a run that had it holds still meanwhile: a chain of forks would be gone from each process before that is looked at.
Where somebody is left it is withheld and he is named; it comes back as soon as he goes. Nobody waits for a look.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.devices import Devices
from slurm_plugin.agent.outlived import Outlived
from slurm_plugin.agent.threads import Threads
from slurm_plugin.agent.visitors import Visitors
from slurm_plugin.errors import NvmlError
from slurm_plugin.model import RunKey
from slurm_plugin.nvml.hiding import Suspicion, hiding
from slurm_plugin.nvml.holders import describe, open_in
from slurm_plugin.ports import Gpus

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 30.0  # between two looks at a slice that somebody has not left
SHORTEST_PAUSE_S = 0.05  # however fast they end
LAST_REST_S = 2.0  # the same, when they end and others are there time and again
PASSING_LOOKS = 3  # so many in a row see a user's sockets at work before he counts as hiding something there
MOST_WATCHED = 32  # processes of one slice whose end is noticed at once
MOST_TOLD = 3  # named in the report

Found = Mapping[int, str]  # by pid, how a process may be hiding a descriptor; "" when it has the slice in plain sight


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Called on the cgroups' thread. `hold` comes before each look, with the runs that had what is looked at: nobody
    who is outside gets in from then on, and what outlives these runs holds still. `go_on` ends that.
    """

    hold: Callable[[frozenset[RunKey]], tuple[Outlived, ...]] = lambda _: ()
    go_on: Callable[[tuple[Outlived, ...]], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Who is in a slice without a grant, and what outlives the runs that had it."""

    found: Found = field(default_factory=dict)
    outlived: tuple[Outlived, ...] = ()

    @property
    def anybody(self) -> bool:
        """What could not be made to hold still may have been anywhere."""
        return bool(self.found) or not all(one.still for one in self.outlived)


class Vacancy:
    """`moved` is called when a slice turns out to be idle, or haunted."""

    def __init__(
        self,
        book: Book,
        *,
        gpus: Gpus,
        devices: Devices,
        threads: Threads,
        visitors: Visitors,
        moved: Callable[[], None],
        watch: Callable[[], Watch],
    ) -> None:
        self._book = book
        self._gpus = gpus
        self._devices = devices
        self._threads = threads
        self._visitors = visitors
        self._moved = moved
        self._watch_now = watch
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
        pause_s, rest_s, passing = FIRST_PAUSE_S, SHORTEST_PAUSE_S, 0
        before = Left()
        try:
            while self._book.instance(slice_) is not None:
                self._again.discard(slice_)
                left = await self._left(slice_)
                if slice_ in self._again:
                    continue
                if left and not left.anybody:
                    break
                passing = passing + 1 if left and left.found and all(left.found.values()) else 0
                if 0 < passing < PASSING_LOOKS and slice_ not in self._book.haunted:
                    await asyncio.sleep(SHORTEST_PAUSE_S)
                    continue
                if left:
                    self._haunt(slice_, _told(left, before))
                    before = left
                if await _one_ends(left.found if left else (), pause_s, rest_s):
                    pause_s, rest_s = FIRST_PAUSE_S, min(2 * rest_s, LAST_REST_S)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
        finally:
            self._tasks.pop(slice_, None)
            self._book.unseen.discard(slice_)
            if self._book.haunted.pop(slice_, None) is not None:
                log.info("slice.left", extra={"slice": slice_})
        self._moved()

    def _haunt(self, slice_: str, who: str) -> None:
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
            seen = (await self._scanned()).get(slice_, Left())
            left = Left(found={**seen.found, **dict.fromkeys(computing, "")}, outlived=seen.outlived)
            if not left.anybody:
                await self._threads.disk(self._forget_visitors, slice_)
        except (NvmlError, OSError) as error:
            log.warning("slice.unseen", extra={"slice": slice_, "error": str(error)})
            return None
        except Exception:  # a look that failed has not seen nobody, whatever it failed at
            log.exception("slice.look_failed", extra={"slice": slice_})
            return None
        return left

    def _forget_visitors(self, slice_: str) -> None:
        if slice_ not in self._again and (found := self._book.instance(slice_)):
            self._visitors.left(found[1].caps)

    def _closed_to_users(self, slice_: str) -> bool:
        """Its devices may still be its last user's, if they could not be taken back."""
        found = self._book.instance(slice_)
        if found is None or self._devices.owner(found[1]) == 0:
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
            watch = self._watch_now()
            wanted, guests = await self._threads.disk(self._suspicions, tuple(self._tasks))
            outlived = await self._threads.cgroups(watch.hold, frozenset[RunKey]().union(*guests.values()))
            try:
                found = await self._threads.looks(_look, wanted)
            finally:
                if self._closed:  # and the threads with it
                    watch.go_on(outlived)
                elif outlived:
                    await self._threads.cgroups(watch.go_on, outlived)
        return {
            slice_: Left(found=found[slice_], outlived=tuple(one for one in outlived if one.run in guests[slice_]))
            for slice_ in wanted
        }

    def _suspicions(self, slices: Iterable[str]) -> tuple[dict[str, Suspicion], dict[str, frozenset[RunKey]]]:
        there = {slice_: found[1] for slice_ in slices if (found := self._book.instance(slice_))}
        guests = {slice_: self._visitors.of(one.caps) for slice_, one in there.items()}
        return {
            slice_: Suspicion(devices=self._devices.nodes(one), users=frozenset(run.uid for run in guests[slice_]))
            for slice_, one in there.items()
        }, guests


def _look(wanted: Mapping[str, Suspicion]) -> dict[str, Found]:
    opened = open_in({slice_: one.devices for slice_, one in wanted.items()})
    hidden = hiding(wanted)
    return {slice_: hidden.get(slice_, {}) | dict.fromkeys(opened.get(slice_, ()), "") for slice_ in wanted}


def _told(left: Left, before: Left) -> str:
    """Processes by their numbers, but those of a run whose processes are others at each look."""
    pids, runs = left.found, [one for one in left.outlived if not one.still]
    if before.found and left.outlived and not before.found.keys() & left.found.keys():
        pids, runs = {}, list(left.outlived)
    names = [f"{describe(pid)}: {how}" if how else describe(pid) for pid, how in sorted(pids.items())]
    names += [f"processes of job {one.run.job_id} (uid {one.run.uid}) that outlive it, in {one.cgroup}" for one in runs]
    more = len(names) - MOST_TOLD
    return ", ".join([*names[:MOST_TOLD], f"{more} more"] if more > 0 else names)


async def _one_ends(pids: Iterable[int], limit_s: float, rest_s: float) -> bool:
    """Wait until one of these processes ends, for `limit_s` at the most, and `rest_s` at the least if that is less."""
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
            await asyncio.sleep(min(rest_s, limit_s))
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        for fd in watched:
            loop.remove_reader(fd)
            os.close(fd)
    return True
