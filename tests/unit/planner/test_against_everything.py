"""Up to three GPUs: the plan is as good as the best of everything that could be done, tried one by one."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import pytest

from slurm_plugin.mig.geometry import Shapes
from slurm_plugin.mig.layouts import counts_of
from slurm_plugin.planner.plan import plan, score
from slurm_plugin.planner.problem import GpuState, Guarantee, Line, Problem, Want, wants
from tests.unit.planner.asking import A30, A100, destroyed, drawn, gpu, layouts_of, plain, problem

Counts = tuple[tuple[str, int], ...]
A30_PLAIN = ("1g.6gb", "2g.12gb", "4g.24gb")
BIG = ("2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def best_of_all(asked: Problem, shapes: Shapes) -> tuple[int, ...]:
    """The best score, as `plan.score` counts: value served tier after tier, then how little is destroyed."""
    rows = wants(asked)
    gpus = [state for state, count in asked.states.items() for _ in range(count)]
    ways = [_ways(shapes, state) for state in gpus]
    best: tuple[int, ...] = ()
    seen: dict[Counts, int] = {}
    for choice in product(*ways):
        supply: dict[str, int] = {}
        for counts, _ in choice:
            for name, count in counts:
                supply[name] = supply.get(name, 0) + count
        lost = -sum(gone for _, gone in choice)
        key = tuple(sorted(supply.items()))
        seen[key] = max(seen.get(key, lost), lost)
    for key, lost in seen.items():
        best = max(best, (*_transport(rows, key), lost))
    return best


def _ways(shapes: Shapes, state: GpuState) -> list[tuple[Counts, int]]:
    found: dict[Counts, int] = {}
    for layout in layouts_of(shapes):
        if set(state.fixed) <= set(layout):
            rest = [one for one in layout if one not in state.fixed]
            counts = tuple(sorted(counts_of(rest).items()))
            gone = sum(one not in rest for one in state.idle)
            found[counts] = min(found.get(counts, gone), gone)
    return list(found.items())


def _transport(rows: Sequence[Want], supply: Counts) -> tuple[int, ...]:
    tiers = sorted({row.tier for row in rows})

    @cache
    def serve(nth: int, left: Counts) -> tuple[int, ...]:
        if nth == len(rows):
            return (0,) * len(tiers)
        return max(
            tuple(v + (rows[nth].value * taken if tiers[t] == rows[nth].tier else 0) for t, v in enumerate(later))
            for taken, rest in _takings(rows[nth], left)
            for later in [serve(nth + 1, rest)]
        )

    return serve(0, supply)


def _takings(row: Want, left: Counts) -> Iterator[tuple[int, Counts]]:
    able = [(name, count) for name, count in left if name in row.profiles]
    for takes in product(*(range(count + 1) for _, count in able)):
        if sum(takes) <= row.count:
            taken = {name: n for (name, _), n in zip(able, takes, strict=True)}
            yield sum(takes), tuple((name, count - taken.get(name, 0)) for name, count in left)


def _drawn_lines(rng: random.Random, names: Sequence[str]) -> Iterator[Line]:
    for nth in range(rng.randint(1, 3)):
        first = rng.randrange(len(names))
        serving = names[first : first + rng.randint(1, 2)]
        tier, age_s = rng.randint(0, 1), float(rng.randint(0, 90))
        yield Line(name=f"class{nth}", profiles=tuple(serving), count=rng.randint(1, 5), tier=tier, age_s=age_s)


def _check(seed: int, shapes: Shapes, gpus: int) -> None:
    rng = random.Random(seed)
    layouts = layouts_of(shapes)
    states = []
    for _ in range(gpus):
        fixed, idle = drawn(rng, shapes, layouts, busy=0.3)
        states.append(gpu(fixed, idle))
    names = sorted(shapes, key=lambda name: shapes[name].size)
    promises = [
        Guarantee(name="g", gres_class="g", profiles=(rng.choice(names),), at_least=rng.randint(1, 2), idle=True)
        for _ in range(rng.randint(0, 1))
    ]
    asked = problem(states, *_drawn_lines(rng, names), guarantees=promises, models={"a100": shapes})
    found = plan(asked)
    tiers = sorted({row.tier for row in wants(asked)})
    worth = [
        sum(one.want.value * one.count for one in found.served if max(-1, one.want.tier) == tier) for tier in tiers
    ]
    assert (*worth, -destroyed(found)) == best_of_all(asked, shapes), (seed, found)


@pytest.mark.parametrize("seed", range(60))
def test_two_gpus_of_an_a100(seed: int) -> None:
    _check(seed, plain(A100, BIG), 2)


@pytest.mark.parametrize("seed", range(60))
def test_three_gpus_of_an_a30(seed: int) -> None:
    _check(1000 + seed, plain(A30, A30_PLAIN), 3)


@pytest.mark.parametrize("seed", range(40))
def test_one_gpu_with_every_small_profile(seed: int) -> None:
    _check(2000 + seed, plain(), 1)


def test_a_score_puts_tiers_first_and_destroyed_last() -> None:
    from slurm_plugin.planner.greedy import greedy, stay
    from slurm_plugin.planner.market import market

    asked = problem([gpu(idle=(("7g.40gb", 0),))], Line(name="c", profiles=("3g.20gb",), count=1))
    rows = market(asked, wants(asked))
    assert score(rows, greedy(rows)) > score(rows, stay(rows))
