"""What is found so for long enough is acted on, rests then, and is left for a person when that helps nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from slurm_plugin.controller.due import Due, Terms
from slurm_plugin.errors import SlurmError

TURNS = 50  # of the event loop: whoever has something to do has done it by then


@dataclass
class Bench:
    terms: Terms
    now: float = 1000.0
    acted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    refuses: frozenset[str] = frozenset()
    counts: bool = False

    def __post_init__(self) -> None:
        self.due: Due[str] = Due(self.terms, lambda: self.now, lambda one: one[0])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.due.run(self._act, lambda one, _: self.refused.append(one)))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _act(self, one: str) -> None:
        self.acted.append(one)
        if self.counts:
            self.due.count(one)
        if one in self.refuses:
            raise SlurmError("no")

    async def look(self, *found: str, there: str = "abcdefgh", after_s: float = 0.0) -> None:
        self.now += after_s
        self.due.see(found, lambda: set(there))
        for _ in range(TURNS):
            await asyncio.sleep(0)


async def test_one_must_be_found_so_for_a_while_without_a_gap() -> None:
    bench = Bench(Terms(patience_s=3.0, pause_s=10.0))
    async with bench.running():
        await bench.look("a")
        await bench.look(after_s=2.0)
        await bench.look("a", after_s=2.0)
        assert bench.acted == []
        await bench.look("a", after_s=3.0)
        assert bench.acted == ["a"]


@pytest.mark.parametrize("refuses", [frozenset("a"), frozenset[str]()], ids=["refused", "done"])
async def test_it_rests_after_a_try_also_when_it_was_found_otherwise_meanwhile(refuses: frozenset[str]) -> None:
    bench = Bench(Terms(pause_s=10.0), refuses=refuses)
    async with bench.running():
        await bench.look("a")
        await bench.look(after_s=1.0)
        await bench.look("a", after_s=1.0)
        assert (bench.acted, bench.refused) == (["a"], sorted(refuses))
        await bench.look("a", after_s=8.0)
        assert bench.acted == ["a", "a"]


async def test_those_that_were_tried_shut_out_no_others() -> None:
    """However many Slurm refuses."""
    bench = Bench(Terms(pause_s=10.0, at_once=2), refuses=frozenset("abcd"))
    async with bench.running():
        for _ in range(3):
            await bench.look(*"abcde")
        assert bench.acted == list("abcde")


async def test_rests_grow_up_to_a_bound_and_tries_are_counted_by_name() -> None:
    bench = Bench(Terms(pause_s=10.0, longest_s=20.0, times=3), counts=True)
    async with bench.running():
        await bench.look("a1")
        await bench.look("a1", after_s=10.0)
        assert not bench.due.spent("a1")
        await bench.look("a1", after_s=10.0)
        assert bench.acted == ["a1", "a1"]
        await bench.look("a1", after_s=10.0)
        assert bench.acted == ["a1"] * 3
        assert bench.due.spent("a2")
        await bench.look(there="b")
        assert not bench.due.spent("a2")


async def test_what_is_no_more_so_while_others_are_acted_on_is_left_alone() -> None:
    bench = Bench(Terms(pause_s=10.0))

    async def act(one: str) -> None:
        bench.acted.append(one)
        bench.due.see(["a"], lambda: set("ab"))

    bench.due.see(["a", "b"], lambda: set("ab"))
    task = asyncio.create_task(bench.due.run(act, lambda *_: None))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    task.cancel()
    assert bench.acted == ["a"]
