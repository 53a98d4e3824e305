"""What is counted as it changes is what counting all anew would say."""

import random
from collections import Counter

import pytest

from slurm_plugin.planner.census import EMPTY_MAX, Census
from slurm_plugin.planner.plan import plan
from slurm_plugin.planner.problem import GpuState
from tests.unit.planner.asking import A100, drawn, gpu, layouts_of, line, plain, problem

LAYOUTS = layouts_of(plain())


def state(rng: random.Random, place: str = "") -> GpuState:
    return gpu(*drawn(rng, plain(), LAYOUTS), place=place)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_right_after_every_change(seed: int) -> None:
    rng = random.Random(seed)
    census, nodes = Census(), dict[str, list[GpuState]]()
    for _ in range(300):
        name = f"n{rng.randrange(12)}"
        if rng.random() < 0.1:
            nodes.pop(name, None)
            census.keep(nodes.keys())
        else:
            nodes[name] = [state(rng, rng.choice("ab")) for _ in range(rng.randrange(4))]
            census.put(name, nodes[name])
        anew = Counter(one for gpus in nodes.values() for one in gpus)
        states = census.states()
        assert +Counter(states) == anew
        assert {(one.place, one.model) for one in states} == {(one.place, one.model) for one in anew}
        assert len(states) <= 2 * len(anew) + EMPTY_MAX
        assert census.of(name) == tuple(nodes.get(name, ()))


def test_what_it_gave_does_not_change_afterwards() -> None:
    census = Census()
    census.put("n1", [gpu()])
    before = census.states()
    census.put("n1", [gpu(idle=(("7g.40gb", 0),))])
    assert before == {gpu(): 1}


@pytest.mark.parametrize("seed", range(5))
def test_states_that_nobody_is_in_make_no_difference(seed: int) -> None:
    rng = random.Random(seed)
    states = Counter(state(rng) for _ in range(30))
    asked = problem(states.items(), line("3g.20gb", 6), line("1g.5gb", 20), models={"a100": A100})
    empty = [(one, 0) for one in (state(rng) for _ in range(40)) if one not in states]
    mixed = problem(
        rng.sample([*states.items(), *empty], len(states) + len(empty)), *asked.lines, models={"a100": A100}
    )
    assert plan(mixed) == plan(asked)
