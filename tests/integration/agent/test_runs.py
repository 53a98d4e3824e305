"""What a run is given when its prolog comes."""

import asyncio
import itertools
from contextlib import nullcontext
from dataclasses import replace

import pytest

from slurm_plugin.agent import cluster
from slurm_plugin.agent import runs as runs_module
from slurm_plugin.agent.cluster import ASK_TRIES
from slurm_plugin.errors import NoRoom, NvmlError, SlurmError, SlurmUnavailable
from slurm_plugin.model import Step
from tests.integration.agent.bench import BIG, FIRST, SECOND, Bench
from tests.unit.agent.world import FakeGpus, gpu, run, terms, uuid

NO_ANSWER, REFUSED = SlurmUnavailable("no answer"), SlurmError("Requested operation is presently disabled")


async def test_a_run_gets_an_idle_slice_and_gives_it_back(bench: Bench) -> None:
    async with bench.running():
        assert bench.devices.now == {FIRST: 0, SECOND: 0, BIG: 0}
        await bench.start(1, uid=1234)
        assert bench.held() == {1: (FIRST,)}
        assert bench.devices.now == {FIRST: 1234, SECOND: 0, BIG: 0}
        await bench.end(1)
        assert bench.held() == {}
        assert bench.devices.now[FIRST] == 0


async def test_a_run_that_asks_for_none_is_noted_and_gets_none(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1, "")
        assert bench.held() == {}
        assert bench.book.without[1].started_at == 100


async def test_exclusive_runs_get_what_they_asked_and_never_padding(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1, "pad", 990)
        assert bench.held() == {}


async def test_a_prolog_asked_twice_gives_once(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1)
        await asyncio.gather(bench.runs.prolog(1), bench.runs.prolog(1))
        assert bench.held() == {1: (FIRST,)}


async def test_a_run_that_is_over_or_unknown_gets_nothing(bench: Bench) -> None:
    async with bench.running():
        await bench.runs.prolog(5)
        await bench.start(1, state="COMPLETING")
        await bench.start(2, started_at=0, state="PENDING")
        assert bench.held() == {}
        assert not bench.slurm.cancelled


async def test_a_prolog_asks_a_silent_slurm_again(bench: Bench) -> None:
    answers = iter([SlurmUnavailable("no answer")] * (ASK_TRIES - 1))

    def answer() -> None:
        if error := next(answers, None):
            raise error

    async with bench.running():
        bench.slurm.answer = answer
        await bench.start(1)
        assert bench.held() == {1: (FIRST,)}


@pytest.mark.parametrize("error", [SlurmUnavailable("no answer"), SlurmError("not a GRES")])
async def test_a_run_slurm_says_nothing_of_gets_nothing_and_is_not_turned_away(bench: Bench, error: SlurmError) -> None:
    def answer() -> None:
        raise error

    async with bench.running():
        bench.slurm.answer = answer
        await bench.start(1)
        assert bench.held() == {}
        assert not bench.slurm.cancelled


async def test_a_slice_is_cut_where_there_is_room(bench: Bench) -> None:
    bench.gpus.now["A"] = gpu("A", ("1g.20gb", 0))
    async with bench.running():
        await bench.start(1, "m20", 3, uid=5)
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
        await bench.start(1)
        assert bench.held() == {1: (uuid("A", "2g.20gb", 4),)}


async def test_a_grant_that_can_not_be_written_is_not_given(bench: Bench) -> None:
    def full(place: str) -> None:
        if place.startswith("write grants/"):
            raise OSError(28, "no space left")

    bench.at = full
    bench.rules.wait_s = 0.01
    async with bench.running():
        await bench.start(1)
        assert bench.held() == {}
        assert bench.devices.now[FIRST] == 0
        assert bench.slurm.requeued == [1]


async def test_classes_and_gpus_are_known_without_the_controller(bench: Bench) -> None:
    async with bench.running():
        pass
    bench.terms = terms()
    bench.terms = replace(bench.terms, gpus=frozenset("A"))
    async with bench.running():
        await bench.start(1, "m20")
        assert bench.held() == {1: (FIRST,)}


async def test_a_task_of_a_run_the_agent_missed_is_bound_late_or_refused(bench: Bench) -> None:
    bench.rules.wait_s = 0.01
    async with bench.running():
        bench.slurm.runs = {1: run(1), 2: run(2, ""), 3: run(3, "m20", 9), 4: run(4, state="COMPLETING")}
        assert [await bench.runs.late(job_id) for job_id in (1, 2, 3, 4, 5)] == [True, True, False, False, False]
        assert bench.held() == {1: (FIRST,)}
        assert bench.slurm.requeued == []


async def test_a_run_that_got_no_prolog_has_what_its_job_had_once_that_was_looked_at(bench: Bench) -> None:
    """A slurmctld that forgot a start starts the job anew, and slurmd, which knows it, runs no prolog."""
    async with bench.running():
        for job_id in (1, 2, 3):
            await bench.start(job_id)
        bench.slurm.runs[1] = run(1, started_at=200)
        bench.book.doubted.add(1)
        assert await bench.runs.late(1, begins=True) is True
        assert bench.book.grants[1].run.started_at == 200
        assert bench.slurm.requeued == []


@pytest.mark.parametrize(
    ("more", "requeued"),
    [({}, [1]), ({"requeue": False}, []), ({"elsewhere": True, "requeue": False}, [1])],
    ids=str,
)
async def test_a_batch_script_that_can_not_have_its_slices_goes_back(
    bench: Bench, more: dict[str, bool], requeued: list[int]
) -> None:
    """To be refused would end its job."""
    bench.rules.wait_s = 0.01
    async with bench.running():
        bench.slurm.runs[1] = run(1, "m20", 9, **more)
        assert await bench.runs.late(1) is False
        assert bench.slurm.requeued == []
        assert await bench.runs.late(1, begins=True) is False
        assert bench.slurm.requeued == requeued
        assert bench.slurm.cancelled == []


@pytest.mark.parametrize("error", [None, NO_ANSWER])
async def test_a_batch_script_is_kept_while_slurm_says_that_its_job_waits_or_nothing(
    bench: Bench, error: SlurmError | None
) -> None:
    """Slurm would take what a refusal comes to for the end of the job's next start."""
    asked = itertools.count(1)

    def answer() -> None:
        if next(asked) == 20:
            bench.slurm.runs[1] = run(1, started_at=200)
            bench.slurm.answer = lambda: None
        elif error is not None:
            raise error

    async with bench.running():
        bench.slurm.runs[1] = run(1, started_at=0, state="PENDING")
        bench.slurm.answer = answer
        assert await bench.runs.begin(1, lambda: True) is True
        assert bench.book.grants[1].run.started_at == 200


@pytest.mark.parametrize(("state", "error"), [("PENDING", None), ("PENDING", NO_ANSWER), ("CANCELLED", None)], ids=str)
async def test_a_batch_script_is_kept_no_longer_than_it_may_be(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, state: str, error: SlurmError | None
) -> None:
    monkeypatch.setattr(runs_module, "HOLD_S", 600.0 if state == "CANCELLED" else 0.05)

    def answer() -> None:
        if error is not None:
            raise error

    async with bench.running():
        bench.slurm.runs[1] = run(1, started_at=0, state=state)
        bench.slurm.answer = answer
        with pytest.raises(SlurmUnavailable) if error else nullcontext():
            assert await bench.runs.begin(1, lambda: True) is False


async def test_a_batch_script_that_slurm_has_ended_is_kept_no_longer(bench: Bench) -> None:
    there = iter((True, True, False))
    async with bench.running(), asyncio.timeout(runs_module.HOLD_S / 2):
        bench.slurm.runs[1] = run(1, started_at=0, state="PENDING")
        assert await bench.runs.begin(1, lambda: next(there)) is False
        assert bench.held() == {}


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
        await bench.start(1)
        assert bench.held() == {1: (uuid("B", "1g.20gb", 0),)}
        assert [bool(one.fault) for one in bench.book.gpus] == [True, False]


async def test_when_a_run_ends_is_known_to_the_next_agent_too(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1, limit_s=60)
        await bench.start(2)
    async with bench.running():
        ends = {job_id: grant.ends_at for job_id, grant in bench.book.grants.items()}
        assert ends == {1: 160, 2: 0}


@pytest.mark.parametrize(("gres_class", "requeue"), [("m20", True), ("", True), ("m20", False)])
async def test_a_run_of_a_job_that_may_run_at_another_site_goes_back_and_gets_nothing(
    bench: Bench, gres_class: str, requeue: bool
) -> None:
    async with bench.running():
        await bench.start(1, gres_class, elsewhere=True, requeue=requeue)
        assert (bench.slurm.requeued, bench.slurm.cancelled) == ([1], [])
        assert bench.held() == {}
        assert not bench.book.knows(1), "no task of it may start"
        assert await bench.runs.late(1) is False
        await bench.start(1, gres_class, started_at=200)
        assert bench.slurm.requeued == [1]
        assert bench.book.knows(1)


async def test_what_an_older_run_has_is_taken_back_all_the_same(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1)
        await bench.start(1, started_at=200, elsewhere=True)
        assert (bench.held(), bench.slurm.requeued) == ({}, [1])


@pytest.mark.parametrize("answers", [(None, NO_ANSWER), (None, REFUSED, None, NO_ANSWER)])
async def test_a_job_that_may_run_at_another_site_is_sent_back_until_slurm_takes_it(
    bench: Bench, answers: tuple[SlurmError | None, ...]
) -> None:
    async with bench.running():
        bench.slurm.runs[1] = run(1, "", elsewhere=True)
        left = iter(answers)

        def answer() -> None:
            if error := next(left, None):
                raise error

        bench.slurm.answer = answer
        await bench.runs.prolog(1)
        assert bench.slurm.requeued == [1]
        assert not bench.book.knows(1)
        assert await bench.runs.late(1) is False


async def test_a_job_that_slurm_never_takes_back_is_let_go_once_its_run_is_over(bench: Bench) -> None:
    async with bench.running():
        bench.slurm.runs[1] = run(1, "", elsewhere=True)
        calls = itertools.count()

        def answer() -> None:
            if (nth := next(calls)) == 2:
                bench.slurm.runs[1] = run(1, "", state="COMPLETING", elsewhere=True)
            elif nth % 2:
                raise REFUSED

        bench.slurm.answer = answer
        await bench.runs.prolog(1)
        assert bench.slurm.requeued == []
        assert not bench.book.knows(1)


@pytest.mark.parametrize("error", [None, NO_ANSWER])
async def test_what_a_slurmctld_forgot_that_has_just_come_back_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: SlurmError | None
) -> None:
    """It has lost the note with the start; the daemon that has the job open writes it anew."""
    monkeypatch.setattr(cluster, "SETTLE_S", 0.05)

    def booted_at() -> int:
        bench.slurm.runs[1] = run(1, elsewhere=True)
        if error is not None:
            raise error
        return 100

    async with bench.running():
        bench.slurm.booted_at = booted_at
        await bench.start(1, submitted_at=90)
        assert bench.slurm.requeued == [1]
        assert bench.held() == {}


@pytest.mark.parametrize(
    ("submitted_at", "booted_at"), [(96, 95), (10, 80), (90, 101)], ids=["new", "long ago", "known since"]
)
async def test_what_slurmctld_can_not_have_forgotten_is_not_waited_for(
    bench: Bench, submitted_at: int, booted_at: int
) -> None:
    async with bench.running(), asyncio.timeout(cluster.SETTLE_S / 2):
        bench.slurm.booted_at = lambda: booted_at
        await bench.start(1, submitted_at=submitted_at)
        assert bench.held() == {1: (FIRST,)}


@pytest.mark.parametrize(
    ("virtual", "batch"), [("n[2-3],xcloud-1", True), ("cloud-a-1", False)], ids=["no virtual nodes", "no batch job"]
)
async def test_a_job_that_can_not_have_run_elsewhere_does_not_wait(bench: Bench, virtual: str, batch: bool) -> None:
    async with bench.running(), asyncio.timeout(cluster.SETTLE_S / 2):
        bench.slurm.nodes_of["cloud"] = virtual
        bench.slurm.booted_at = lambda: 100
        await bench.start(1, submitted_at=90, batch=batch)
        assert bench.held() == {1: (FIRST,)}


async def test_a_job_that_has_not_waited_costs_no_question_more(bench: Bench) -> None:
    asked = itertools.count()
    async with bench.running():
        bench.slurm.booted_at = lambda: next(asked)
        await bench.start(1, submitted_at=99)
        assert bench.held() == {1: (FIRST,)}
    assert next(asked) == 0
