"""What holds of every plan, whatever it is asked."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.mig.layouts import conflict
from slurm_plugin.planner.plan import Plan, plan
from slurm_plugin.planner.problem import GpuState, Guarantee, Limits, Line, Problem, wants
from tests.unit.planner.asking import A30, A100, after, drawn, layouts_of

MODELS = {"a100": A100, "a30": A30}
LAYOUTS = {model: layouts_of(shapes) for model, shapes in MODELS.items()}
CLASSES = {
    "5gb": ("1g.5gb", "1g.6gb", "1g.10gb", "2g.10gb", "2g.12gb"),
    "10gb": ("1g.10gb", "2g.10gb", "2g.12gb", "3g.20gb", "4g.20gb"),
    "1g.5gb+me": ("1g.5gb+me",),
    "2g.10gb": ("2g.10gb",),
    "20gb": ("3g.20gb", "4g.20gb", "4g.24gb", "7g.40gb"),
    "7g.40gb": ("7g.40gb",),
}
PLACES = ("east", "west")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rng = random.Random(draw(st.integers(0, 2**32)))
    states: Counter[GpuState] = Counter()
    for _ in range(draw(st.integers(1, 12))):
        model = rng.choice(sorted(MODELS))
        fixed, idle = drawn(rng, MODELS[model], LAYOUTS[model], busy=rng.choice((0.2, 0.6)))
        default = (("1g.5gb", 3), ("3g.20gb", 1)) if model == "a100" and rng.random() < 0.5 else ()
        state = GpuState(
            model=model, place=rng.choice(PLACES), fixed=fixed, idle=idle, default=default, open=rng.random() < 0.9
        )
        states[state] += rng.randint(1, 30)
    lines = tuple(_line(rng) for _ in range(draw(st.integers(0, 6))))
    promises = tuple(_promise(rng, nth) for nth in range(draw(st.integers(0, 2))))
    limits = Limits(time_s=60.0, changing=rng.choice((None, 1, 7)), restore=rng.random() < 0.3)
    return Problem(models=MODELS, states=states, lines=lines, guarantees=promises, limits=limits)


def _line(rng: random.Random) -> Line:
    name = rng.choice(sorted(CLASSES))
    places = rng.choice((None, frozenset({"east"}), frozenset(PLACES)))
    return Line(
        name=name,
        profiles=CLASSES[name],
        count=rng.randint(1, 60),
        tier=rng.randint(0, 3),
        age_s=float(rng.randint(0, 100)),
        places=places,
        account=rng.choice(("a", "b")),
    )


def _promise(rng: random.Random, nth: int) -> Guarantee:
    name = rng.choice(sorted(CLASSES))
    idle = rng.random() < 0.5
    return Guarantee(
        name=f"promise {nth}",
        gres_class=name,
        profiles=CLASSES[name],
        at_least=rng.randint(1, 20),
        held=0 if idle else rng.randint(0, 5),
        idle=idle,
        account="" if idle else rng.choice(("", "a")),
    )


def kept(found: Plan) -> Counter[str]:
    """Slices that guarantees have."""
    counts: Counter[str] = Counter()
    for one in found.served:
        if one.want.promise:
            counts[one.want.promise.name] += one.count
    return counts


def worth(found: Plan) -> tuple[int, ...]:
    """Value served, guarantees first, then tier after tier."""
    served = [(max(-1, one.want.tier), one.want.value * one.count) for one in found.served]
    return tuple(sum(value for tier, value in served if tier == at) for at in (-1, 0, 1, 2, 3))


@given(problems())
@settings(deadline=None, max_examples=40)
def test_every_layout_is_possible_and_nothing_fixed_moves(asked: Problem) -> None:
    found = plan(asked)
    states = after(found, asked)
    assert sum(states.values()) == sum(asked.states.values())
    held = Counter[object]()
    for state, count in asked.states.items():
        held[state.model, state.place, state.fixed] += count
    for state, count in states.items():
        held[state.model, state.place, state.fixed] -= count
        assert conflict(MODELS[state.model], (*state.fixed, *state.idle)) is None
    assert not any(held.values())
    assert all(step.state.open and (step.destroy or step.create) and step.why for step in found.steps)
    if asked.limits.changing is not None:
        assert sum(step.gpus for step in found.steps) <= asked.limits.changing


@given(problems())
@settings(deadline=None, max_examples=40)
def test_what_is_served_is_there_afterwards(asked: Problem) -> None:
    found = plan(asked)
    supply: Counter[tuple[str, str, str]] = Counter()
    for state, count in after(found, asked).items():
        for name, _ in state.idle:
            supply[state.place, state.model, name] += count
    for one in found.served:
        supply[one.place, one.model, one.profile] -= one.count
        assert one.profile in one.want.profiles
        assert one.want.places is None or one.place in one.want.places
    assert all(count >= 0 for count in supply.values())
    short = sum(left.count for left in found.unserved)
    assert sum(one.count for one in found.served) + short == sum(want.count for want in wants(asked))


@given(problems(), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_the_order_of_the_question_does_not_matter(asked: Problem, seed: int) -> None:
    rng = random.Random(seed)
    states = list(asked.states.items())
    lines, promises = list(asked.lines), list(asked.guarantees)
    rng.shuffle(states)
    rng.shuffle(lines)
    rng.shuffle(promises)
    turned = replace(asked, states=dict(states), lines=tuple(lines), guarantees=tuple(promises))
    assert plan(turned) == plan(asked)


@given(problems())
@settings(deadline=None, max_examples=40)
def test_no_guarantee_has_less_and_nothing_changes_without_a_gain(asked: Problem) -> None:
    asked = replace(asked, limits=replace(asked.limits, restore=False))
    found, now = plan(asked), plan(replace(asked, limits=replace(asked.limits, changing=0)))
    assert kept(found) >= kept(now)
    if found.steps:
        assert worth(found) > worth(now)


@given(problems())
@settings(deadline=None, max_examples=40)
def test_once_carried_out_it_has_nothing_more_to_do(asked: Problem) -> None:
    asked = replace(asked, limits=replace(asked.limits, changing=None, restore=False))
    found = plan(asked)
    again = plan(replace(asked, states=after(found, asked)))
    assert not again.steps or "rounded" in (found.solver, again.solver)


@given(problems())
@settings(deadline=None, max_examples=40)
def test_going_back_to_the_default_ends(asked: Problem) -> None:
    asked = replace(asked, lines=(), guarantees=(), limits=Limits(restore=True))
    found = plan(asked)
    again = replace(asked, states=after(found, asked))
    assert not plan(again).steps
    for state in again.states:
        if state.open and not state.fixed and state.default:
            assert Counter(name for name, _ in state.idle) == dict(state.default)


@given(problems())
@settings(deadline=None, max_examples=40)
def test_what_waits_behind_changes_nothing_for_what_waits_in_front(asked: Problem) -> None:
    front = replace(asked, lines=tuple(line for line in asked.lines if line.tier < 2))

    both, alone = plan(asked), plan(front)
    if {both.solver, alone.solver} <= {"none", "fast", "exact"}:
        assert worth(both)[:3] == worth(alone)[:3]


@given(problems(), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_bundles_are_served_whole_or_not_at_all(asked: Problem, seed: int) -> None:
    rng = random.Random(seed)
    lines = (replace(one, bundle=rng.choice(("", "a", "b", "c"))) for one in asked.lines)
    asked = replace(asked, lines=tuple(dict.fromkeys(lines)))
    found = plan(asked)
    after(found, asked)
    for bundle in {one.bundle for one in asked.lines if one.bundle}:
        wanted = sum(one.count for one in asked.lines if one.bundle == bundle)
        had = sum(one.count for one in found.served if one.want.line and one.want.line.bundle == bundle)
        left = sum(one.count for one in found.unserved if one.want.line and one.want.line.bundle == bundle)
        assert (had, left) in ((wanted, 0), (0, wanted))
