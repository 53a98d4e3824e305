import asyncio
import threading
import time

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.stalls import CALL_S, DRIVER, LOOK_S, UNSEEN, Stalls
from slurm_plugin.agent.threads import Threads


class Site:
    """A clock that runs ahead of the real one as far as the test says."""

    def __init__(self) -> None:
        self.ahead_s, self.moved, self.book, self.threads = 0.0, 0, Book(), Threads()
        self.stalls = Stalls(self.book, self.threads, moved=self.move, clock=lambda: time.monotonic() + self.ahead_s)

    def move(self) -> None:
        self.moved += 1

    async def look(self, ahead_s: float) -> tuple[str, dict[str, str], int]:
        self.ahead_s = ahead_s
        await self.stalls.look()
        return self.stalls.fault, self.stalls.withheld, self.moved


async def test_a_driver_that_does_not_return_is_a_fault_until_it_does() -> None:
    site, began, returns = Site(), threading.Event(), threading.Event()

    def call() -> None:
        began.set()
        returns.wait()

    try:
        assert await site.look(10 * CALL_S) == ("", {}, 0)
        task = asyncio.create_task(site.threads.driver(call))
        await site.threads.looks(began.wait)
        assert await site.look(0) == ("", {}, 0)
        for _ in range(2):
            assert await site.look(CALL_S) == (DRIVER, {}, 1)
        returns.set()
        await task
        assert await site.look(2 * CALL_S) == ("", {}, 2)
    finally:
        returns.set()
        site.threads.close()


async def test_a_freed_slice_that_no_look_tells_anything_of_is_withheld_in_the_end() -> None:
    site = Site()
    site.book.unseen.add("a")
    assert await site.look(0) == ("", {}, 0)
    site.book.unseen.add("b")
    for _ in range(2):
        assert await site.look(LOOK_S) == ("", {"a": UNSEEN}, 1)
    site.book.unseen = {"b"}
    assert await site.look(LOOK_S + 1) == ("", {}, 2)
    assert await site.look(3 * LOOK_S) == ("", {"b": UNSEEN}, 3)
    site.threads.close()
