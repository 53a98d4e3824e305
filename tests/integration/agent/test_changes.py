"""A GPU's layout through whatever happens to it: crashes, boots, other hands, a driver that says no."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.agent import quarantine as quarantine_module
from slurm_plugin.agent.changes import BUSY_TRIES
from slurm_plugin.agent.quarantine import FAILURES_MAX
from slurm_plugin.errors import GpuBusy, NoRoom, NvmlError
from slurm_plugin.model import Gpu, Instance, MigMode, Step
from slurm_plugin.wire import gpu_to_wire
from tests.integration.agent.bench import Bench
from tests.unit.agent.world import gpu, instance, run, terms, uuid

FIRST, SECOND, BIG = uuid("A", "1g.20gb", 0), uuid("A", "1g.20gb", 2), uuid("A", "3g.40gb", 4)
HALF = instance("A", "1g.20gb", 2, ci=-1, uuid="")
RECUT = Step(gpu="A", destroy=(("3g.40gb", 4),), create=(("1g.20gb", 4), ("1g.20gb", 6)))
HELD = GpuBusy("in use", hint="held by pid 812 (nv-hostengine, nvidia-dcgm.service); stop it")


async def start(bench: Bench, job_id: int, *args: object, **more: object) -> None:
    bench.slurm.runs[job_id] = run(job_id, *args, **more)  # type: ignore[arg-type]
    await bench.runs.prolog(job_id)


def put(bench: Bench, *instances: Instance, **more: object) -> None:
    """Somebody else's doing."""
    bench.gpus.now["A"] = replace(bench.gpus.now["A"], instances=instances, **more)  # type: ignore[arg-type]


def starts(bench: Bench) -> list[tuple[str, int]]:
    return sorted((one.profile, one.start) for one in bench.gpus.now["A"].instances)


def seen(bench: Bench) -> Gpu:
    found = bench.book.gpu("A")
    assert found is not None
    return found


def refuse(bench: Bench, error: NvmlError, times: int = 1 << 30) -> None:
    left = [times]

    def before(_step: Step) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise error

    bench.gpus.before = before


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.agent.changes.FIRST_PAUSE_S", 0.0)


# What is ours and what is not


async def test_a_half_made_instance_is_made_anew_where_it_is_ours_and_left_where_it_is_not(bench: Bench) -> None:
    async with bench.running():
        pass
    put(bench, instance("A", "1g.20gb", 0), HALF, instance("A", "3g.40gb", 4))
    async with bench.running():
        assert bench.gpus.steps == [Step(gpu="A", destroy=(("1g.20gb", 2),), create=(("1g.20gb", 2),))]
        assert all(one.ci >= 0 and not one.foreign for one in seen(bench).instances)
    strange = instance("A", "1g.10gb", 6, ci=-1, uuid="")
    put(bench, instance("A", "1g.20gb", 0), instance("A", "1g.20gb", 2), strange)
    async with bench.running():
        assert strange in bench.gpus.now["A"].instances
        wire = gpu_to_wire(seen(bench))
        assert [(one.start, one.ci) for one in wire.instances if one.foreign] == [(6, -1)]


async def test_an_instance_that_somebody_made_by_hand_is_nobodys(bench: Bench) -> None:
    bench.rules.wait_s = 0.01
    put(bench, instance("A", "1g.20gb", 0))
    async with bench.running():
        put(bench, instance("A", "1g.20gb", 0), instance("A", "7g.80gb", 0, gi=77, uuid="MIG-by-hand"))
        await bench.slices.tend()
        assert [one.uuid for one in seen(bench).instances if one.foreign] == ["MIG-by-hand"]
        await start(bench, 1, "7g.80gb")
        assert bench.held() == {}
        with pytest.raises(GpuBusy, match="not the pool's"):
            await bench.slices.make(Step(gpu="A", destroy=(("7g.80gb", 0),)))
    async with bench.running():
        assert [one.uuid for one in seen(bench).instances if one.foreign] == ["MIG-by-hand"]


@pytest.mark.parametrize("others", ["B", ""])
async def test_a_gpu_that_leaves_the_pool_is_forgotten_and_taken_as_it_is_when_it_comes_back(
    bench: Bench, others: str
) -> None:
    bench.gpus.now["B"] = gpu("B", index=1)
    async with bench.running():
        await bench.runs.agree(terms(*others))
        await bench.slices.tend()
        put(bench, instance("A", "7g.80gb", 0))
        await bench.runs.agree(terms("A", "B"))
        await bench.until(lambda: not bench.book.unseen)
        await start(bench, 1, "7g.80gb")
        assert bench.held() == {1: (uuid("A", "7g.80gb", 0),)}


async def test_an_agent_that_was_told_nothing_or_only_observes_forgets_no_gpu(bench: Bench) -> None:
    async with bench.running():
        pass
    (bench.folder / "terms.json").unlink()
    bench.terms = replace(terms("A"), observe=True)
    async with bench.running():
        await bench.slices.tend()
        put(bench, *bench.gpus.now["A"].instances, instance("A", "7g.80gb", 0, gi=77, uuid="MIG-by-hand"))
        await bench.runs.agree(terms("A"))
        await bench.slices.tend()
        assert [one.uuid for one in seen(bench).instances if one.foreign] == ["MIG-by-hand"]


# What went missing


async def test_a_run_whose_slice_was_destroyed_is_told_and_keeps_it_from_everybody(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1)
        await start(bench, 2, requeue=False)
        put(bench, instance("A", "3g.40gb", 4))
        await bench.slices.tend()
        await bench.until(lambda: bool(bench.slurm.requeued and bench.slurm.cancelled))
        assert bench.slurm.requeued == [1]
        assert bench.slurm.cancelled == [(2, "vgpu: a slice of this job on n1 was destroyed by somebody")]
        assert len(bench.losses.alarms()) == 2
        put(bench, instance("A", "1g.20gb", 0), instance("A", "1g.20gb", 2), instance("A", "3g.40gb", 4))
    async with bench.running():  # the same UUIDs are there again
        assert {one.job_id for one in bench.book.lost} == {1, 2}
        assert len(bench.slurm.requeued) == 1
        await start(bench, 3)
        assert bench.held()[3] == (BIG,)
        await bench.end(1)
        await bench.until(lambda: not bench.book.unseen)
        await start(bench, 4)
        assert bench.held()[4] == (FIRST,)
        assert len(bench.losses.alarms()) == 1


async def test_a_slice_on_a_gpu_that_can_not_be_read_is_not_taken_for_gone(bench: Bench) -> None:
    async with bench.running():
        await start(bench, 1)
    whole = bench.gpus.now["A"]
    bench.gpus.now["A"] = Gpu(
        uuid="", index=0, minor=-1, name="", mig=MigMode.UNSUPPORTED, memory_mib=0, fault="GPU is lost"
    )
    async with bench.running():
        assert not bench.book.lost
        bench.gpus.now["A"] = replace(whole, fault="reading it: unknown error")
        await bench.slices.tend()
        bench.gpus.now["A"] = whole
        await bench.slices.tend()
        assert (bench.book.lost, bench.slurm.requeued) == (frozenset(), [])


async def test_a_reading_that_is_right_the_second_time_alarms_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench.running():
        await start(bench, 1)
        right = bench.gpus.inventory
        readings = iter([(replace(bench.gpus.now["A"], instances=()),)])
        monkeypatch.setattr(bench.gpus, "inventory", lambda: next(readings, None) or right())
        await bench.slices.tend()
        assert not bench.book.lost


async def test_a_boot_brings_the_last_layout_back_without_a_controller(bench: Bench) -> None:
    async with bench.running():
        await bench.slices.make(RECUT)
    bench.gpus.now["A"] = gpu("A", mig=MigMode.DISABLED)
    bench.terms = terms()  # nobody says anything
    async with bench.running():
        assert starts(bench) == [("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)]
        assert not seen(bench).fault


async def test_a_gpu_that_was_reset_gets_its_layout_back(bench: Bench) -> None:
    async with bench.running():
        before = starts(bench)
        put(bench)
        await bench.slices.tend()
        assert starts(bench) == before


async def test_nothing_is_given_out_on_a_gpu_before_its_layout_is_back(bench: Bench) -> None:
    async with bench.running():
        pass
    put(bench, instance("A", "1g.20gb", 0))
    faults: list[str] = []

    def look(_step: Step) -> None:
        faults.append(seen(bench).fault)

    bench.gpus.before = look
    async with bench.running():
        assert faults == ["its layout is being restored"]
        assert not seen(bench).fault


# A driver that says no


async def test_a_gpu_in_use_for_a_moment_is_waited_for(bench: Bench) -> None:
    async with bench.running():
        refuse(bench, HELD, BUSY_TRIES - 1)
        await bench.slices.make(RECUT)
        assert starts(bench) == [("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)]


async def test_of_a_step_that_went_half_way_only_the_rest_is_tried_again(bench: Bench) -> None:
    async with bench.running():

        def half(_step: Step) -> None:
            bench.gpus.before = lambda _step: None
            put(bench, instance("A", "1g.20gb", 0), instance("A", "1g.20gb", 2))
            raise HELD

        bench.gpus.before = half
        await bench.slices.make(RECUT)
        assert bench.gpus.steps == [Step(gpu="A", create=RECUT.create)]


async def test_a_gpu_that_keeps_refusing_is_quarantined_with_its_holder_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rules.wait_s = 0.01
    async with bench.running():
        await start(bench, 1)
        refuse(bench, HELD)
        for nth in range(FAILURES_MAX):
            assert not seen(bench).fault, nth
            with pytest.raises(GpuBusy):
                await bench.slices.make(RECUT)
        assert "nv-hostengine, nvidia-dcgm.service" in gpu_to_wire(seen(bench)).fault
        with pytest.raises(GpuBusy, match="quarantined"):
            await bench.slices.make(RECUT)
        await start(bench, 2)
        assert bench.held() == {1: (FIRST,)}, "who has a slice keeps it, nobody else gets one"
        await bench.slices.tend()
        assert seen(bench).fault, "not before it is due"
        monkeypatch.setattr(quarantine_module.Quarantine, "waits", lambda *_: False)
        await bench.slices.tend()
        assert seen(bench).fault, "it still refuses"
        bench.gpus.before = lambda _step: None
        await bench.slices.tend()
        assert not seen(bench).fault
        assert starts(bench) == [("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)]
        await bench.end(1)
        await bench.until(lambda: not bench.book.unseen)
        await start(bench, 3)
        assert bench.held() == {3: (FIRST,)}


async def test_a_quarantine_outlives_the_agent_as_an_open_step(bench: Bench) -> None:
    async with bench.running():
        refuse(bench, HELD)
        for _ in range(FAILURES_MAX):
            with pytest.raises(GpuBusy):
                await bench.slices.make(RECUT)
    async with bench.running():
        assert "nv-hostengine" in seen(bench).fault
    bench.gpus.before = lambda _step: None
    async with bench.running():
        assert not seen(bench).fault
        assert ("1g.20gb", 4) in starts(bench)


async def test_an_apply_takes_a_gpu_out_of_quarantine_as_it_is(bench: Bench) -> None:
    async with bench.running():
        before = starts(bench)
        refuse(bench, HELD)
        for _ in range(FAILURES_MAX):
            with pytest.raises(GpuBusy):
                await bench.slices.make(RECUT)
        await bench.slices.retry()
        assert not seen(bench).fault
        assert starts(bench) == before
        with pytest.raises(GpuBusy):
            await bench.slices.make(RECUT)
        assert seen(bench).fault, "on probation"


async def test_no_room_and_a_cut_that_fails_are_no_sign_of_trouble(bench: Bench) -> None:
    async with bench.running():
        for error, cut in ((NoRoom("no room"), False), (HELD, True)):
            refuse(bench, error)
            for _ in range(FAILURES_MAX):
                with pytest.raises(NvmlError):
                    await bench.slices.make(RECUT, cut=cut)
        assert not seen(bench).fault


async def test_a_gpu_that_will_not_be_switched_to_mig_says_who_is_in_the_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(_gpu: str) -> Gpu:
        raise HELD

    put(bench, mig=MigMode.DISABLED)
    monkeypatch.setattr(bench.gpus, "enable_mig", held)
    async with bench.running():
        assert "nv-hostengine" in seen(bench).fault


# A journal that can't be kept


async def test_a_journal_that_makes_no_sense_stops_everything_on_its_gpu_and_nothing_else(bench: Bench) -> None:
    bench.gpus.now["B"] = gpu("B", ("1g.20gb", 0), index=1)
    bench.terms = terms("A", "B")
    bench.rules.wait_s = 0.01
    async with bench.running():
        await start(bench, 1)
    file = bench.folder / "gpus/A.json"
    file.write_text(file.read_text()[:-9])
    put(bench, instance("A", "1g.20gb", 0), HALF)
    for _ in range(2):  # and it is no loop: the next agent starts as well
        async with bench.running():
            assert str(file) in seen(bench).fault
            assert bench.gpus.steps == []
            assert bench.held() == {1: (FIRST,)}
            with pytest.raises(GpuBusy, match="can't be believed"):
                await bench.slices.make(Step(gpu="A", destroy=(("3g.40gb", 4),)))
    async with bench.running():
        file.unlink()
        await bench.slices.tend()
        assert not seen(bench).fault
        assert [one.foreign for one in seen(bench).instances] == [False, True]


@pytest.mark.parametrize("place", ["before", "beside"])
async def test_a_step_whose_intent_can_not_be_written_is_not_begun(bench: Bench, place: str) -> None:
    async with bench.running():
        before = starts(bench)
        full = [f"write gpus/A.json: {place}"]

        def no_space(at: str) -> None:
            if at in full:
                raise OSError(28, "no space left")

        bench.slices._changes._journal._at = no_space
        with pytest.raises(NvmlError, match="no space left"):
            await bench.slices.make(RECUT)
        assert (starts(bench), bench.gpus.steps) == (before, [])
        full.clear()
        await bench.slices.make(RECUT)
        assert starts(bench) != before


async def test_a_step_that_can_not_be_committed_is_found_done(bench: Bench, tmp_path: Path) -> None:
    async with bench.running():
        writes = []

        def no_space(at: str) -> None:
            writes.append(at)
            if writes.count("write gpus/A.json: before") == 2:
                raise OSError(28, "no space left")

        bench.slices._changes._journal._at = no_space
        await bench.slices.make(RECUT)
        after = starts(bench)
    async with bench.running():
        assert starts(bench) == after
        assert len(bench.gpus.steps) == 1
        assert all(not one.foreign for one in seen(bench).instances)


@pytest.mark.parametrize("blind", ["all", "one"])
async def test_what_was_made_unseen_is_known_for_ours_when_it_can_be_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, blind: str
) -> None:
    async with bench.running():
        look, before = bench.gpus.inventory, bench.gpus.now["A"]

        def silent() -> tuple[Gpu, ...]:
            raise NvmlError("timed out")

        def stale() -> tuple[Gpu, ...]:
            return (replace(before, fault="reading it: timed out"),)

        def after(_step: Step) -> None:
            monkeypatch.setattr(bench.gpus, "inventory", silent if blind == "all" else stale)

        bench.gpus.before = after
        await bench.slices.make(RECUT)
        monkeypatch.setattr(bench.gpus, "inventory", look)
        await bench.slices.tend()
        assert starts(bench) == [("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)]
        assert not any(one.foreign for one in seen(bench).instances)
        assert len(bench.gpus.steps) == 1
    async with bench.running():
        assert not any(one.foreign for one in seen(bench).instances)


async def test_steps_of_one_gpu_wait_for_each_other(bench: Bench) -> None:
    async with bench.running():
        await asyncio.gather(
            bench.slices.make(Step(gpu="A", destroy=(("1g.20gb", 0),))),
            bench.slices.make(Step(gpu="A", destroy=(("1g.20gb", 2),))),
            bench.slices.tend(),
        )
        assert starts(bench) == [("3g.40gb", 4)]
    async with bench.running():
        assert starts(bench) == [("3g.40gb", 4)]
