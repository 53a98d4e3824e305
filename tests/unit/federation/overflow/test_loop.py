"""A loop whose look fails goes on, and knows what is wrong."""

import asyncio
import logging

import pytest

from federation.errors import Unavailable
from federation.overflow.loop import Loop
from slurm_plugin.errors import SlurmError

WRONG = {
    "Slurm says no": (SlurmError("no"), "no", "overflow.not_looked"),
    "the journal is away": (Unavailable("it is away"), "it is away", "overflow.not_looked"),
    "a slip of ours": (KeyError("n1"), "a fault of the daemon's: KeyError: 'n1'", "overflow.failed"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_what_is_wrong_is_known_until_it_is_not_and_logged_once(
    wrong: tuple[Exception, str, str], caplog: pytest.LogCaptureFixture
) -> None:
    error, said, event = wrong
    comes: list[Exception] = [error, error]
    rested, told = asyncio.Event(), []

    async def look() -> None:
        if comes:
            raise comes.pop()

    async def rest(took_s: float) -> None:
        assert took_s >= 0
        told.append(loop.problem)
        if len(told) == 3:
            rested.set()
            await asyncio.Event().wait()

    loop = Loop("jobs", look, rest)
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(loop.run())
        await asyncio.wait_for(rested.wait(), 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert told == [said, said, ""]
    assert [(line.message, line.__dict__["about"]) for line in caplog.records] == [(event, "jobs")]


async def test_a_look_may_go_on_and_tell_what_is_wrong_all_the_same() -> None:
    async def look() -> str:
        return "job 12: a slip"

    async def rest(took_s: float) -> None: ...

    loop = Loop("jobs", look, rest)
    await loop.once()
    assert loop.problem == "job 12: a slip"
