"""Ends are given out one by one once the first few have gone."""

import asyncio

from federation.access.rates import Rate
from federation.overflow.pacing import Pacer, apart_s


async def test_the_first_go_at_once_and_the_others_at_the_rate() -> None:
    pacer, loop = Pacer(Rate(per_s=20.0, burst=2.0)), asyncio.get_running_loop()
    begun = loop.time()
    await asyncio.gather(pacer.turn(), pacer.turn())
    await asyncio.gather(*(pacer.turn() for _ in range(4)))
    assert loop.time() - begun >= 4 / 20.0 - 0.01


async def test_who_goes_away_while_he_waits_takes_nobodys_turn() -> None:
    pacer = Pacer(Rate(per_s=20.0, burst=1.0))
    await pacer.turn()
    gone = asyncio.create_task(pacer.turn())
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(10):
        await pacer.turn()


def test_looks_take_a_share_of_the_time_and_a_long_one_is_not_waited_for_too_long() -> None:
    assert [apart_s(2.0, took_s) for took_s in (0.0, 0.2, 0.5, 60.0)] == [2.0, 2.0, 5.0, 30.0]
