"""The one thread that writes, and group commit: whatever waits while the disk is busy becomes durable together."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID

from federation.errors import StoreError, StoreFull, Unavailable
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


class Writer:
    """A journal in service. `run` is its whole use: a function over the store, as one transaction.

    The function may be called twice when the disk was full the first time. What it returns is known to be durable.
    `then` is called at the end of each group, and becomes durable with it; `told` hears on the event loop what it gave,
    `failed` what it raised.
    """

    def __init__(self, path: Path, *, journal: UUID, room: Room | None = None, at: At = nowhere) -> None:
        """Opens it. Raises StoreUnfit."""
        self._room = room or Room(path)
        self._room.hold()
        self._store = Store(connect(path, at=at), journal=journal, may_accept=self._room.may_accept)
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.Queue[_Work[Any] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._serve, name="journal", daemon=True)
        self._since_hold = 0
        self._closed = False
        self.then: Callable[[Store], Any] | None = None
        self.told: Callable[[Any], None] = lambda _: None
        self.failed: Callable[[Exception], None] = lambda _: None
        self._thread.start()

    @property
    def journal(self) -> UUID:
        return self._store.journal

    async def run(self, call: Callable[[Store], T]) -> T:
        """Raises what `call` raises, StoreError, StoreFull, and Unavailable when too much waits already."""
        done: asyncio.Future[T] = self._loop.create_future()
        work = _Work(call, done)
        if self._closed:
            raise Unavailable("the journal is closed")
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            raise Unavailable(f"{MOST_WAITING} transactions wait for the journal's disk") from None
        return await done

    async def close(self) -> None:
        """After all that was handed in."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._waiting.put, None)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        last = False
        while not last:
            group = [self._waiting.get()]
            while len(group) < MOST_TOGETHER and group[-1] is not None:
                try:
                    group.append(self._waiting.get_nowait())
                except queue.Empty:
                    break
            last = group[-1] is None
            self._commit([work for work in group if work is not None])
        self._store.close()

    def _commit(self, group: list[_Work[Any]]) -> None:
        if not group:
            return
        if self.then is not None:
            group = [*group, _Work(self.then, None)]
        try:
            results = self._try(group)
        except StoreFull:
            given_up = self._room.give_up()
            log.warning("journal.full", extra={"ballast_given_up": given_up, "transactions": len(group)})
            results = self._again(group)
        except Exception as error:
            log.exception("journal.failed", extra={"transactions": len(group)})
            results = [_failed(error)] * len(group)
        self._loop.call_soon_threadsafe(self._tell, group, results)
        self._hold()

    def _tell(self, group: list[_Work[Any]], results: list[tuple[Any, Exception | None]]) -> None:
        for work, (value, error) in zip(group, results, strict=True):
            if work.done is None:
                self._tell_then(value, error)
            elif work.done.cancelled():
                continue
            elif error is not None:
                work.done.set_exception(error)
            else:
                work.done.set_result(value)

    def _tell_then(self, value: object, error: Exception | None) -> None:
        if error is None:
            self.told(value)
        else:
            log.error("journal.close_failed", extra={"why": str(error)}, exc_info=error)
            self.failed(error)

    def _try(self, group: list[_Work[Any]]) -> list[tuple[Any, Exception | None]]:
        """All that succeed become durable together. Raises StoreFull, StoreError: then nothing did."""
        results: list[tuple[Any, Exception | None]] = []
        with self._store.transaction():
            for work in group:
                try:
                    with self._store.part():
                        results.append((work.call(self._store), None))
                except StoreError:
                    raise
                except Exception as error:
                    results.append((None, error))
            self._at("commit: before")
        self._at("commit: after")
        return results

    def _again(self, group: list[_Work[Any]]) -> list[tuple[Any, Exception | None]]:
        """One by one: a large one that does not fit takes no small one with it."""
        results = []
        for work in group:
            try:
                results += self._try([work])
            except Exception as error:
                results.append(_failed(error))
        return results

    def _hold(self) -> None:
        self._since_hold += 1
        if self._since_hold >= HOLD_EVERY:
            self._since_hold = 0
            self._room.hold()


def _failed(error: Exception) -> tuple[None, Exception]:
    return None, error if isinstance(error, StoreError) else StoreError(f"the journal failed: {error}")
