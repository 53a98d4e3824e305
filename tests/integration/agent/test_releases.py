"""What ends a run's hold of its slices, and what does not."""

import asyncio

import pytest

from slurm_plugin.agent.terms import Offer
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.ports import JobRun
from tests.integration.agent.bench import BIG, FIRST, PATIENCE_S, SECOND, Bench
from tests.unit.agent.world import run, terms


async def test_epilogs_that_come_twice_or_without_a_prolog_do_nothing(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1)
        for job_id in (1, 1, 77):
            await bench.end(job_id)
        assert bench.held() == {}


@pytest.mark.parametrize(("started_at", "answers"), [(0, True), (100, True), (0, False)])
async def test_a_late_epilog_of_an_older_run_takes_nothing_from_the_newer(
    bench: Bench, started_at: int, answers: bool
) -> None:
    def silent() -> None:
        raise SlurmUnavailable("no answer")

    async with bench.running():
        await bench.start(1, started_at=200)
        bench.slurm.answer = bench.slurm.answer if answers else silent
        await bench.runs.epilog(1, started_at)
        assert bench.held() == {1: (FIRST,)}


@pytest.mark.parametrize("gres_class", ["m20", ""], ids=["with slices", "without"])
@pytest.mark.parametrize("started_at", [0, 100])
async def test_an_epilog_that_waits_for_the_prolog_of_a_newer_run_takes_nothing_from_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, started_at: int, gres_class: str
) -> None:
    asks, answers, real = asyncio.Event(), asyncio.Event(), bench.slurm.run_of

    async def slow(job_id: int) -> JobRun | None:
        asks.set()
        await answers.wait()
        return await real(job_id)

    async with bench.running():
        monkeypatch.setattr(bench.slurm, "run_of", slow)
        prolog = asyncio.create_task(bench.start(1, gres_class, started_at=200))
        await asyncio.wait_for(asks.wait(), PATIENCE_S)
        epilog = asyncio.create_task(bench.runs.epilog(1, started_at))
        await bench.until(lambda: bool(bench.runs._lock(1)._waiters))
        answers.set()
        await asyncio.wait_for(asyncio.gather(prolog, epilog), PATIENCE_S)
        known = bench.book.run_of(1)
        assert known is not None
        assert known.started_at == 200


async def test_an_epilog_of_this_very_run_asks_nobody(bench: Bench) -> None:
    def silent() -> None:
        raise SlurmUnavailable("no answer")

    async with bench.running():
        await bench.start(1, started_at=200)
        bench.slurm.answer = silent
        await bench.runs.epilog(1, 200)
        assert bench.held() == {}


async def test_the_epilog_of_a_job_that_left_this_node_and_goes_on_elsewhere_takes_what_it_had_here(
    bench: Bench,
) -> None:
    async with bench.running():
        await bench.start(1)
        await bench.runs.epilog(1)
        assert bench.held() == {1: (FIRST,)}
        bench.slurm.elsewhere.add(1)
        await bench.runs.epilog(1)
        assert bench.held() == {}


async def test_an_id_that_slurm_gave_out_again_first_loses_what_the_old_run_had(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1, uid=1000)
        await bench.start(1, "m40", uid=2000, started_at=200)
        assert bench.held() == {1: (BIG,)}
        assert bench.devices.now == {FIRST: 0, SECOND: 0, BIG: 2000}
        await bench.start(1, "", started_at=300)
        assert bench.held() == {}


async def test_what_a_run_has_survives_the_agent(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1, uid=1234)
    bench.devices.now.clear()
    async with bench.running():
        assert bench.held() == {1: (FIRST,)}
        assert bench.devices.now == {FIRST: 1234, SECOND: 0, BIG: 0}
        await bench.start(2)
        assert bench.held() == {1: (FIRST,), 2: (SECOND,)}


async def test_a_run_that_ended_while_the_agent_was_away_is_released_at_its_start(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1)
        await bench.start(2)
    del bench.slurm.runs[1]
    bench.slurm.runs[2] = run(2, started_at=999)
    async with bench.running():
        assert bench.held() == {}


async def test_no_word_from_slurm_releases_nothing(bench: Bench) -> None:
    def silent() -> None:
        raise SlurmUnavailable("no answer")

    async with bench.running():
        await bench.start(1)
        bench.slurm.runs.clear()
        bench.slurm.answer = silent
        await bench.runs.reconcile()
        assert bench.held() == {1: (FIRST,)}
        bench.slurm.answer = lambda: None
        await bench.runs.reconcile()
        assert bench.held() == {}


async def test_a_release_waits_for_the_controller_only_where_it_asked(bench: Bench) -> None:
    told: list[tuple[int, tuple[str, ...]]] = []

    async def fence(job_id: int, slices: tuple[str, ...]) -> None:
        assert job_id not in bench.book.grants
        told.append((job_id, slices))

    bench.rules.fence = fence
    bench.terms = terms("A", offers={FIRST: Offer(gres_class="m20", ask=True), SECOND: Offer(gres_class="m20")})
    async with bench.running():
        await bench.start(1)
        await bench.start(2)
        await bench.end(2)
        assert told == []
        await bench.end(1)
        assert told == [(1, (FIRST,))]
