"""Plans against bounds that nothing can beat: the linear program over layouts, and the GPUs that a demand needs."""

import math
import random
from collections import Counter

import pytest

from slurm_plugin.mig.geometry import mask
from slurm_plugin.mig.layouts import counts_of
from slurm_plugin.planner.columns import frame_of, packings
from slurm_plugin.planner.highs import Highs, Matrix
from slurm_plugin.planner.market import market
from slurm_plugin.planner.plan import plan
from slurm_plugin.planner.problem import GpuState, Limits, Line, Problem, wants
from slurm_plugin.planner.program import build, goals_of
from tests.unit.planner.asking import A100, drawn, gpu, layouts_of, line, plain, problem, served

GAP = 0.001
DOUBLE = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


@pytest.mark.parametrize("gpus", [100, 700, 5_000])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_plan_serves_what_the_linear_program_allows(gpus: int, seed: int) -> None:
    rng = random.Random(seed)
    shapes = plain(A100, DOUBLE)
    layouts = layouts_of(shapes)
    states: Counter[GpuState] = Counter(gpu(*drawn(rng, shapes, layouts)) for _ in range(gpus))
    lines = tuple(line(name, rng.randint(gpus // 20, gpus // 2)) for name in shapes)
    asked = Problem(models={"a100": shapes}, states=states, lines=lines, limits=Limits(time_s=60.0))
    rows = market(asked, wants(asked))
    bound = Highs(*build(rows), 60.0).run(goals_of(rows))
    assert bound is not None
    found = plan(asked)
    value = sum(one.want.value * one.count for one in found.served)
    assert bound.reached[0] * (1 - GAP) <= value <= bound.reached[0] * (1 + 1e-9) + 1e-6
    assert found.gap <= GAP


def fewest(demand: dict[str, int]) -> float:
    """GPUs that a demand needs at least: fractions of full layouts that together hold it."""
    shapes = plain(A100, DOUBLE)
    frame = frame_of(shapes)
    matrix, names = Matrix(), sorted(shapes)
    for layout in packings(frame.axis, mask(0, frame.slices), frame.limit):
        counts = counts_of(layout)
        matrix.add([(nth, -counts.get(name, 0)) for nth, name in enumerate(names)], 0.0, 10**6)
    found = Highs(matrix.columns(), [-float(demand.get(name, 0)) for name in names], 10.0).run(
        [[-1.0] * len(matrix.cost)]
    )
    assert found is not None
    return -found.reached[0]


def test_the_bound_on_gpus_is_the_known_one() -> None:
    assert fewest({"7g.40gb": 3}) == pytest.approx(3)
    assert fewest({"1g.10gb": 8}) == pytest.approx(2)
    assert fewest({"3g.20gb": 2, "1g.5gb": 7}) == pytest.approx(1.875)


@pytest.mark.parametrize("seed", range(8))
def test_empty_gpus_hold_a_demand_within_six_of_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    demand = {name: rng.randint(0, 400) for name in DOUBLE}
    gpus = math.ceil(fewest(demand) - 1e-6)
    lines = [Line(name=name, profiles=(name,), count=count) for name, count in demand.items()]
    wanted = {name: count for name, count in demand.items() if count}
    for more in range(6):  # a corner of the bound's program has at most one layout a profile
        found = plan(problem([(gpu(), gpus + more)], *lines, models={"a100": plain(A100, DOUBLE)}))
        if served(found) == wanted:
            return
    raise AssertionError((seed, demand, gpus))


def tiers(seed: int) -> Problem:
    """A few hundred GPUs of which a few may change, for classes that wait in tiers of more and more slices."""
    rng = random.Random(seed)
    shapes = plain()
    names, layouts = list(shapes), layouts_of(shapes)
    states = Counter(gpu(*drawn(rng, shapes, layouts)) for _ in range(400))
    lines = [
        line(f"{name}{tier}", 2**tier, profiles=tuple(names[at : at + rng.randint(1, 3)]), tier=tier)
        for tier in range(8)
        for at, name in rng.sample(list(enumerate(names)), 3)
    ]
    return problem(states.items(), *lines, limits=Limits(changing=24, time_s=60.0), models={"a100": shapes})


@pytest.mark.parametrize("seed", [46, 51])
def test_rounding_misses_nothing_of_a_small_tier(seed: int) -> None:
    assert plan(tiers(seed)).gap <= GAP
