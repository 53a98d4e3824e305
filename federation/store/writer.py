"""Who alone writes, and group commit: whatever waits while the disk is busy becomes durable together."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID

from federation.errors import StoreError, StoreFull, StoreUnfit, Unavailable
from federation.model.job import Job
from federation.model.token import Key
from federation.store.opening import At, connect, nowhere
from federation.store.room import Room
from federation.store.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_WAITING = 10_000  # transactions handed in and not begun; more are refused
MOST_TOGETHER = 512  # transactions of one commit
HOLD_EVERY = 256  # commits between tries to take back a ballast that was given up


@dataclass(frozen=True, slots=True)
class _Work(Generic[T]):
    call: Callable[[Store], T]
    done: "asyncio.Future[T] | None"  # None: what closes a group
    long: bool = False


Results = list[tuple[Any, Exception | None]]


class Writer:
    """A journal in service. `run` is its whole use: a function over the store, as one transaction.

    The function is called on the event loop, and a thread waits for the disk; what is long, and what is done again when
    the disk was full the first time, is called on the thread. What it returns is known to be durable. `then` is called
    at the end of each group, and becomes durable with it; `told` hears what it gave, `failed` what it raised, `saved`
    what is watched and has changed.
    """

    def __init__(self, path: Path, *, journal: UUID, room: Room | None = None, at: At = nowhere) -> None:
        """Opens it. Raises StoreUnfit."""
        self._room = room or Room(path)
        self._room.hold()
        self._store = Store(connect(path, at=at), journal=journal, may_accept=self._room.may_accept)
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of nobody whose transaction it is
        self._waiting: deque[_Work[Any]] = deque()
        self._rests = asyncio.Event()  # nothing waits, and nothing is on its way to the disk
        self._rests.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._since_hold = 0
        self._closed = False
        self._damaged: asyncio.Future[StoreUnfit] = self._loop.create_future()
        self.then: Callable[[Store], Any] | None = None
        self.told: Callable[[Any], None] = lambda _: None
        self.failed: Callable[[Exception], None] = lambda _: None
        self.saved: Callable[[list[Job | Key]], None] = lambda _: None

    async def run(self, call: Callable[[Store], T], *, long: bool = False) -> T:
        """Raises what `call` raises, StoreError, StoreFull, and Unavailable when too much waits already.

        `long`: it looks at many records. It is called on the thread, alone, and `then` is not.
        """
        if self._closed:
            raise Unavailable("the journal is closed")
        if self._damaged.done():
            raise _anew(self._damaged.result())
        if len(self._waiting) >= MOST_WAITING:
            raise Unavailable(f"{MOST_WAITING} transactions wait for the journal's disk")
        done: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append(_Work(call, done, long))
        if self._rests.is_set():
            self._rests.clear()
            self._loop.call_soon(self._begin, context=self._context)
        return await done

    async def damage(self) -> None:
        """Until a transaction meets damage: from then on none is taken. Raises StoreUnfit then."""
        raise _anew(await asyncio.shield(self._damaged))

    async def close(self) -> None:
        """After all that was handed in."""
        was_closed, self._closed = self._closed, True
        await self._rests.wait()
        if not was_closed:
            self._thread.shutdown()
            self._store.close()

    def _begin(self) -> None:
        """All of it that succeeds becomes durable together."""
        if self._waiting[0].long:
            self._on_thread([self._waiting.popleft()], self._again)
            return
        group: list[_Work[Any]] = []
        while self._waiting and len(group) < MOST_TOGETHER and not self._waiting[0].long:
            group.append(self._waiting.popleft())
        if self.then is not None:
            group.append(_Work(self.then, None))
        before = self._store.changes()
        try:
            self._store.begin()
            results = self._parts(group)
            self._store.close_up()
            lasting = self._store.changes() != before
            if not lasting:
                self._store.commit()
        except Exception as error:
            self._undo(group, error)
            return
        if lasting:
            waits = self._loop.run_in_executor(self._thread, self._commit)
            waits.add_done_callback(lambda waits: self._settle(waits, group, results))
        else:
            self._store.committed()
            self._tell(group, results)

    def _commit(self) -> None:
        self._at("commit: before")
        self._store.commit()
        self._at("commit: after")

    def _settle(self, waits: "asyncio.Future[None]", group: list[_Work[Any]], results: Results) -> None:
        error = waits.exception()
        if error is None:
            self._store.committed()
            self._tell(group, results)
        else:
            self._undo(group, error)

    def _undo(self, group: list[_Work[Any]], error: BaseException) -> None:
        try:
            self._store.roll_back()
        except Exception as worse:
            error = worse
        if isinstance(error, StoreFull):
            given_up = self._room.give_up()
            log.warning("journal.full", extra={"ballast_given_up": given_up, "transactions": len(group)})
            self._on_thread(group, self._again)
        else:
            if not isinstance(error, StoreUnfit):  # which is told once, as damage
                log.error("journal.failed", extra={"transactions": len(group)}, exc_info=error)
            self._tell(group, [_failed(error)] * len(group))

    def _on_thread(self, group: list[_Work[Any]], call: Callable[[list[_Work[Any]]], Results]) -> None:
        waits = self._loop.run_in_executor(self._thread, call, group)
        waits.add_done_callback(lambda waits: self._tell(group, waits.result()))

    def _tell(self, group: list[_Work[Any]], results: Results) -> None:
        self._heed_damage(results)
        try:
            for work, (value, error) in zip(group, results, strict=True):
                if work.done is None:
                    self._tell_then(value, error)
                elif work.done.cancelled():
                    continue
                elif error is not None:
                    work.done.set_exception(error)
                else:
                    work.done.set_result(value)
            self.saved(self._store.take_saved())
        finally:
            self._hold()
            if self._waiting:
                self._loop.call_soon(self._begin, context=self._context)
            else:
                self._rests.set()

    def _heed_damage(self, results: Results) -> None:
        found = next((error for _, error in results if isinstance(error, StoreUnfit)), None)
        if found is not None and not self._damaged.done():
            log.critical("journal.damaged", extra={"why": str(found), "hint": found.hint})
            self._damaged.set_result(found)

    def _tell_then(self, value: object, error: Exception | None) -> None:
        if error is None:
            self.told(value)
        else:
            if not isinstance(error, StoreUnfit):
                log.error("journal.close_failed", extra={"why": str(error)}, exc_info=error)
            self.failed(error)

    def _parts(self, group: list[_Work[Any]]) -> Results:
        results: Results = []
        for work in group:
            try:
                with self._store.part():
                    results.append((work.call(self._store), None))
            except StoreError:
                raise
            except Exception as error:
                results.append((None, error))
        return results

    def _again(self, group: list[_Work[Any]]) -> Results:
        """One by one, and waited for: a large one that does not fit takes no small one with it."""
        results: Results = []
        for work in group:
            try:
                with self._store.transaction():
                    found = self._parts([work])
                    self._at("commit: before")
                self._at("commit: after")
                results += found
            except Exception as error:
                results.append(_failed(error))
        return results

    def _hold(self) -> None:
        self._since_hold += 1
        if self._since_hold >= HOLD_EVERY and not self._closed:
            self._since_hold = 0
            self._thread.submit(self._room.hold)  # writes some MiB, and raises where the disk is gone


def _failed(error: BaseException) -> tuple[None, Exception]:
    return None, error if isinstance(error, StoreError) else StoreError(f"the journal failed: {error}")


def _anew(error: StoreUnfit) -> StoreUnfit:
    """One of its own for each who hears of it: a traceback grows with each raise."""
    return StoreUnfit(str(error), hint=error.hint)
