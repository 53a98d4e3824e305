"""What a run has is given back when it has ended here, whatever a slurmctld says that has forgotten it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from slurm_plugin.agent import endings
from slurm_plugin.agent.endings import GONE_S, STARTS_S, Endings
from slurm_plugin.agent.threads import Threads
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.model import RunKey
from tests.integration.agent.bench import FIRST, Bench


class Scene:
    """A node whose steps are told, and a clock."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.steps: set[int | None] = set()
        self.came: set[int] = set()
        monkeypatch.setattr(endings, "jobs_with_steps", lambda _: frozenset(self.steps))
        monkeypatch.setattr("slurm_plugin.agent.endings.time.monotonic", lambda: self.now)
        self._bench = bench
        self._threads = Threads()
        self._endings = Endings(bench.runs, slurm=bench.slurm, threads=self._threads, came=self._has_come)

    def _has_come(self, run: RunKey) -> bool:
        return run.job_id in self.came

    async def look(self, after_s: float = 0.0) -> dict[int, tuple[str, ...]]:
        self.now += after_s
        await self._endings.look()
        return self._bench.held()


Make = Callable[[Bench], Scene]
HELD = {1: (FIRST,)}


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda bench: Scene(bench, monkeypatch)


@pytest.mark.parametrize(("came", "patience_s"), [(True, GONE_S), (False, STARTS_S)])
async def test_a_batch_job_without_a_step_on_its_host_is_over(
    bench: Bench, scene: Make, came: bool, patience_s: float
) -> None:
    async with bench.running():
        here, node = scene(bench), bench.rules.node
        await bench.start(1, batch_host=node)
        here.steps, here.came = {1}, {1} if came else set()
        assert await here.look() == await here.look(STARTS_S * 2) == HELD
        here.steps = {2}
        assert await here.look() == await here.look(patience_s - 1) == HELD
        assert await here.look(1) == {}


async def test_a_step_that_comes_meanwhile_or_tells_no_job_yet_keeps_what_is_held(bench: Bench, scene: Make) -> None:
    async with bench.running():
        here = scene(bench)
        await bench.start(1, batch_host=bench.rules.node)
        here.came = {1}
        await here.look()
        here.steps = {1}
        await here.look(GONE_S)
        here.steps = set()
        assert await here.look() == HELD
        here.steps = {None}
        assert await here.look(GONE_S) == await here.look(GONE_S) == HELD


@pytest.mark.parametrize("batch_host", ["other", ""])
async def test_a_job_whose_script_runs_elsewhere_or_that_has_none_may_be_without_steps(
    bench: Bench, scene: Make, batch_host: str
) -> None:
    async with bench.running():
        here = scene(bench)
        await bench.start(1, batch_host=batch_host)
        here.came = {1}
        await here.look()
        assert await here.look(GONE_S) == HELD
        bench.slurm.runs.clear()  # it is asked once
        assert await here.look(STARTS_S) == HELD


@pytest.mark.parametrize("state", ["COMPLETING", "SUSPENDED", ""])
async def test_what_slurm_does_not_take_for_running_is_left_to_others(bench: Bench, scene: Make, state: str) -> None:
    async with bench.running():
        here = scene(bench)
        await bench.start(1, batch_host=bench.rules.node)
        here.came = {1}
        run = bench.slurm.runs.pop(1)
        if state:
            bench.slurm.runs[1] = replace(run, state=state)
        await here.look()
        assert await here.look(GONE_S) == HELD


async def test_no_answer_gives_nothing_back_until_there_is_one(bench: Bench, scene: Make) -> None:
    def silent() -> None:
        raise SlurmUnavailable("no answer")

    async with bench.running():
        here, answer = scene(bench), bench.slurm.answer
        await bench.start(1, batch_host=bench.rules.node)
        here.came = {1}
        await here.look()
        bench.slurm.answer = silent
        assert await here.look(GONE_S) == HELD
        bench.slurm.answer = answer
        assert await here.look() == {}


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize(("came", "patience_s"), [(True, GONE_S), (False, STARTS_S)])
async def test_an_epilog_that_was_taken_for_an_older_runs_was_the_runs_own_when_no_step_is_left(
    bench: Bench, scene: Make, goes_on: bool, answers: bool, came: bool, patience_s: float
) -> None:
    """Also of a job with no batch script: slurmctld says that it runs, or nothing."""

    def silent() -> None:
        raise SlurmUnavailable("no answer")

    async with bench.running():
        here = scene(bench)
        await bench.start(1, started_at=200)
        here.came = {1} if came else set()
        bench.slurm.answer = bench.slurm.answer if answers else silent
        await bench.runs.epilog(1)
        here.steps = {None}
        assert await here.look() == HELD
        here.steps = {1} if goes_on else set()
        assert await here.look() == HELD, "the newer run may be about to start"
        here.steps = set()
        assert await here.look(patience_s - 1) == HELD
        assert await here.look(1) == (HELD if goes_on else {})


async def test_an_epilog_of_another_start_says_nothing_of_this_run(bench: Bench, scene: Make) -> None:
    """From 23.11 on slurmd tells which start of the job has ended."""
    async with bench.running():
        here = scene(bench)
        await bench.start(1, started_at=200)
        here.came = {1}
        await bench.runs.epilog(1, 100)
        await here.look()
        assert await here.look(GONE_S) == HELD
