"""Calls of a backend: so many at a time, the journal's time is none of theirs, and what comes of each is one step."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast
from uuid import UUID

import pytest

from federation.calls import CALLS, MOST_CALLS, Calls, Step
from federation.engine.effects import Deliver, Fence, Forget, HandOver, Look
from federation.engine.target import TargetSide
from federation.errors import NoRoom, OutcomeUnknown, Refused, Unavailable
from federation.model.messages import Room
from federation.model.spec import JobSpec
from federation.model.token import Key
from federation.policy.admit import House
from federation.ports import Now, Seen, Sight
from federation.store.store import Store

NOW = Now(wall=1.0, mono=1.0)
WAIT_S = 10.0


def hand_over(number: int) -> HandOver:
    return HandOver(pool="gpu", key=Key(UUID(int=number), 1), spec=JobSpec(user="ann"), user="ann")


@dataclass
class Backend:
    said: list[str] = field(default_factory=list)
    error: Exception | None = None
    busy: asyncio.Event = field(default_factory=asyncio.Event)
    sees: dict[Key, Seen] = field(default_factory=dict)

    async def room(self) -> Room:
        raise AssertionError("nobody asks this here")

    async def submit(self, key: Key, spec: JobSpec, user: str) -> str:
        self.said.append("submit")
        await self.busy.wait()
        if self.error is not None:
            raise self.error
        return "7"

    async def look(self, keys: Sequence[Key]) -> Mapping[Key, Seen]:
        self.said.append(f"look {len(keys)}")
        return self.sees

    async def fence(self, key: Key) -> bool:
        self.said.append("fence")
        return False

    async def stop(self, key: Key) -> None:
        self.said.append("stop")

    async def signal(self, key: Key, signal: int) -> None:
        self.said.append(f"signal {signal}")
        if self.error is not None:
            raise self.error

    async def forget(self, key: Key) -> None:
        self.said.append("forget")


@dataclass
class Journal:
    """Takes steps, and is done with none before it is let to."""

    steps: list[Step] = field(default_factory=list)
    free: asyncio.Event = field(default_factory=asyncio.Event)

    async def act(self, step: Step) -> None:
        self.steps.append(step)
        await self.free.wait()


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def calls(backend: Backend, journal: Journal) -> Calls:
    return Calls({"gpu": backend}, TargetSide(House(pools={"gpu": 9}), NOW), journal.act, lambda: NOW)


async def until(count: int, found: Sequence[object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_next_call_does_not_wait_for_the_journal(calls: Calls, backend: Backend, journal: Journal) -> None:
    tasks = [
        asyncio.create_task(calls.call(hand_over(number)))
        for number in range(3 * CALLS)
        if calls.take(hand_over(number))
    ]
    await until(CALLS, backend.said)
    assert len(backend.said) == CALLS  # at a time
    backend.busy.set()
    await until(3 * CALLS, journal.steps)
    assert len(backend.said) == 3 * CALLS
    journal.free.set()
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)


async def test_what_waits_has_an_end_and_a_pool_that_is_not_there_takes_nothing(calls: Calls, backend: Backend) -> None:
    assert not calls.take(replace(hand_over(1), pool="tape"))
    assert [calls.take(hand_over(1)) for _ in range(MOST_CALLS + 1)] == [True] * MOST_CALLS + [False]
    backend.busy.set()


async def test_each_effect_asks_its_own(calls: Calls, backend: Backend, journal: Journal) -> None:
    key = Key(UUID(int=1), 1)
    journal.free.set()
    for effect in (
        Look(pool="gpu", keys=(key,)),
        Fence(pool="gpu", key=key),
        Deliver(pool="gpu", key=key, number=1, signal=9),
        Forget(pool="gpu", key=key),
    ):
        assert calls.take(effect)
        await calls.call(effect)
    assert backend.said == ["look 1", "fence", "stop", "signal 9", "forget"]
    assert len(journal.steps) == 4


@pytest.mark.parametrize(
    "error", [None, Refused("no"), NoRoom("full"), Unavailable("not now"), OutcomeUnknown("who knows")]
)
async def test_every_answer_to_a_hand_over_reaches_the_journal(
    calls: Calls, backend: Backend, journal: Journal, error: Exception | None
) -> None:
    backend.error = error
    backend.busy.set()
    journal.free.set()
    assert calls.take(hand_over(1))
    await calls.call(hand_over(1))
    assert len(journal.steps) == 1


async def test_what_is_being_handed_over_is_not_handed_over_again_and_not_called_absent(
    backend: Backend, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that takes minutes for it, as for large inputs, would be given it four times a minute."""
    target = TargetSide(House(pools={"gpu": 9}), NOW)
    looked: list[Mapping[Key, Seen]] = []
    monkeypatch.setattr(target, "looked", lambda store, seen, now: looked.append(seen))
    calls = Calls({"gpu": backend}, target, journal.act, lambda: NOW)
    first, other = hand_over(1), hand_over(2)
    assert calls.take(first)
    task = asyncio.create_task(calls.call(first))
    await until(1, backend.said)
    assert (calls.on_its_way(first), calls.on_its_way(other)) == (True, False)
    journal.free.set()
    absent, runs = Seen(sight=Sight.ABSENT), Seen(sight=Sight.RUNNING)
    for backend.sees in ({first.key: absent, other.key: absent}, {first.key: runs}):
        look = Look(pool="gpu", keys=(first.key, other.key))
        assert calls.take(look)
        await calls.call(look)
        journal.steps[-1](cast(Store, None))
    assert looked == [{other.key: absent}, {first.key: runs}]
    backend.busy.set()
    await asyncio.wait_for(task, WAIT_S)
    assert not calls.on_its_way(first)


def deliver(number: int, signal: int, token: int = 1) -> Deliver:
    return Deliver(pool="gpu", key=Key(UUID(int=token), 1), number=number, signal=signal)


async def test_signals_of_one_attempt_are_delivered_one_by_one_in_their_order(
    calls: Calls, backend: Backend, journal: Journal
) -> None:
    """A stop that takes long is not overtaken by what lets the job go on; another job's signals do not wait for it."""
    tasks = []
    for effect in (deliver(1, 19), deliver(2, 18), deliver(1, 10, token=2)):
        assert not calls.on_its_way(effect)
        assert calls.take(effect)
        tasks.append(asyncio.create_task(calls.call(effect)))
    await until(2, journal.steps)
    assert backend.said == ["signal 19", "signal 10"]  # until the journal has it that the first was delivered
    assert calls.on_its_way(deliver(1, 19))  # said again meanwhile, or late
    assert calls.on_its_way(deliver(2, 18))
    assert not calls.on_its_way(deliver(3, 19))
    journal.free.set()
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)
    assert backend.said == ["signal 19", "signal 10", "signal 18"]
    assert not calls.on_its_way(deliver(1, 19))  # now the journal knows better


async def test_of_a_signal_that_the_backend_did_not_take_the_journal_hears_nothing_and_the_next_is_tried(
    calls: Calls, backend: Backend, journal: Journal
) -> None:
    journal.free.set()
    backend.error = Unavailable("not now")
    first, second = deliver(1, 19), deliver(2, 18)
    assert [calls.take(first), calls.take(second)] == [True, True]
    await calls.call(first)
    assert journal.steps == []
    backend.error = None
    await calls.call(second)
    assert (backend.said, len(journal.steps)) == (["signal 19", "signal 18"], 1)
