"""Ends are given out one by one once the first few have gone."""

import asyncio

from federation.access.rates import Rate
from federation.overflow.pacing import Pacer


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
