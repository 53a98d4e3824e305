"""A stream whose mix changes three times, on a real Slurm: sooner done than any static layout of the GPUs could be.

What a static layout could do at best is computed, from the jobs' own lengths and the moments at which they came: no
time is lost there between two jobs, and no guarantee is kept. See tests.simulation.planner.static.
"""

import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.lab import commands
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import LabSpec
from slurm_plugin.mig.products import product_named
from tests.e2e import chaos
from tests.e2e.live import Live, name_of_this_run
from tests.e2e.watch import Watch
from tests.simulation.planner.static import Asked, Bound, every_static, told

pytestmark = pytest.mark.slurm

PRODUCT, NODES = "h100-80gb", 2
NAMES = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")  # each is enough for those before it
SHAPES = {name: product_named(PRODUCT).profiles[name] for name in NAMES}
PROMISE = "account physics: at least 1 of 1g.10gb"
PLANNING = f"planning: {{follow: queue, batch_window_s: 0.2, hysteresis_s: 1, guarantees: {{{PROMISE}}}}}\n"
LAYOUT = ("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}", "{1g.10gb: 7}")
# When a part of the stream comes, in seconds, and its jobs: what they ask for, how many, and for how long. Two of the
# four parts have jobs that need a whole GPU. What is promised keeps one of 14 sevenths from the stream.
Part = tuple[float, tuple[tuple[str, int, int], ...]]
STREAM: tuple[Part, ...] = (
    (0.0, (("7g.80gb", 1, 4), ("1g.10gb", 4, 4))),
    (8.0, (("1g.10gb", 9, 4), ("2g.20gb", 2, 4))),
    (15.0, (("7g.80gb", 1, 4), ("3g.40gb", 1, 4))),
    (22.0, (("1g.10gb", 26, 10),)),
)
LONG: tuple[Part, ...] = (
    (0.0, (("7g.80gb", 4, 6), ("1g.10gb", 8, 10))),
    (30.0, (("1g.10gb", 18, 10), ("2g.20gb", 4, 10))),
    (60.0, (("7g.80gb", 3, 6), ("3g.40gb", 4, 6))),
    (90.0, (("1g.10gb", 52, 15),)),
)


@pytest.fixture(scope="module")
def _pair() -> Iterator[Live]:
    """Two nodes with one H100 each."""
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="labs", dir="/run"))
    base.chmod(0o755)
    name = name_of_this_run().replace("e2e", "stream")
    try:
        yield Live(commands.up(LabSpec(name=name, nodes=NODES, gpus=1, products=(PRODUCT,)), base))
    finally:
        commands.down(name, base)


@pytest.fixture
def pair(_pair: Live) -> Iterator[Live]:
    """Every GPU in sevenths, which the guarantee is kept by."""
    ran = _pair.apply(_pair.policy(LAYOUT) + PLANNING)
    assert ran.code == 0, ran.err
    _pair.until(lambda: [one.profile for one in _pair.slices().values()] == ["1g.10gb"] * 14, "it is cut in sevenths")
    yield _pair
    _pair.settle()


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(STREAM, marks=pytest.mark.once),
        pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
    ids=["short", "long"],
)
def test_it_ends_sooner_than_with_any_static_layout_and_no_guarantee_is_broken(
    pair: Live, stream: tuple[Part, ...]
) -> None:
    began = time.time()
    watch = Watch(pair)
    with chaos.beside(watch.run, over=[watch.over]):
        asked, arrays = submit_all(pair, stream, began)
        promised = pair.submit("bob", "--gres=vgpu:1g.10gb", "--account=physics")
        pair.wait_sees("bob", promised)
        assert "PENDING" in pair.state(arrays[-1]).split(), "what is promised was there at once"
        jobs = ",".join(arrays)
        limit_s = 60.0 + 2 * stream[-1][0]
        pair.until(lambda: set(pair.state(jobs).split()) == {"COMPLETED"}, "every job has ended", limit_s=limit_s)
    ended = max(ends(pair, arrays)) - began
    bound = Bound(asked, NAMES)
    soonest, counts = min((bound.end(counts), counts) for counts in every_static(SHAPES, NAMES, NODES))
    print(f"{len(asked)} jobs: {ended:.1f} s; static {soonest:.1f} s at the best, with {told(NAMES, counts)}")
    assert ended < soonest
    record = json.loads(pair.vgpu("history", "--json").out)["entries"]
    recuts = [one for one in record if one["at"] > began and one["what"] == "changed"]
    assert len(recuts) >= 3, "the layout followed each change of the mix"
    kept = [one for one in record if one["guarantee"] and one["at"] > began]
    assert [one for one in kept if one["have"] < one["at_least"]] == []
    assert {one["guarantee"] for one in record if one["guarantee"]} == {PROMISE}, "it was looked after"
    assert watch.drained() == []
    assert watch.too_many == []


def submit_all(live: Live, stream: tuple[Part, ...], began: float) -> tuple[list[Asked], list[str]]:
    """Each part at its moment, or when this machine comes to it."""
    asked: list[Asked] = []
    arrays: list[str] = []
    for at, jobs in stream:
        live.until(lambda: time.time() >= began + at, "its time has come", limit_s=at + 60.0)  # noqa: B023
        for profile, count, lasts in jobs:
            asked += [Asked(at=time.time() - began, profile=profile, lasts=lasts)] * count
            options = (f"--gres=vgpu:{profile}", "--account=art", "--time=2", f"--array=1-{count}")
            arrays.append(live.submit("alice", *options, script=f"sleep {lasts}; date +'ended %s.%N'"))
    return asked, arrays


def ends(live: Live, arrays: list[str]) -> Iterator[float]:
    """Unix seconds, as each job tells them itself."""
    for file in live.home("alice").glob("*.out"):
        if file.name.split("_")[0] in arrays:
            (at,) = re.findall(r"^ended (\S+)$", file.read_text(), re.MULTILINE)
            yield float(at)
