"""From the question to the plan: what changes, what serves whom then, and what still waits, each with its reason."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from slurm_plugin.mig.geometry import Layout
from slurm_plugin.planner.greedy import greedy, stay
from slurm_plugin.planner.market import Answer, Market, market, secured
from slurm_plugin.planner.problem import GpuState, Line, Problem, Want, line_order, wants
from slurm_plugin.planner.program import solve
from slurm_plugin.planner.restore import restored
from slurm_plugin.planner.trim import Move, trimmed
from slurm_plugin.planner.why import Reasons, Unserved, unserved

TRIES_MAX = 4  # plans that are made to find out which bundles can be had


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """So many GPUs of one state change alike: destroy first, then create. Layouts ascend by start."""

    state: GpuState
    gpus: int
    destroy: Layout
    create: Layout
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Slices of one pool that serve one want once the steps are done. Without a line they stay idle for its promise."""

    want: Want
    place: str
    model: str
    profile: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    steps: tuple[Step, ...] = ()
    served: tuple[Served, ...] = ()
    unserved: tuple[Unserved, ...] = ()
    why: str = ""  # in one sentence, for the whole
    solver: str = "none"  # none, fast, exact, rounded (within `gap`), best found (time is over), heuristic
    gap: float = 0.0  # at most this share of what could be served best is missed


_SHORT = {
    "best found": "; the best that was found in time",
    "heuristic": "; by a rule of thumb, no plan was found in time",
}

Solver = Callable[[Market, float], Answer | None]


def plan(problem: Problem, solver: Solver = solve) -> Plan:
    """What to re-cut, or why nothing. Equal problems give equal plans, in whatever order they are written.

    A plan serves more than what is there now, the most important first, or it changes nothing (but see
    `Limits.restore`). Nothing fixed is touched, and no guarantee gets less than it has. Bundles that can't be had whole
    are left out: the last one in turn, then another one, then all that can't, and then all that there are.
    """
    found, lines = _plan(problem, solver), problem.lines
    for left in reversed(range(TRIES_MAX)):
        broken = _broken(found)
        if not broken:
            break
        out = broken[-1:] if left > 1 else broken if left else [line.bundle for line in lines if line.bundle]
        lines = tuple(line for line in lines if line.bundle not in out)
        found = _plan(replace(problem, lines=lines), solver)
    if len(lines) < len(problem.lines):
        found = replace(found, unserved=(*found.unserved, *_left_out(problem, lines)))
    return found


def _broken(found: Plan) -> list[str]:
    """Bundles that are served in part, as they come in turn. One that is not served at all costs nobody anything."""
    had = {one.want.line.bundle for one in found.served if one.want.line is not None} - {""}
    lines = {one.want.line for one in found.unserved if one.want.line is not None and one.want.line.bundle in had}
    return list(dict.fromkeys(line.bundle for line in sorted(lines, key=line_order)))


def _left_out(problem: Problem, lines: tuple[Line, ...]) -> list[Unserved]:
    out = replace(problem, lines=tuple(line for line in problem.lines if line not in lines), guarantees=())
    why = "its slices can't be had all together now, and some of them start nothing"
    return [Unserved(want=want, count=want.count, why=why) for want in wants(out)]


def _plan(problem: Problem, solver: Solver) -> Plan:
    wanted = wants(problem)
    asked = market(problem, wanted)
    now = stay(asked)
    if problem.guarantees and not _complete(asked, now):
        asked = secured(asked, _held(problem, asked, now, solver))
        now = stay(asked)
    answer = _answer(problem, asked, now, solver)
    moves = trimmed(problem, asked, answer)
    if not moves and problem.limits.restore and _complete(asked, now):
        moves, answer = restored(problem, asked, now)
        steps = tuple(_step(move, "nobody waits for what it holds: back to the default of its group") for move in moves)
    else:
        reasons = Reasons.of(asked, answer)
        steps = tuple(_step(move, reasons.of_move(move)) for move in moves)
    left = unserved(problem, asked, answer)
    return Plan(
        steps=steps,
        served=tuple(_served(asked, answer)),
        unserved=left,
        why=_why(asked, steps, left) + _SHORT.get(answer.solver, ""),
        solver=answer.solver,
        gap=answer.gap,
    )


def _held(problem: Problem, asked: Market, now: Answer, solver: Solver) -> Answer:
    """What guarantees have now. Where two can use the same slices the first in turn may have taken what only the other
    can use: that is no more its own than it was before the plan that made room for both.
    """
    promised = [(pool, profile) for want, pool, profile, _ in asked.uses if asked.wants[want].promise]
    if len(promised) == len(set(promised)):
        return now
    best = solver(replace(asked, changing=0), problem.limits.time_s)
    return now if best is None else max(now, best, key=lambda answer: score(asked, answer))


def _answer(problem: Problem, asked: Market, now: Answer, solver: Solver) -> Answer:
    if _complete(asked, now) or not any(kind.changes for kind in asked.kinds):
        return now
    found = fast(asked, now) or solver(asked, problem.limits.time_s) or greedy(asked)
    if found.solver in ("exact", "fast"):
        return found
    # One that is not the best may be worse than the simple one, or than nothing.
    return max((now, greedy(asked), found), key=lambda answer: score(asked, answer))


def fast(asked: Market, now: Answer) -> Answer | None:
    """The answer when one class alone waits, one profile serves it, and one slice is all that lacks.

    Nothing can be had by serving anybody from elsewhere then, so that the cheapest change is the best one.
    """
    if len(asked.uses) != 1 or len(asked.wants) != 1 or asked.wants[0].count - now.of_want(0) != 1:
        return None
    found = greedy(asked)
    return Answer(changed=found.changed, served=found.served, solver="fast") if _complete(asked, found) else None


def score(asked: Market, answer: Answer) -> tuple[int, ...]:
    """How good an answer is, tier after tier; then how little it destroys. The greater the better."""
    tiers = sorted({want.tier for want in asked.wants})
    worth = dict.fromkeys(tiers, 0)
    for (want, _, _), count in answer.served.items():
        worth[asked.wants[want].tier] += asked.wants[want].value * count
    destroyed = sum(
        count * destroyed
        for kind, row in zip(asked.kinds, answer.changed, strict=True)
        for (_, destroyed), count in zip(kind.changes, row, strict=True)
    )
    return (*(worth[tier] for tier in tiers), -destroyed, -sum(map(sum, answer.changed)))


def _complete(asked: Market, answer: Answer) -> bool:
    return all(answer.of_want(nth) == want.count for nth, want in enumerate(asked.wants))


def _step(move: Move, why: str) -> Step:
    made = move.made
    return Step(state=move.state, gpus=move.gpus, destroy=made.destroy, create=made.create, why=why)


def _served(asked: Market, answer: Answer) -> list[Served]:
    return [
        Served(
            want=asked.wants[want],
            place=asked.pools[pool].place,
            model=asked.pools[pool].model,
            profile=asked.pools[pool].profiles[profile],
            count=count,
        )
        for (want, pool, profile), count in sorted(answer.served.items())
    ]


def _why(asked: Market, steps: tuple[Step, ...], left: tuple[Unserved, ...]) -> str:
    if steps:
        gpus = sum(step.gpus for step in steps)
        gone = sum(step.gpus * len(step.destroy) for step in steps)
        return f"so that more is served, GPUs that change: {gpus}, idle slices that go: {gone}"
    if not asked.wants:
        return "nothing waits and nothing is promised"
    if not left:
        return "what is idle serves all that waits and all that is promised"
    return "no change would serve more than what is idle now"
