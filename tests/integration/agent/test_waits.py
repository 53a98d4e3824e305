"""A run whose prolog waits for a slice: how long, behind whom, and what ends it."""

import asyncio
import threading

import pytest

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.ports import JobRun
from tests.integration.agent.bench import BIG, FIRST, PATIENCE_S, Bench
from tests.unit.agent.world import gpu, run


async def test_a_late_epilog_does_not_end_the_wait_of_a_newer_run(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1, "m20", 3)
        waiter = asyncio.create_task(bench.start(2, started_at=200))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        await bench.runs.epilog(2, 100)
        await bench.end(1)
        await asyncio.wait_for(waiter, PATIENCE_S)
        assert bench.held() == {2: (FIRST,)}


async def test_a_run_waits_for_a_slice_and_gets_it_when_another_ends(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1, "m20", 3)
        waiter = asyncio.create_task(bench.start(2))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        await bench.end(1)
        await asyncio.wait_for(waiter, PATIENCE_S)
        assert bench.held() == {2: (FIRST,)}
        assert not bench.runs.binding.waiting


async def test_first_come_first_served_within_a_class(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1, "m20", 3)
        many = asyncio.create_task(bench.start(2, "m20", 4))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        one = asyncio.create_task(bench.start(3, "m20", 1))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 2)
        other = asyncio.create_task(bench.start(4, "m40"))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 3)
        await bench.end(1)
        await asyncio.wait_for(other, PATIENCE_S)
        assert bench.held() == {4: (BIG,)}
        await bench.end(2)
        await asyncio.wait_for(asyncio.gather(many, one), PATIENCE_S)
        assert bench.held() == {4: (BIG,), 3: (FIRST,)}


@pytest.mark.parametrize("requeue", [True, False])
async def test_no_slice_in_time_sends_the_job_back_or_ends_it(bench: Bench, requeue: bool) -> None:
    bench.rules.wait_s = 0.01
    async with bench.running():
        await bench.start(1, "m20", 4, requeue=requeue)
        assert bench.held() == {}
        assert bench.slurm.requeued == ([1] if requeue else [])
        assert [job_id for job_id, _ in bench.slurm.cancelled] == ([] if requeue else [1])
        assert not bench.runs.binding.waiting


@pytest.mark.parametrize("error", [SlurmUnavailable("no answer"), SlurmError("job has ended")])
async def test_a_job_that_can_not_be_turned_away_fails_no_prolog(bench: Bench, error: SlurmError) -> None:
    bench.rules.wait_s = 0.01

    def refuse() -> None:
        if bench.runs.binding.waiting or asked:
            raise error
        asked.append(1)

    asked: list[int] = []
    async with bench.running():
        bench.slurm.answer = refuse
        await bench.start(1, "m20", 4)
        assert bench.held() == {}


async def test_an_epilog_ends_the_wait_of_its_jobs_prolog(bench: Bench) -> None:
    async with bench.running():
        waiter = asyncio.create_task(bench.start(1, "m20", 4))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        await bench.end(1)
        await asyncio.wait_for(waiter, PATIENCE_S)
        assert (bench.held(), bench.slurm.requeued, bench.slurm.cancelled) == ({}, [], [])


@pytest.mark.parametrize("left", [run(1, "m20", 4, state="COMPLETING"), None], ids=["ends", "unknown"])
async def test_a_job_that_is_cancelled_in_its_prolog_waits_no_longer_and_does_not_come_back(
    bench: Bench, left: JobRun | None
) -> None:
    async with bench.running():
        waiter = asyncio.create_task(bench.start(1, "m20", 4))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        await bench.runs.let_go()
        assert len(bench.runs.binding.waiting) == 1
        bench.slurm.runs = {1: left} if left else {}
        await bench.runs.let_go()
        await asyncio.wait_for(waiter, PATIENCE_S)
        assert (bench.held(), bench.slurm.requeued, bench.slurm.cancelled) == ({}, [], [])


async def test_no_word_from_slurm_ends_no_wait(bench: Bench) -> None:
    def silent() -> None:
        raise SlurmUnavailable("no answer")

    async with bench.running():
        waiter = asyncio.create_task(bench.start(1, "m20", 4))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        bench.slurm.answer = silent
        await bench.runs.let_go()
        assert len(bench.runs.binding.waiting) == 1
        bench.slurm.answer = lambda: None
        bench.runs.binding.gone(1)
        await asyncio.wait_for(waiter, PATIENCE_S)


async def test_nothing_is_cut_for_a_run_while_a_freed_slice_is_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.gpus.now["A"] = gpu("A", ("1g.20gb", 0))
    async with bench.running():
        await bench.start(1)
        looked = threading.Event()
        real = bench.gpus.processes

        def slow(slice_: str) -> tuple[int, ...]:
            assert looked.wait(PATIENCE_S)
            return real(slice_)

        monkeypatch.setattr(bench.gpus, "processes", slow)
        await bench.end(1)
        waiter = asyncio.create_task(bench.start(2))
        await bench.until(
            lambda: len(bench.runs.binding.waiting) == 1 and bench.moves.rests and not bench.moves.is_set()
        )
        looked.set()
        await asyncio.wait_for(waiter, PATIENCE_S)
        assert bench.held() == {2: (FIRST,)}
        assert bench.gpus.steps == []
