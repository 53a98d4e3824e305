"""Steps against a driver that says no, and a journal that can't be kept."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.agent import quarantine as quarantine_module
from slurm_plugin.agent.changes import BUSY_TRIES
from slurm_plugin.agent.quarantine import FAILURES_MAX
from slurm_plugin.errors import GpuBusy, NoRoom, NvmlError
from slurm_plugin.model import Gpu, MigMode, Step
from slurm_plugin.wire import gpu_to_wire
from tests.integration.agent.bench import FIRST, HALF, HELD, RECUT, Bench
from tests.unit.agent.world import gpu, instance, terms

pytestmark = pytest.mark.usefixtures("no_pauses")


async def test_a_gpu_in_use_for_a_moment_is_waited_for(bench: Bench) -> None:
    async with bench.running():
        bench.refuse(HELD, BUSY_TRIES - 1)
        await bench.slices.make(RECUT)
        assert bench.starts() == [("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)]


async def test_of_a_step_that_went_half_way_only_the_rest_is_tried_again(bench: Bench) -> None:
    async with bench.running():

        def half(_step: Step) -> None:
            bench.gpus.before = lambda _step: None
            bench.put(instance("A", "1g.20gb", 0), instance("A", "1g.20gb", 2))
            raise HELD

        bench.gpus.before = half
        await bench.slices.make(RECUT)
        assert bench.gpus.steps == [Step(gpu="A", create=RECUT.create)]


async def test_a_gpu_that_keeps_refusing_is_quarantined_with_its_holder_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rules.wait_s = 0.01
    async with bench.running():
        await bench.start(1)
        bench.refuse(HELD)
        for nth in range(FAILURES_MAX):
            assert not bench.seen().fault, nth
            with pytest.raises(GpuBusy):
                await bench.slices.make(RECUT)
        assert "nv-hostengine, nvidia-dcgm.service" in gpu_to_wire(bench.seen()).fault
        with pytest.raises(GpuBusy, match="quarantined"):
            await bench.slices.make(RECUT)
        await bench.start(2)
        assert bench.held() == {1: (FIRST,)}, "who has a slice keeps it, nobody else gets one"
        await bench.slices.tend()
        assert bench.seen().fault, "not before it is due"
        monkeypatch.setattr(quarantine_module.Quarantine, "waits", lambda *_: False)
        await bench.slices.tend()
        assert bench.seen().fault, "it still refuses"
        bench.gpus.before = lambda _step: None
        await bench.slices.tend()
        assert not bench.seen().fault
        assert bench.starts() == [("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)]
        await bench.end(1)
        await bench.until(lambda: not bench.book.unseen)
        await bench.start(3)
        assert bench.held().keys() == {3}


async def test_a_quarantine_outlives_the_agent_as_an_open_step(bench: Bench) -> None:
    async with bench.running():
        bench.refuse(HELD)
        for _ in range(FAILURES_MAX):
            with pytest.raises(GpuBusy):
                await bench.slices.make(RECUT)
    async with bench.running():
        assert "nv-hostengine" in bench.seen().fault
    bench.gpus.before = lambda _step: None
    async with bench.running():
        assert not bench.seen().fault
        assert ("1g.20gb", 4) in bench.starts()


async def test_an_apply_takes_a_gpu_out_of_quarantine_as_it_is(bench: Bench) -> None:
    async with bench.running():
        before = bench.starts()
        bench.refuse(HELD)
        for _ in range(FAILURES_MAX):
            with pytest.raises(GpuBusy):
                await bench.slices.make(RECUT)
        await bench.slices.retry()
        assert not bench.seen().fault
        assert bench.starts() == before
        with pytest.raises(GpuBusy):
            await bench.slices.make(RECUT)
        assert bench.seen().fault, "on probation"


async def test_no_room_and_a_cut_that_fails_are_no_sign_of_trouble(bench: Bench) -> None:
    async with bench.running():
        for error, cut in ((NoRoom("no room"), False), (HELD, True)):
            bench.refuse(error)
            for _ in range(FAILURES_MAX):
                with pytest.raises(NvmlError):
                    await bench.slices.make(RECUT, cut=cut)
        assert not bench.seen().fault


async def test_a_gpu_that_will_not_be_switched_to_mig_says_who_is_in_the_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(_gpu: str, *, may_reset: bool) -> Gpu:
        raise HELD

    bench.put(mig=MigMode.DISABLED)
    monkeypatch.setattr(bench.gpus, "enable_mig", held)
    async with bench.running():
        assert "nv-hostengine" in bench.seen().fault


async def test_a_journal_that_makes_no_sense_stops_everything_on_its_gpu_and_nothing_else(bench: Bench) -> None:
    bench.gpus.now["B"] = gpu("B", ("1g.20gb", 0), index=1)
    bench.terms = terms("A", "B")
    bench.rules.wait_s = 0.01
    async with bench.running():
        await bench.start(1)
    file = bench.folder / "gpus/A.json"
    file.write_text(file.read_text()[:-9])
    bench.put(instance("A", "1g.20gb", 0), HALF)
    for _ in range(2):  # and it is no loop: the next agent starts as well
        async with bench.running():
            assert str(file) in bench.seen().fault
            assert bench.gpus.steps == []
            assert bench.held() == {1: (FIRST,)}
            with pytest.raises(GpuBusy, match="can't be believed"):
                await bench.slices.make(Step(gpu="A", destroy=(("3g.40gb", 4),)))
    async with bench.running():
        file.unlink()
        await bench.slices.tend()
        assert not bench.seen().fault
        assert [one.foreign for one in bench.seen().instances] == [False, True]


@pytest.mark.parametrize("place", ["before", "beside"])
async def test_a_step_whose_intent_can_not_be_written_is_not_begun(bench: Bench, place: str) -> None:
    async with bench.running():
        before = bench.starts()
        full = [f"write gpus/A.json: {place}"]

        def no_space(at: str) -> None:
            if at in full:
                raise OSError(28, "no space left")

        bench.slices._changes._journal._at = no_space
        with pytest.raises(NvmlError, match="no space left"):
            await bench.slices.make(RECUT)
        assert (bench.starts(), bench.gpus.steps) == (before, [])
        full.clear()
        await bench.slices.make(RECUT)
        assert bench.starts() != before


async def test_a_step_that_can_not_be_committed_is_found_done(bench: Bench, tmp_path: Path) -> None:
    async with bench.running():
        writes = []

        def no_space(at: str) -> None:
            writes.append(at)
            if writes.count("write gpus/A.json: before") == 2:
                raise OSError(28, "no space left")

        bench.slices._changes._journal._at = no_space
        await bench.slices.make(RECUT)
        after = bench.starts()
    async with bench.running():
        assert bench.starts() == after
        assert len(bench.gpus.steps) == 1
        assert all(not one.foreign for one in bench.seen().instances)


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
        assert bench.starts() == [("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)]
        assert not any(one.foreign for one in bench.seen().instances)
        assert len(bench.gpus.steps) == 1
    async with bench.running():
        assert not any(one.foreign for one in bench.seen().instances)


async def test_steps_of_one_gpu_wait_for_each_other(bench: Bench) -> None:
    async with bench.running():
        await asyncio.gather(
            bench.slices.make(Step(gpu="A", destroy=(("1g.20gb", 0),))),
            bench.slices.make(Step(gpu="A", destroy=(("1g.20gb", 2),))),
            bench.slices.tend(),
        )
        assert bench.starts() == [("3g.40gb", 4)]
    async with bench.running():
        assert bench.starts() == [("3g.40gb", 4)]


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


async def test_a_step_on_a_busy_slice_is_refused_and_changes_nothing(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1)
        with pytest.raises(GpuBusy, match="in use"):
            await bench.slices.make(Step(gpu="A", destroy=(("1g.20gb", 0),)))
        assert bench.gpus.steps == []
