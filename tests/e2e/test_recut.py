"""Layouts that follow the queue on a real Slurm: what waits is cut beside running jobs, and no node is ever drained."""

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.cli.view import SliceState
from slurm_plugin.lab import commands, simgpu
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import LabSpec
from tests.e2e import chaos
from tests.e2e.live import SEE, Live, name_of_this_run
from tests.e2e.watch import Watch, pool_of

pytestmark = pytest.mark.slurm

SEVENTHS = ("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}", "{1g.10gb: 7}")
FOLLOW = "planning: {follow: queue, batch_window_s: 0.2, hysteresis_s: 1}\n"
START_S = 10.0  # a job for which the pool re-cuts has started by then
SMALL, LIMIT_S = ("--gres=vgpu:1g.10gb", "--time=1"), 60
WORK_S = 4  # of a job in a stream
PROMISES = "class 3g.40gb: never fewer than 1 idle, account physics: at least 2 of 1g.10gb"
UNKNOWN_ERROR = 999  # NVML_ERROR_UNKNOWN
FREE = (SliceState.IDLE, SliceState.WITHHELD)


@pytest.fixture(scope="module")
def _pair() -> Iterator[Live]:
    """Two nodes with one H100 each: fourteen sevenths."""
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="labs", dir="/run"))
    base.chmod(0o755)
    name = name_of_this_run().replace("e2e", "recut")
    try:
        yield Live(commands.up(LabSpec(name=name, gpus=1), base))
    finally:
        commands.down(name, base)


@pytest.fixture
def pair(_pair: Live) -> Iterator[Live]:
    """Every GPU cut in sevenths, and layouts follow the queue from there."""
    apply(_pair)
    _pair.until(lambda: sorted(shapes(_pair)) == ["1g.10gb"] * 14, "every GPU is cut in sevenths")
    yield _pair
    _pair.settle()


def apply(live: Live, planning: str = FOLLOW) -> None:
    ran = live.apply(live.policy(SEVENTHS) + planning)
    assert ran.code == 0, ran.err


def shapes(live: Live) -> list[str]:
    return [one.profile for one in live.slices().values()]


def explained(live: Live, job: str) -> dict[str, Any]:
    ran = live.vgpu("explain", job, "--json")
    assert ran.code == 0, ran.err
    told: dict[str, Any] = json.loads(ran.out)
    return told


def ids(live: Live, array: str) -> set[int]:
    """The elements' own ids."""
    return {int(one) for one in live.slurm("squeue", "-h", "-r", "--states=all", "-j", array, "-o", "%A").split()}


def idle(live: Live) -> Counter[str]:
    """How many slices of each profile no job has."""
    pool = pool_of(live)
    assert pool is not None
    return Counter(s.profile for node in pool.nodes for gpu in node.gpus for s in gpu.slices if s.state in FREE)


def told_of(live: Live) -> list[str]:
    """What is wrong on the nodes, as the controller says."""
    pool = pool_of(live)
    return ["no controller"] if pool is None else [text for node in pool.nodes for text in node.problems]


def test_what_waits_is_cut_beside_running_jobs(pair: Live) -> None:
    busy = pair.submit("alice", "--gres=vgpu:1g.10gb", "--array=1-5")
    elements = [f"{busy}_{nth}" for nth in range(1, 6)]
    had = {one: pair.wait_sees("alice", one) for one in elements}
    watch = Watch(pair)
    with chaos.beside(watch.run, over=[watch.over]):
        began = time.monotonic()
        job = pair.submit("bob", "--gres=vgpu:3g.40gb")
        ((_, mine),) = pair.wait_sees("bob", job)
        took_s = time.monotonic() - began
    print(f"started {took_s:.2f} s after it was submitted")
    assert took_s < START_S
    assert pair.profiles(mine) == ["3g.40gb"]
    assert pair.state(busy).split() == ["RUNNING"] * 5
    held = {uuid for ((_, uuids),) in had.values() for uuid in uuids}
    assert len(held) == 5
    assert pair.profiles(sorted(held)) == ["1g.10gb"] * 5
    assert all(pair.wait_sees("alice", one) == had[one] for one in elements)
    assert watch.drained() == []
    assert watch.too_many == []
    assert {pair.node_state(node) for node in pair.lab.nodes} <= {"mixed", "idle"}


def test_room_is_kept_for_a_job_under_a_stream_of_small_ones(pair: Live) -> None:
    """Small jobs come for ever, and no four neighbours would ever be free by themselves."""
    first = pair.submit("alice", *SMALL, "--array=1-14", script=f"sleep $(( {WORK_S} + SLURM_ARRAY_TASK_ID % 4 ))")
    pair.until(lambda: pair.state(first).split() == ["RUNNING"] * 14, "every slice is busy")
    watch = Watch(pair)
    with chaos.beside(watch.run, over=[watch.over]):
        began, at = time.monotonic(), time.time()
        job = pair.submit("bob", "--gres=vgpu:3g.40gb")
        stream = pair.submit("alice", *SMALL, "--array=1-200", script=f"sleep {WORK_S}")
        pair.until(lambda: explained(pair, job)["blockers"] != [], "it is told who is in the way")
        told = explained(pair, job)
        pair.wait_sees("bob", job)
        took_s = time.monotonic() - began
    print(f"started {took_s:.2f} s after it was submitted")
    assert {one["job_id"] for one in told["blockers"]} <= ids(pair, first)
    assert told["free_at"] == max(one["ends_at"] for one in told["blockers"])
    assert at < told["free_at"] < at + LIMIT_S + 1, "by their time limits"
    assert took_s < WORK_S + 3 + START_S
    states = pair.state(stream).split()
    assert states.count("RUNNING") > 0
    assert "PENDING" in states
    assert watch.drained() == []
    assert watch.too_many == []


def test_what_is_promised_holds_all_the_while(pair: Live) -> None:
    apply(pair, FOLLOW.replace("}\n", f", guarantees: {{{PROMISES}}}}}\n"))
    pair.until(lambda: idle(pair)["3g.40gb"] == 1, "a half is cut and kept")
    began = time.time()
    looks: list[Counter[str]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            looks.append(idle(pair))

    with chaos.beside(look, over=[over]):
        stream = pair.submit("alice", *SMALL, "--account=art", "--array=1-60", script="sleep 2")
        pair.until(lambda: pair.state(stream).split().count("COMPLETED") > 12, "each slice has had one", limit_s=30)
        mine = pair.submit("bob", *SMALL, "--account=physics", "--array=1-3", script=f"{SEE}; exec sleep 1000")
        for nth in (1, 2):
            pair.wait_sees("bob", f"{mine}_{nth}")
        assert "PENDING" in pair.state(stream), "the account's jobs have not waited for it"
    assert min(look["3g.40gb"] for look in looks) == 1
    told = json.loads(pair.vgpu("history", "--json").out)["entries"]
    lacks = [one for one in told if one["guarantee"] and one["at"] > began and one["have"] < one["at_least"]]
    assert lacks == [], "at no moment, as the controller has it"
    pair.slurm("scancel", stream, mine)  # they may have a slice in each half that could be cut
    half = pair.submit("bob", "--gres=vgpu:3g.40gb")
    pair.wait_sees("bob", half)
    pair.until(lambda: idle(pair)["3g.40gb"] == 1, "another half is cut in its stead")


@pytest.mark.parametrize("trouble", ["stuck", "refused"])
def test_a_gpu_that_can_not_be_changed_holds_nobody_up(pair: Live, trouble: str) -> None:
    """Somebody who is not seen holds its instances, or the driver makes none: then another GPU is re-cut."""
    pair.until(lambda: told_of(pair) == [], "no change has failed so lately that a GPU is left alone")
    first = pair.lab.sim_state(pair.lab.nodes[0])
    had = simgpu.snapshot(first).slices()
    if trouble == "stuck":
        for uuid in had:
            simgpu.stick(first, uuid)
    else:
        simgpu.inject(first, call="nvmlDeviceCreateGpuInstanceWithPlacement", code=UNKNOWN_ERROR, times=1000)
    watch = Watch(pair)
    try:
        with chaos.beside(watch.run, over=[watch.over]):
            began = time.monotonic()
            ((node, mine),) = pair.wait_sees("bob", pair.submit("bob", "--gres=vgpu:3g.40gb"))
            print(f"started {time.monotonic() - began:.2f} s after it was submitted")
        assert node == pair.lab.nodes[1]
        assert pair.profiles(mine) == ["3g.40gb"]
        left = simgpu.snapshot(first).slices().keys()
        assert left == had.keys() if trouble == "stuck" else left < had.keys(), "it was tried there first"
    finally:
        simgpu.clear(first)
    small = pair.submit("alice", *SMALL, "--array=1-5", script="sleep 1")
    pair.until(lambda: pair.state(small).split() == ["COMPLETED"] * 5, "what is left there serves on")
    assert watch.drained() == []
    assert watch.too_many == []
