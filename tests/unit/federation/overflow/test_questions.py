"""Many who ask at one moment are answered by one command, and never with an answer that is older than the question."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from federation.errors import Unavailable
from federation.overflow.questions import Together


class Slow:
    """Answers each id with the number of the question, once it is let to."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.go = asyncio.Semaphore(0)
        self.fails = False

    async def ask(self, job_ids: Sequence[int]) -> Mapping[int, int]:
        self.asked.append(list(job_ids))
        number = len(self.asked)
        await self.go.acquire()
        if self.fails:
            raise Unavailable("no answer")
        return {one: number for one in job_ids if one < 100}


async def begun(slow: Slow, count: int) -> None:
    async with asyncio.timeout(10):
        while len(slow.asked) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_who_asks_while_a_question_is_under_way_waits_for_the_next_one() -> None:
    slow = Slow()
    together = Together(slow.ask)
    first = asyncio.create_task(together.of(1))
    await begun(slow, 1)
    later = [asyncio.create_task(together.of(one)) for one in (1, 2, 3, 100)]
    await asyncio.sleep(0)
    slow.go.release()
    assert await first == 1
    await begun(slow, 2)
    slow.go.release()
    assert await asyncio.gather(*later) == [2, 2, 2, None]
    assert slow.asked == [[1], [1, 2, 3, 100]]


async def test_a_question_that_fails_fails_for_those_who_asked_it_and_the_next_one_is_asked() -> None:
    slow = Slow()
    together, slow.fails = Together(slow.ask), True
    some = [asyncio.create_task(together.of(one)) for one in (1, 2)]
    await begun(slow, 1)
    slow.go.release()
    for one in some:
        with pytest.raises(Unavailable, match="no answer"):
            await one
    slow.fails = False
    slow.go.release()
    assert await together.of(3) == 2


async def test_who_has_gone_is_nobody_elses_loss() -> None:
    slow = Slow()
    together = Together(slow.ask)
    gone, stays = (asyncio.create_task(together.of(one)) for one in (1, 2))
    await begun(slow, 1)
    gone.cancel()
    slow.go.release()
    assert await stays == 1
    slow.go.release()
    assert await together.of(3) == 2
