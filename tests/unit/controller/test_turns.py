"""Calls of any user are answered one by one, few wait, and nobody keeps the others out."""

import asyncio

import pytest

from slurm_plugin.controller.turns import CALLS_MAX, CALLS_OF_ONE, Turns
from slurm_plugin.errors import RequestError
from slurm_plugin.link.server import Caller


def user(uid: int, *, trusted: bool = False) -> Caller:
    return Caller(uid=uid, peer="ipv4:10.0.0.1:4", trusted=trusted)


async def hold(turns: Turns, caller: Caller, at_work: list[int], end: asyncio.Event) -> None:
    async with turns.turn(caller):
        at_work.append(caller.uid)
        await end.wait()
        at_work.remove(caller.uid)


async def refused(turns: Turns, caller: Caller) -> bool:
    try:
        async with asyncio.timeout(0), turns.turn(caller):
            return False
    except RequestError:
        return True
    except TimeoutError:
        return False


async def test_one_is_at_work_and_no_more_than_a_few_wait() -> None:
    turns, at_work, end = Turns(), list[int](), asyncio.Event()
    calls = [asyncio.create_task(hold(turns, user(uid), at_work, end)) for uid in range(CALLS_MAX)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert at_work == [0]
    assert await refused(turns, user(99))
    assert not await refused(turns, user(0, trusted=True))
    end.set()
    await asyncio.gather(*calls)
    assert not await refused(turns, user(99))


async def test_a_user_has_few_places_and_others_have_theirs() -> None:
    turns, at_work, end = Turns(), list[int](), asyncio.Event()
    calls = [asyncio.create_task(hold(turns, user(7), at_work, end)) for _ in range(CALLS_OF_ONE)]
    await asyncio.sleep(0)
    assert await refused(turns, user(7))
    assert not await refused(turns, user(8))
    calls.pop().cancel()  # who hangs up gives its place back
    await asyncio.sleep(0)
    assert not await refused(turns, user(7))
    end.set()
    await asyncio.gather(*calls)


async def test_what_fails_gives_its_place_back() -> None:
    turns = Turns()
    for _ in range(CALLS_MAX + 1):
        with pytest.raises(ZeroDivisionError):
            async with turns.turn(user(7)):
                raise ZeroDivisionError
