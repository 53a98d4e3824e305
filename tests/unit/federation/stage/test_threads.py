"""Who is cancelled while a thread works for him ends when the thread has, and not before."""

import asyncio
import threading

import pytest

from federation.stage.threads import in_thread

WAIT_S = 10.0


class Held:
    """Work that is held up until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go, self.done = threading.Event(), threading.Event(), False

    def work(self, fails: bool = False) -> int:
        self.begun.set()
        assert self.go.wait(WAIT_S)
        self.done = True
        if fails:
            raise OSError(28, "no room")
        return 7


@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
async def test_however_often_it_is_cancelled_it_waits_for_the_thread(cancels: int, fails: bool) -> None:
    held, unwanted = Held(), list[int]()
    task = asyncio.create_task(in_thread(held.work, fails, unwanted=unwanted.append))
    await asyncio.to_thread(held.begun.wait, WAIT_S)
    for _ in range(cancels):
        task.cancel()
        await asyncio.wait((task,), timeout=0.05)
        assert not task.done()
    held.go.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, WAIT_S)
    assert held.done
    assert unwanted == ([] if fails else [7])


async def test_the_thread_is_told_that_nobody_wants_it_any_more() -> None:
    held = Held()
    task = asyncio.create_task(in_thread(held.work, hurry=held.go.set))
    await asyncio.to_thread(held.begun.wait, WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, WAIT_S)
    assert held.done


async def test_what_came_of_it_is_told_and_so_is_what_failed() -> None:
    held = Held()
    held.go.set()
    unwanted = list[int]()
    assert await in_thread(held.work, unwanted=unwanted.append) == 7
    with pytest.raises(OSError, match="no room"):
        await in_thread(held.work, True, unwanted=unwanted.append)
    assert unwanted == []


async def test_a_time_limit_is_told_as_one() -> None:
    held = Held()
    limit = asyncio.timeout(0.01)

    async def let_go() -> None:
        while not limit.expired():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        held.go.set()

    letting_go = asyncio.create_task(let_go())
    with pytest.raises(TimeoutError):
        async with limit:
            await in_thread(held.work)
    await letting_go
    assert held.done
