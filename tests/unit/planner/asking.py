"""Small problems, and what their plans come to. Shared by the planner's tests."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from slurm_plugin.mig.geometry import Layout, Shapes
from slurm_plugin.mig.layouts import all_layouts
from slurm_plugin.mig.products import product_named
from slurm_plugin.planner.plan import Plan
from slurm_plugin.planner.problem import GpuState, Guarantee, Limits, Line, Problem

A100 = product_named("a100-40gb").profiles
A30 = product_named("a30").profiles
PLAIN = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")  # without 1g of double memory and media profiles


def plain(shapes: Shapes = A100, names: Iterable[str] = PLAIN) -> Shapes:
    return {name: shapes[name] for name in names}


def problem(
    states: Iterable[tuple[GpuState, int]] | Iterable[GpuState],
    *lines: Line,
    guarantees: Sequence[Guarantee] = (),
    limits: Limits | None = None,
    models: dict[str, Shapes] | None = None,
) -> Problem:
    counted: Counter[GpuState] = Counter()
    for one in states:
        state, count = one if isinstance(one, tuple) else (one, 1)
        counted[state] += count
    return Problem(
        models=models or {"a100": A100},
        states=counted,
        lines=lines,
        guarantees=tuple(guarantees),
        limits=limits or Limits(time_s=30.0),
    )


def gpu(fixed: Layout = (), idle: Layout = (), *, model: str = "a100", **more: Any) -> GpuState:
    return GpuState(model=model, fixed=fixed, idle=idle, **more)


def line(name: str, count: int, *, profiles: tuple[str, ...] = (), **more: Any) -> Line:
    """Of a profile, where nothing else serves it."""
    return Line(name=name, profiles=profiles or (name,), count=count, **more)


def drawn(rng: random.Random, shapes: Shapes, layouts: Sequence[Layout], busy: float = 0.6) -> tuple[Layout, Layout]:
    """A layout's fixed and idle part, each instance busy with this chance."""
    layout = rng.choice(layouts)
    fixed = tuple(one for one in layout if rng.random() < busy)
    return fixed, tuple(one for one in layout if one not in fixed)


def layouts_of(shapes: Shapes) -> list[Layout]:
    return [(), *all_layouts(shapes)]


def after(found: Plan, asked: Problem) -> Counter[GpuState]:
    """The states once the plan is carried out, as the agents would: destroy, then create."""
    states = Counter(asked.states)
    for step in found.steps:
        assert 0 < step.gpus <= states[step.state]
        assert set(step.destroy) <= set(step.state.idle)
        idle = tuple(sorted({*step.state.idle} - {*step.destroy} | {*step.create}, key=lambda placed: placed[1]))
        states[step.state] -= step.gpus
        s = step.state
        states[
            GpuState(
                model=s.model,
                place=s.place,
                fixed=s.fixed,
                idle=idle,
                blocked=s.blocked,
                default=s.default,
                open=s.open,
            )
        ] += step.gpus
    return +states


def served(found: Plan) -> Counter[str]:
    """Slices served, by class or by the guarantee's name."""
    counts: Counter[str] = Counter()
    for one in found.served:
        asked = one.want.line or one.want.promise
        assert asked is not None
        counts[asked.name] += one.count
    return counts


def destroyed(found: Plan) -> int:
    return sum(step.gpus * len(step.destroy) for step in found.steps)
