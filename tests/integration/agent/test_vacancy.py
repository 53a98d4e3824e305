"""A slice that somebody has not left, seen by what he computes on or has open."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.agent import binding
from slurm_plugin.agent import vacancy as vacancy_module
from slurm_plugin.agent.outlived import Outlived
from slurm_plugin.agent.vacancy import Watch
from slurm_plugin.errors import GpuBusy, NvmlError
from slurm_plugin.model import Gpu, Instance, RunKey, Step
from slurm_plugin.nvml.hiding import SOCKET
from slurm_plugin.nvml.holders import open_in
from slurm_plugin.wire import gpu_to_wire
from tests.integration.agent.bench import BIG, FIRST, PATIENCE_S, SECOND, Bench
from tests.unit.agent.world import gpu
from tests.unit.nvml.hiders import QUEUE, USER, hider


@pytest.fixture
def caps(bench: Bench, tmp_path: Path) -> Path:
    """The folder of capability devices: plain files named as the slices have it."""
    folder = tmp_path / "nvidia-caps"
    folder.mkdir()
    for one in bench.gpus.now["A"].instances:
        for minor in one.caps:
            (folder / f"nvidia-cap{minor}").touch()
    bench.devices._nodes = folder
    return folder


HOLD = 'exec 3< "$1"; echo held; read -r wait; exec 3<&-; read -r wait'


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has this file open until it is sent a line."""
    with subprocess.Popen(["sh", "-c", HOLD, "sh", path], stdin=-1, stdout=-1, bufsize=0) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"held\n"
        try:
            yield one
        finally:
            one.kill()


async def test_an_open_descriptor_of_the_last_job_keeps_a_slice_from_the_next_until_it_is_gone(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 600.0)  # only its end can free the slice within the test
    async with bench.running():
        await bench.start(1)
        with holding(caps / "nvidia-cap1") as process:
            await bench.end(1)
            await bench.until(lambda: FIRST in bench.book.haunted)
            assert bench.book.haunted[FIRST] == f"pid {process.pid} (sh, uid 0)"
            wire = gpu_to_wire(bench.book.gpus[0], bench.book.haunted)
            assert [(one.uuid, one.held_by) for one in wire.instances if one.foreign] == [
                (FIRST, f"pid {process.pid} (sh, uid 0)")
            ]
            await bench.start(2)
            assert bench.held() == {2: (SECOND,)}
        await bench.until(lambda: not bench.book.haunted)
        await bench.start(3)
        assert bench.held()[3] == (FIRST,)


async def test_a_descriptor_that_is_closed_is_noticed_too(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 0.01)
    async with bench.running():
        await bench.start(1)
        with holding(caps / "nvidia-cap1") as process:
            await bench.end(1)
            await bench.until(lambda: FIRST in bench.book.haunted)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            await bench.until(lambda: not bench.book.haunted)
            assert process.poll() is None


async def test_what_was_opened_before_the_agent_started_is_seen(bench: Bench, caps: Path) -> None:
    with holding(caps / "nvidia-cap0"):
        async with bench.running():
            assert bench.book.haunted.keys() == {FIRST}
            await bench.start(1)
            assert bench.held() == {1: (SECOND,)}


async def test_a_descriptor_in_a_queue_of_its_last_user_keeps_a_slice_from_the_next_until_his_process_ends(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 600.0)
    async with bench.running():
        await bench.start(1, uid=USER)
        with hider(QUEUE, caps / "nvidia-cap1") as process:
            await bench.end(1)
            await bench.until(lambda: FIRST in bench.book.haunted)
            assert bench.book.haunted[FIRST].startswith(f"pid {process.pid} (python")
            assert bench.book.haunted[FIRST].endswith(f"{USER}): {SOCKET}")
            await bench.start(2)
            assert bench.held() == {2: (SECOND,)}
        await bench.until(lambda: not bench.book.haunted)
        await bench.start(3)
        assert bench.held()[3] == (FIRST,)


async def test_the_next_agent_asks_for_who_had_a_slice_before_it(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 600.0)
    with hider(QUEUE, caps / "nvidia-cap1"):
        async with bench.running():
            await bench.start(1, uid=USER)
            await bench.end(1)
        async with bench.running():
            assert bench.book.haunted.keys() == {FIRST}


async def test_another_instance_with_the_same_devices_is_kept_from_the_next_as_well(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 600.0)
    async with bench.running():
        await bench.start(1, uid=USER)
        [(_, there)] = bench.book.slices(bench.book.grants[1])
        with hider(QUEUE, caps / "nvidia-cap1"):
            await bench.end(1)
            renamed = replace(there, uuid="MIG-another")
            bench.put(renamed, *bench.gpus.now["A"].instances[1:])
            await bench.slices.refresh("A")
            await bench.until(lambda: bench.book.haunted.keys() == {"MIG-another"})


async def test_a_queue_of_whoever_did_not_have_a_slice_keeps_it_from_nobody(bench: Bench, caps: Path) -> None:
    async with bench.running():
        with hider(QUEUE, caps / "nvidia-cap1"):
            await bench.start(1, uid=USER + 1)
            await bench.end(1)
            await bench.until(lambda: not bench.book.unseen)
            assert bench.book.haunted == {}


async def test_who_left_a_slice_is_not_asked_for_again(bench: Bench, caps: Path) -> None:
    async with bench.running():
        await bench.start(1, uid=USER)
        await bench.end(1)
        await bench.until(lambda: not bench.book.unseen)
        with hider(QUEUE, caps / "nvidia-cap1"):
            await bench.start(2, uid=USER + 1)
            assert bench.held() == {2: (FIRST,)}
            await bench.end(2)
            await bench.until(lambda: not bench.book.unseen)
            assert bench.book.haunted == {}


async def test_what_passes_through_a_socket_for_a_moment_is_waited_for(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[dict[str, dict[int, str]]] = [{FIRST: {4242: SOCKET}}] * (vacancy_module.PASSING_LOOKS - 1)
    haunted: list[str] = []
    monkeypatch.setattr(vacancy_module, "hiding", lambda _: looks.pop() if looks else {})
    async with bench.running():
        bench.slices.moved = lambda: haunted.extend(bench.book.haunted)
        await bench.start(1, uid=USER)
        await bench.end(1)
        await bench.until(lambda: not bench.book.unseen)
        assert (looks, haunted) == ([], [])


async def test_a_new_slice_is_looked_at_before_it_is_given_out(bench: Bench, caps: Path) -> None:
    """Its device was everybody's from its making until the agent took it: who opened it then still has it."""
    bench.gpus.now["A"] = gpu("A", ("3g.40gb", 4))
    with holding(caps / "nvidia-cap0"):
        async with bench.running():
            await bench.slices.make(Step(gpu="A", create=(("1g.20gb", 0), ("1g.20gb", 2))))
            await bench.start(1)
            assert bench.held() == {1: (SECOND,)}
            await bench.until(lambda: FIRST in bench.book.haunted)


async def test_one_scan_serves_all_that_wait_for_one(bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench.running():
        scans: list[int] = []

        def scan(wanted: Mapping[str, tuple[Path, ...]]) -> dict[str, tuple[int, ...]]:
            scans.append(len(wanted))
            return open_in(wanted)

        monkeypatch.setattr(vacancy_module, "open_in", scan)
        bench.slices.freed([one.uuid for one in bench.gpus.now["A"].instances])
        await bench.until(lambda: not bench.book.unseen)
        assert sum(scans) >= 3
        assert len(scans) <= 2


async def test_a_slice_whose_devices_are_still_its_last_users_is_not_idle(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 0.001)
    tried: list[int] = []

    def refuse(_gpu: Gpu, _instance: Instance, uid: int) -> bool:
        tried.append(uid)
        return False

    async with bench.running():
        await bench.start(1, uid=1234)
        device = bench.devices.nodes(bench.book.slices(bench.book.grants[1])[0][1])[0]
        os.chown(device, 1234, 0)
        monkeypatch.setattr(bench.devices, "give", refuse)
        await bench.end(1)
        await bench.until(lambda: len(tried) > 3)
        assert bench.book.unseen == {FIRST}
        os.chown(device, 0, 0)
        await bench.until(lambda: not bench.book.unseen)


async def test_a_run_waits_a_moment_for_a_smaller_slice_that_is_being_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, real = threading.Event(), bench.gpus.processes

    def slow(slice_: str) -> tuple[int, ...]:
        if slice_ != BIG:
            looking.wait(PATIENCE_S)
        return real(slice_)

    monkeypatch.setattr(binding, "CHOOSY_S", PATIENCE_S)
    async with bench.running():
        monkeypatch.setattr(bench.gpus, "processes", slow)
        bench.slices.freed([FIRST, SECOND])
        prolog = asyncio.create_task(bench.start(1))
        try:
            await bench.until(lambda: bool(bench.runs.binding.waiting))
            assert bench.held() == {}  # the big one is idle, and serves it too
        finally:
            looking.set()
        await prolog
        assert bench.held() in ({1: (FIRST,)}, {1: (SECOND,)})


async def test_a_run_does_not_wait_long_for_a_look_that_does_not_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "CHOOSY_S", 0.05)
    async with bench.running():
        bench.book.unseen |= {FIRST, SECOND}
        await bench.start(1)
        assert bench.held() == {1: (BIG,)}


async def test_a_slice_somebody_still_computes_on_is_given_to_nobody_until_he_leaves(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 0.001)
    async with bench.running():
        await bench.start(1)
        bench.gpus.there[FIRST] = (4242,)
        await bench.end(1)
        await bench.until(lambda: bench.book.haunted.keys() == {FIRST})
        wire = gpu_to_wire(bench.book.gpus[0], bench.book.haunted)
        assert [one.uuid for one in wire.instances if one.foreign] == [FIRST]
        with pytest.raises(GpuBusy, match="in use"):
            await bench.slices.make(Step(gpu="A", destroy=(("1g.20gb", 0),)))
        await bench.start(2)
        assert bench.held() == {2: (SECOND,)}
        bench.gpus.there.clear()
        await bench.until(lambda: not bench.book.haunted)
        await bench.start(3)
        assert bench.held()[3] == (FIRST,)


async def test_a_slice_that_was_in_use_before_the_agent_started_is_seen_so(bench: Bench) -> None:
    bench.gpus.there[FIRST] = (4242,)
    async with bench.running():
        assert bench.book.haunted.keys() == {FIRST}


async def test_a_silent_driver_is_not_taken_for_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench.running():
        await bench.start(1)

        def silent(_: str) -> tuple[int, ...]:
            raise NvmlError("no answer")

        monkeypatch.setattr(bench.gpus, "processes", silent)
        monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 600.0)
        await bench.end(1)
        await bench.start(2)
        assert bench.held() == {2: (SECOND,)}
        assert bench.book.unseen == {FIRST}


async def test_a_look_that_fails_for_a_fault_of_ours_is_not_taken_for_nobody(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 0.01)
    looks = threading.Event()

    def broken(wanted: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
        looks.set()
        raise ValueError("a file of /proc that nobody expected")

    async with bench.running():
        await bench.start(1)
        with monkeypatch.context() as fault, holding(caps / "nvidia-cap1"):
            fault.setattr(vacancy_module, "open_in", broken)
            await bench.end(1)
            await bench.until(looks.is_set)
            looks.clear()
            await bench.until(looks.is_set)
            assert FIRST in bench.book.unseen
            await bench.start(2)
            assert bench.held() == {2: (SECOND,)}
        await bench.until(lambda: FIRST not in bench.book.unseen)


async def test_what_outlives_a_run_and_does_not_hold_still_keeps_its_slices_and_is_named_by_the_run(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 0.01)
    asked: list[frozenset[RunKey]] = []
    stays = [True]

    def hold(runs: frozenset[RunKey]) -> tuple[Outlived, ...]:
        asked.append(runs)
        return tuple(Outlived(run=run, cgroup=Path("/c"), still=False) for run in runs if run.job_id == 1 and stays)

    async with bench.running():
        bench.slices.watch = Watch(hold=hold)
        await bench.start(1, uid=USER)
        await bench.start(2, uid=USER)
        await bench.end(1)
        await bench.end(2)
        await bench.until(lambda: FIRST in bench.book.haunted and not bench.book.unseen)
        assert bench.book.haunted == {FIRST: f"processes of job 1 (uid {USER}) that outlive it, in /c"}
        assert {run.job_id for runs in asked for run in runs} == {1, 2}
        stays.clear()
        await bench.until(lambda: not bench.book.haunted)


async def test_the_next_agent_holds_what_outlives_the_runs_of_the_last_one(bench: Bench, caps: Path) -> None:
    async with bench.running():
        await bench.start(1, uid=USER)
        bench.slices.close()
        await bench.end(1)
    asked: list[frozenset[RunKey]] = []

    def hold(runs: frozenset[RunKey]) -> tuple[Outlived, ...]:
        asked.append(runs)
        return ()

    bench.watch = Watch(hold=hold)
    async with bench.running():
        assert {run.job_id for runs in asked for run in runs} == {1}


async def test_a_run_whose_processes_are_others_at_each_look_is_named_itself(
    bench: Bench, caps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacancy_module, "FIRST_PAUSE_S", 0.001)
    numbers = iter(range(1 << 22, 1 << 23))
    went_on: list[str] = []

    def hold(runs: frozenset[RunKey]) -> tuple[Outlived, ...]:
        return tuple(Outlived(run=run, cgroup=Path("/c"), still=True) for run in runs)

    async with bench.running():
        bench.slices.watch = Watch(hold=hold, go_on=lambda held: went_on.extend(str(one.cgroup) for one in held))
        monkeypatch.setattr(vacancy_module, "open_in", lambda wanted: {key: (next(numbers),) for key in wanted})
        await bench.start(1, uid=USER)
        await bench.end(1)
        await bench.until(lambda: "job 1 " in bench.book.haunted.get(FIRST, ""))
        monkeypatch.setattr(vacancy_module, "open_in", lambda _: {})
        await bench.until(lambda: not bench.book.haunted)  # what outlives its run and has nothing open keeps nothing
        assert len(went_on) >= 3
