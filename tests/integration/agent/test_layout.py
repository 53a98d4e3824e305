"""A GPU's layout through crashes, boots and other hands: what is ours comes back, what is not is left alone."""

from dataclasses import replace

import pytest

from slurm_plugin.errors import GpuBusy, NvmlError
from slurm_plugin.model import Gpu, MigMode, Step
from slurm_plugin.wire import gpu_to_wire
from tests.integration.agent.bench import BIG, FIRST, HALF, RECUT, Bench
from tests.unit.agent.world import FakeGpus, gpu, instance, terms, uuid

pytestmark = pytest.mark.usefixtures("no_pauses")


async def test_a_half_made_instance_is_made_anew_where_it_is_ours_and_left_where_it_is_not(bench: Bench) -> None:
    async with bench.running():
        pass
    bench.put(instance("A", "1g.20gb", 0), HALF, instance("A", "3g.40gb", 4))
    async with bench.running():
        assert bench.gpus.steps == [Step(gpu="A", destroy=(("1g.20gb", 2),), create=(("1g.20gb", 2),))]
        assert all(one.ci >= 0 and not one.foreign for one in bench.seen().instances)
    strange = instance("A", "1g.10gb", 6, ci=-1, uuid="")
    bench.put(instance("A", "1g.20gb", 0), instance("A", "1g.20gb", 2), strange)
    async with bench.running():
        assert strange in bench.gpus.now["A"].instances
        wire = gpu_to_wire(bench.seen())
        assert [(one.start, one.ci) for one in wire.instances if one.foreign] == [(6, -1)]


async def test_an_instance_that_somebody_made_by_hand_is_nobodys(bench: Bench) -> None:
    bench.rules.wait_s = 0.01
    bench.put(instance("A", "1g.20gb", 0))
    async with bench.running():
        bench.put(instance("A", "1g.20gb", 0), instance("A", "7g.80gb", 0, gi=77, uuid="MIG-by-hand"))
        await bench.slices.tend()
        assert [one.uuid for one in bench.seen().instances if one.foreign] == ["MIG-by-hand"]
        await bench.start(1, "7g.80gb")
        assert bench.held() == {}
        with pytest.raises(GpuBusy, match="not the pool's"):
            await bench.slices.make(Step(gpu="A", destroy=(("7g.80gb", 0),)))
    async with bench.running():
        assert [one.uuid for one in bench.seen().instances if one.foreign] == ["MIG-by-hand"]


@pytest.mark.parametrize("others", ["B", ""])
async def test_a_gpu_that_leaves_the_pool_is_forgotten_and_taken_as_it_is_when_it_comes_back(
    bench: Bench, others: str
) -> None:
    bench.gpus.now["B"] = gpu("B", index=1)
    async with bench.running():
        await bench.runs.agree(terms(*others, others=frozenset("A")))
        await bench.slices.tend()
        bench.put(instance("A", "7g.80gb", 0))
        await bench.runs.agree(terms("A", "B"))
        await bench.until(lambda: not bench.book.unseen)
        await bench.start(1, "7g.80gb")
        assert bench.held() == {1: (uuid("A", "7g.80gb", 0),)}


UNREAD = Gpu(uuid="", index=0, minor=-1, name="", mig=MigMode.UNSUPPORTED, memory_mib=0, fault="GPU is lost")


@pytest.mark.parametrize("silent", ["GPU A", "the driver"])
async def test_a_gpu_that_could_not_be_read_when_the_agent_came_has_not_left_the_pool(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """The controller can't name what it was not told of; what the pool knows of it stands."""
    bench.gpus.now["B"] = gpu("B", index=1)
    async with bench.running():
        pass
    by_hand = instance("A", "1g.10gb", 2, gi=77, uuid="MIG-by-hand")
    a = replace(bench.gpus.now["A"], instances=(instance("A", "1g.20gb", 0), by_hand))
    there = {"A": a, "B": gpu("B", index=1)}

    def says_nothing() -> tuple[Gpu, ...]:
        raise NvmlError("driver not loaded")

    bench.gpus.now = {"": UNREAD, "B": there["B"]}
    if silent == "the driver":
        monkeypatch.setattr(bench.gpus, "inventory", says_nothing)
    bench.terms = terms(others=frozenset({"B"} if silent == "GPU A" else ()))
    async with bench.running():
        await bench.slices.tend()
        bench.gpus.now = there
        monkeypatch.undo()
        await bench.slices.tend()
        await bench.runs.agree(terms("A", others=frozenset("B")))
        assert [one.uuid for one in bench.seen().instances if one.foreign] == ["MIG-by-hand"]


async def test_a_gpu_that_is_read_late_gets_its_layout_back(bench: Bench) -> None:
    async with bench.running():
        before = bench.starts()
    whole = bench.gpus.now["A"]
    bench.gpus.now["A"] = UNREAD
    async with bench.running():
        bench.gpus.now["A"] = replace(whole, instances=whole.instances[:1])
        await bench.slices.tend()
        assert bench.starts() == before
        assert not bench.seen().fault


async def test_an_agent_that_was_told_nothing_or_only_observes_forgets_no_gpu(bench: Bench) -> None:
    async with bench.running():
        pass
    (bench.folder / "terms.json").unlink()
    bench.terms = replace(terms("A"), observe=True)
    async with bench.running():
        await bench.slices.tend()
        bench.put(*bench.gpus.now["A"].instances, instance("A", "7g.80gb", 0, gi=77, uuid="MIG-by-hand"))
        await bench.runs.agree(terms("A"))
        await bench.slices.tend()
        assert [one.uuid for one in bench.seen().instances if one.foreign] == ["MIG-by-hand"]


async def test_a_run_whose_slice_was_destroyed_is_told_and_keeps_it_from_everybody(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1)
        await bench.start(2, requeue=False)
        bench.put(instance("A", "3g.40gb", 4))
        await bench.slices.tend()
        await bench.until(lambda: bool(bench.slurm.requeued and bench.slurm.cancelled))
        assert bench.slurm.requeued == [1]
        assert bench.slurm.cancelled == [(2, "vgpu: a slice of this job on n1 was destroyed by somebody")]
        assert len(bench.losses.alarms()) == 2
        bench.put(instance("A", "1g.20gb", 0), instance("A", "1g.20gb", 2), instance("A", "3g.40gb", 4))
    async with bench.running():  # the same UUIDs are there again
        assert {one.job_id for one in bench.book.lost} == {1, 2}
        assert len(bench.slurm.requeued) == 1
        await bench.start(3)
        assert bench.held()[3] == (BIG,)
        await bench.end(1)
        await bench.until(lambda: not bench.book.unseen)
        await bench.start(4)
        assert bench.held()[4] == (FIRST,)
        assert len(bench.losses.alarms()) == 1


async def test_a_slice_on_a_gpu_that_can_not_be_read_is_not_taken_for_gone(bench: Bench) -> None:
    async with bench.running():
        await bench.start(1)
    whole = bench.gpus.now["A"]
    bench.gpus.now["A"] = UNREAD
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
        await bench.start(1)
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
        assert bench.starts() == [("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)]
        assert not bench.seen().fault


async def test_a_gpu_that_was_reset_gets_its_layout_back(bench: Bench) -> None:
    async with bench.running():
        before = bench.starts()
        bench.put()
        await bench.slices.tend()
        assert bench.starts() == before


async def test_nothing_is_given_out_on_a_gpu_before_its_layout_is_back(bench: Bench) -> None:
    async with bench.running():
        pass
    bench.put(instance("A", "1g.20gb", 0))
    faults: list[str] = []

    def look(_step: Step) -> None:
        faults.append(bench.seen().fault)

    bench.gpus.before = look
    async with bench.running():
        assert faults == ["its layout is being restored"]
        assert not bench.seen().fault


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
