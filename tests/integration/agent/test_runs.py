import asyncio
import threading
from dataclasses import replace

import pytest

from slurm_plugin.agent import vacancy as vacancy_module
from slurm_plugin.agent.cluster import ASK_TRIES
from slurm_plugin.agent.terms import Offer
from slurm_plugin.errors import GpuBusy, NoRoom, NvmlError, SlurmError, SlurmUnavailable
from slurm_plugin.model import MigMode, Step
from slurm_plugin.ports import JobRun
from slurm_plugin.wire import gpu_to_wire
from tests.integration.agent.bench import PATIENCE_S, Bench
from tests.unit.agent.world import FakeGpus, gpu, instance, run, terms, uuid

FIRST, SECOND, BIG = uuid("A", "1g.20gb", 0), uuid("A", "1g.20gb", 2), uuid("A", "3g.40gb", 4)


async def start(bench: Bench, job_id: int, *args: object, **more: object) -> None:
    bench.slurm.runs[job_id] = run(job_id, *args, **more)  # type: ignore[arg-type]
    await bench.runs.prolog(job_id)


async def test_a_run_gets_an_idle_slice_and_gives_it_back(bench: Bench) -> None:
    async with bench.running():
        assert bench.devices.now == {FIRST: 0, SECOND: 0, BIG: 0}
        await start(bench, 1, uid=1234)
        assert bench.held() == {1: (FIRST,)}
        assert bench.devices.now == {FIRST: 1234, SECOND: 0, BIG: 0}
        await bench.end(1)
        assert bench.held() == {}
        assert bench.devices.now[FIRST] == 0


async def test_a_run_that_asks_for_none_is_noted_and_gets_none(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1, "")
        assert bench.held() == {}
        assert bench.book.without[1].started_at == 100


async def test_exclusive_runs_get_what_they_asked_and_never_padding(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1, "pad", 990)
        assert bench.held() == {}


async def test_a_prolog_asked_twice_gives_once(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1)
        await asyncio.gather(bench.runs.prolog(1), bench.runs.prolog(1))
        assert bench.held() == {1: (FIRST,)}


async def test_epilogs_that_come_twice_or_without_a_prolog_do_nothing(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1)
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
        await start(bench, 1, started_at=200)
        bench.slurm.answer = bench.slurm.answer if answers else silent
        await bench.runs.epilog(1, started_at)
        assert bench.held() == {1: (FIRST,)}


async def test_an_epilog_of_this_very_run_asks_nobody(bench: Bench) -> None:
    def silent() -> None:
        raise SlurmUnavailable("no answer")

    async with bench.running():
        await start(bench, 1, started_at=200)
        bench.slurm.answer = silent
        await bench.runs.epilog(1, 200)
        assert bench.held() == {}


async def test_a_late_epilog_does_not_end_the_wait_of_a_newer_run(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1, "m20", 3)
        waiter = asyncio.create_task(start(bench, 2, started_at=200))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        await bench.runs.epilog(2, 100)
        await bench.end(1)
        await asyncio.wait_for(waiter, PATIENCE_S)
        assert bench.held() == {2: (FIRST,)}


async def test_an_id_that_slurm_gave_out_again_first_loses_what_the_old_run_had(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1, uid=1000)
        await start(bench, 1, "m40", uid=2000, started_at=200)
        assert bench.held() == {1: (BIG,)}
        assert bench.devices.now == {FIRST: 0, SECOND: 0, BIG: 2000}
        await start(bench, 1, "", started_at=300)
        assert bench.held() == {}


async def test_a_run_that_is_over_or_unknown_gets_nothing(bench: Bench) -> None:
    async with bench.running():
        await bench.runs.prolog(5)
        await start(bench, 1, state="COMPLETING")
        await start(bench, 2, started_at=0, state="PENDING")
        assert bench.held() == {}
        assert not bench.slurm.cancelled


async def test_what_a_run_has_survives_the_agent(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1, uid=1234)
    bench.devices.now.clear()
    async with bench.running():
        assert bench.held() == {1: (FIRST,)}
        assert bench.devices.now == {FIRST: 1234, SECOND: 0, BIG: 0}
        await start(bench, 2)
        assert bench.held() == {1: (FIRST,), 2: (SECOND,)}


async def test_a_run_that_ended_while_the_agent_was_away_is_released_at_its_start(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1)
        await start(bench, 2)
    del bench.slurm.runs[1]
    bench.slurm.runs[2] = run(2, started_at=999)
    async with bench.running():
        assert bench.held() == {}


async def test_no_word_from_slurm_releases_nothing(bench: Bench) -> None:
    def silent() -> None:
        raise SlurmUnavailable("no answer")

    async with bench.running():
        await start(bench, 1)
        bench.slurm.runs.clear()
        bench.slurm.answer = silent
        await bench.runs.reconcile()
        assert bench.held() == {1: (FIRST,)}
        bench.slurm.answer = lambda: None
        await bench.runs.reconcile()
        assert bench.held() == {}


async def test_a_prolog_asks_a_silent_slurm_again(bench: Bench) -> None:
    answers = iter([SlurmUnavailable("no answer")] * (ASK_TRIES - 1))

    def answer() -> None:
        if error := next(answers, None):
            raise error

    async with bench.running():
        bench.slurm.answer = answer
        await start(bench, 1)
        assert bench.held() == {1: (FIRST,)}


@pytest.mark.parametrize("error", [SlurmUnavailable("no answer"), SlurmError("not a GRES")])
async def test_a_run_slurm_says_nothing_of_gets_nothing_and_is_not_turned_away(bench: Bench, error: SlurmError) -> None:
    def answer() -> None:
        raise error

    async with bench.running():
        bench.slurm.answer = answer
        await start(bench, 1)
        assert bench.held() == {}
        assert not bench.slurm.cancelled


async def test_a_run_waits_for_a_slice_and_gets_it_when_another_ends(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1, "m20", 3)
        waiter = asyncio.create_task(start(bench, 2))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        await bench.end(1)
        await asyncio.wait_for(waiter, PATIENCE_S)
        assert bench.held() == {2: (FIRST,)}
        assert not bench.runs.binding.waiting


async def test_first_come_first_served_within_a_class(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1, "m20", 3)
        many = asyncio.create_task(start(bench, 2, "m20", 4))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        one = asyncio.create_task(start(bench, 3, "m20", 1))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 2)
        other = asyncio.create_task(start(bench, 4, "m40"))
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
        await start(bench, 1, "m20", 4, requeue=requeue)
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
        await start(bench, 1, "m20", 4)
        assert bench.held() == {}


async def test_an_epilog_ends_the_wait_of_its_jobs_prolog(bench: Bench) -> None:
    async with bench.running():
        waiter = asyncio.create_task(start(bench, 1, "m20", 4))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        await bench.end(1)
        await asyncio.wait_for(waiter, PATIENCE_S)
        assert (bench.held(), bench.slurm.requeued, bench.slurm.cancelled) == ({}, [], [])


@pytest.mark.parametrize("left", [run(1, "m20", 4, state="COMPLETING"), None], ids=["ends", "unknown"])
async def test_a_job_that_is_cancelled_in_its_prolog_waits_no_longer_and_does_not_come_back(
    bench: Bench, left: JobRun | None
) -> None:
    async with bench.running():
        waiter = asyncio.create_task(start(bench, 1, "m20", 4))
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
        waiter = asyncio.create_task(start(bench, 1, "m20", 4))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        bench.slurm.answer = silent
        await bench.runs.let_go()
        assert len(bench.runs.binding.waiting) == 1
        bench.slurm.answer = lambda: None
        bench.runs.binding.gone(1)
        await asyncio.wait_for(waiter, PATIENCE_S)


async def test_a_slice_is_cut_where_there_is_room(bench: Bench) -> None:
    bench.gpus.now["A"] = gpu("A", ("1g.20gb", 0))
    async with bench.running():
        await start(bench, 1, "m20", 3, uid=5)
        assert len(bench.held()[1]) == 3
        assert {bench.devices.now[slice_] for slice_ in bench.held()[1]} == {5}
        assert all(not step.destroy for step in bench.gpus.steps)


async def test_a_gpu_that_says_no_is_not_asked_again_and_the_next_profile_is_tried(bench: Bench) -> None:
    bench.gpus.now["A"] = gpu("A")

    def refuse(step: Step) -> None:
        if step.create[0][0] == "1g.20gb":
            raise NoRoom("no engine left")

    bench.gpus.before = refuse
    async with bench.running():
        await start(bench, 1)
        assert bench.held() == {1: (uuid("A", "2g.20gb", 4),)}


async def test_what_a_failed_step_left_half_made_is_destroyed(bench: Bench) -> None:
    half = instance("A", "1g.20gb", 2, ci=-1, uuid="")
    bench.gpus.now["A"] = gpu("A")

    def crash(step: Step) -> None:
        if step.create:
            bench.gpus.now["A"] = gpu("A", instances=(half,))
            raise NvmlError("lost half way")

    async with bench.running():
        assert bench.gpus.now["A"].instances == ()
        bench.gpus.before = crash
        with pytest.raises(NvmlError, match="half way"):
            await bench.slices.make(Step(gpu="A", create=(("1g.20gb", 2),)))
        assert bench.gpus.now["A"].instances == ()


async def test_a_foreign_gpu_is_left_as_it_is(bench: Bench) -> None:
    half = instance("B", "1g.20gb", 2, ci=-1, uuid="")
    bench.gpus.now["B"] = gpu("B", instances=(half,), index=1)
    async with bench.running():
        assert bench.gpus.now["B"].instances == (half,)
        assert bench.gpus.steps == []


async def test_the_pools_gpus_are_switched_to_mig_again_after_a_reboot(bench: Bench) -> None:
    off = gpu("A", mig=MigMode.DISABLED)
    bench.gpus = FakeGpus(off, replace(off, uuid="B"))
    async with bench.running():
        assert [str(one.mig) for one in bench.gpus.inventory()] == ["enabled", "disabled"]


async def test_a_step_on_a_busy_slice_is_refused_and_changes_nothing(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1)
        with pytest.raises(GpuBusy, match="in use"):
            await bench.slices.make(Step(gpu="A", destroy=(("1g.20gb", 0),)))
        assert bench.gpus.steps == []


async def test_a_release_waits_for_the_controller_only_where_it_asked(bench: Bench) -> None:
    told: list[tuple[int, tuple[str, ...]]] = []

    async def fence(job_id: int, slices: tuple[str, ...]) -> None:
        assert job_id not in bench.book.grants
        told.append((job_id, slices))

    bench.rules.fence = fence
    bench.terms = terms("A", offers={FIRST: Offer(gres_class="m20", ask=True), SECOND: Offer(gres_class="m20")})
    async with bench.running():
        await start(bench, 1)
        await start(bench, 2)
        await bench.end(2)
        assert told == []
        await bench.end(1)
        assert told == [(1, (FIRST,))]


async def test_a_grant_that_can_not_be_written_is_not_given(bench: Bench) -> None:
    def full(place: str) -> None:
        if place.startswith("write grants/"):
            raise OSError(28, "no space left")

    bench.at = full
    bench.rules.wait_s = 0.01
    async with bench.running():
        await start(bench, 1)
        assert bench.held() == {}
        assert bench.devices.now[FIRST] == 0
        assert bench.slurm.requeued == [1]


async def test_classes_and_gpus_are_known_without_the_controller(bench: Bench) -> None:
    async with bench.running():
        pass
    bench.terms = terms()
    bench.terms = replace(bench.terms, gpus=frozenset("A"))
    async with bench.running():
        await start(bench, 1, "m20")
        assert bench.held() == {1: (FIRST,)}


async def test_a_task_of_a_run_the_agent_missed_is_bound_late_or_refused(bench: Bench) -> None:
    async with bench.running():
        bench.slurm.runs = {1: run(1), 2: run(2, ""), 3: run(3, "m20", 9), 4: run(4, state="COMPLETING")}
        assert [await bench.runs.late(job_id) for job_id in (1, 2, 3, 4, 5)] == [True, True, False, False, False]
        assert bench.held() == {1: (FIRST,)}


async def test_a_slice_somebody_still_computes_on_is_given_to_nobody_until_he_leaves(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 0.001)
    async with bench.running():
        await start(bench, 1)
        bench.gpus.there[FIRST] = (4242,)
        await bench.end(1)
        await bench.until(lambda: bench.book.haunted.keys() == {FIRST})
        wire = gpu_to_wire(bench.book.gpus[0], bench.book.haunted)
        assert [one.uuid for one in wire.instances if one.foreign] == [FIRST]
        with pytest.raises(GpuBusy, match="in use"):
            await bench.slices.make(Step(gpu="A", destroy=(("1g.20gb", 0),)))
        await start(bench, 2)
        assert bench.held() == {2: (SECOND,)}
        bench.gpus.there.clear()
        await bench.until(lambda: not bench.book.haunted)
        await start(bench, 3)
        assert bench.held()[3] == (FIRST,)


async def test_a_slice_that_was_in_use_before_the_agent_started_is_seen_so(bench: Bench) -> None:
    bench.gpus.there[FIRST] = (4242,)
    async with bench.running():
        assert bench.book.haunted.keys() == {FIRST}


async def test_a_silent_driver_is_not_taken_for_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench.running():
        await start(bench, 1)

        def silent(_: str) -> tuple[int, ...]:
            raise NvmlError("no answer")

        monkeypatch.setattr(bench.gpus, "processes", silent)
        monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 600.0)
        await bench.end(1)
        await start(bench, 2)
        assert bench.held() == {2: (SECOND,)}
        assert bench.book.unseen == {FIRST}


async def test_no_run_gets_a_slice_of_a_gpu_that_was_lost_since_it_was_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.gpus = FakeGpus(gpu("A", ("1g.20gb", 0)), gpu("B", ("1g.20gb", 0), index=1))
    bench.terms = terms("A", "B")
    real = bench.gpus.processes

    def lost(slice_: str) -> tuple[int, ...]:
        if "-A-" in slice_:
            raise NvmlError("GPU is lost")
        return real(slice_)

    async with bench.running():
        bench.gpus.now["A"] = replace(bench.gpus.now["A"], fault="fell off the bus")
        monkeypatch.setattr(bench.gpus, "processes", lost)
        await start(bench, 1)
        assert bench.held() == {1: (uuid("B", "1g.20gb", 0),)}
        assert [bool(one.fault) for one in bench.book.gpus] == [True, False]


async def test_nothing_is_cut_for_a_run_while_a_freed_slice_is_looked_at(bench: Bench) -> None:
    bench.gpus.now["A"] = gpu("A", ("1g.20gb", 0))
    async with bench.running():
        await start(bench, 1)
        looked = threading.Event()
        real = bench.gpus.processes

        def slow(slice_: str) -> tuple[int, ...]:
            assert looked.wait(PATIENCE_S)
            return real(slice_)

        bench.gpus.processes = slow  # type: ignore[method-assign]
        await bench.end(1)
        waiter = asyncio.create_task(start(bench, 2))
        await bench.until(
            lambda: len(bench.runs.binding.waiting) == 1 and bench.moves.rests and not bench.moves.is_set()
        )
        looked.set()
        await asyncio.wait_for(waiter, PATIENCE_S)
        assert bench.held() == {2: (FIRST,)}
        assert bench.gpus.steps == []
