"""GPUs that are reset to enter MIG mode: only where the pool allows it, and told where it does not come to that."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from slurm_plugin.errors import GpuBusy, NvmlError
from slurm_plugin.model import Gpu, MigMode
from tests.integration.agent.bench import HELD, Bench
from tests.unit.agent.world import FakeGpus, gpu

pytestmark = pytest.mark.usefixtures("no_pauses")

LAYOUT = [("1g.20gb", 0), ("1g.20gb", 2), ("3g.40gb", 4)]
FORBIDDEN = NvmlError("it has to be reset", hint="allow it")


@pytest.fixture
def asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each call that switches GPU A to MIG: might it be reset? It is, where it might."""
    calls: list[bool] = []

    def enable_mig(uuid: str, *, may_reset: bool = False) -> Gpu:
        calls.append(may_reset)
        if not may_reset:
            raise FORBIDDEN
        return FakeGpus.enable_mig(bench.gpus, uuid)

    monkeypatch.setattr(bench.gpus, "enable_mig", enable_mig)
    return calls


def leaves(bench: Bench, monkeypatch: pytest.MonkeyPatch, do: Callable[[str], Gpu]) -> None:
    def enable_mig(uuid: str, *, may_reset: bool = False) -> Gpu:
        assert may_reset
        return do(uuid)

    monkeypatch.setattr(bench.gpus, "enable_mig", enable_mig)


async def rebooted(bench: Bench, mig: MigMode) -> None:
    """The GPU has been the pool's, and is now without instances and in this mode."""
    async with bench.running():
        pass
    bench.gpus.now["A"] = gpu("A", mig=mig)


async def test_without_leave_it_is_told_and_with_it_the_gpu_is_brought_back(bench: Bench, asked: list[bool]) -> None:
    await rebooted(bench, MigMode.DISABLED)
    async with bench.running():
        assert asked == [False]
        assert "it has to be reset (allow it)" in bench.seen().fault
        await bench.slices.tend()
        assert asked == [False], "again only after a while"
        await bench.runs.agree(replace(bench.terms, reset_gpus=True))
        assert (asked[-1], bench.seen().fault) == (True, "")
        assert bench.starts() == LAYOUT


async def test_an_agent_knows_from_its_last_life_what_it_may(bench: Bench, asked: list[bool]) -> None:
    bench.terms = replace(bench.terms, reset_gpus=True)
    await rebooted(bench, MigMode.DISABLED)
    bench.terms = replace(bench.terms, gpus=frozenset(), reset_gpus=False)  # comes too late to be asked
    async with bench.running():
        assert asked == [True]


@pytest.mark.parametrize(("may", "calls"), [(False, []), (True, [True])])
async def test_a_reset_that_is_due_is_made_where_it_may_be(
    bench: Bench, asked: list[bool], may: bool, calls: list[bool]
) -> None:
    """Such as after an agent was killed, or somebody was on the GPU, when it was switched."""
    bench.terms = replace(bench.terms, reset_gpus=may)
    await rebooted(bench, MigMode.PENDING)
    async with bench.running():
        assert asked == calls
        assert bench.starts() == (LAYOUT if may else [])
        assert bench.seen().mig is (MigMode.ENABLED if may else MigMode.PENDING)
        assert not bench.seen().fault


async def test_who_is_on_the_gpu_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(_uuid: str) -> Gpu:
        raise HELD

    bench.terms = replace(bench.terms, reset_gpus=True)
    await rebooted(bench, MigMode.DISABLED)
    leaves(bench, monkeypatch, held)
    async with bench.running():
        assert "nv-hostengine" in bench.seen().fault


async def test_a_reset_that_does_not_come_about_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.terms = replace(bench.terms, reset_gpus=True)
    await rebooted(bench, MigMode.DISABLED)

    def pending(uuid: str) -> Gpu:
        bench.gpus.now[uuid] = replace(bench.gpus.now[uuid], mig=MigMode.PENDING)
        return bench.gpus.now[uuid]

    leaves(bench, monkeypatch, pending)
    async with bench.running():
        assert "reboot the node" in bench.seen().fault
    leaves(bench, monkeypatch, lambda uuid: FakeGpus.enable_mig(bench.gpus, uuid))
    async with bench.running():
        assert bench.starts() == LAYOUT


async def test_a_busy_moment_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.terms = replace(bench.terms, reset_gpus=True)
    await rebooted(bench, MigMode.DISABLED)
    refusals = iter([GpuBusy("in use")])

    def soon(uuid: str) -> Gpu:
        for refusal in refusals:
            raise refusal
        return FakeGpus.enable_mig(bench.gpus, uuid)

    leaves(bench, monkeypatch, soon)
    async with bench.running():
        assert bench.starts() == LAYOUT
