"""Layouts that follow the queue on a real Slurm: what waits is cut beside running jobs, and no node is ever drained."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.lab import commands, simgpu
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import LabSpec
from tests.e2e import chaos
from tests.e2e.live import Live, name_of_this_run
from tests.e2e.watch import Watch

pytestmark = pytest.mark.slurm

SEVENTHS = ("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}", "{1g.10gb: 7}")
FOLLOW = "planning: {follow: queue, batch_window_s: 0.2, hysteresis_s: 1}\n"
START_S = 10.0  # a job for which the pool re-cuts has started by then
WORK_S = 4  # of a job in a stream


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
