"""The problem as the solvers see it: pools of slices, and kinds of GPUs that offer the same changes.

A pool is one model in one place; a want may use some pools. GPUs whose changes supply and destroy the same are of one
*kind*, whatever their layouts: a cluster of any size has a few hundred kinds, and the program has as many rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_plugin.planner.columns import Column, columns, frame_of
from slurm_plugin.planner.problem import GpuState, Problem, Want

Change = tuple[tuple[int, ...], int]  # idle slices gained of each wanted profile, instances destroyed


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    place: str
    model: str
    profiles: tuple[str, ...]  # those that serve anybody


@dataclass(slots=True, kw_only=True)
class Kind:
    pool: int
    changes: tuple[Change, ...]
    count: int = 0
    members: list[tuple[GpuState, int, tuple[Column, ...]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    wants: tuple[Want, ...]
    pools: tuple[Pool, ...]
    supply: tuple[tuple[int, ...], ...]  # idle now, by pool and profile
    kinds: tuple[Kind, ...]
    uses: tuple[tuple[int, int, int, int], ...]  # want, pool, profile, how much of a better one is wasted
    changing: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a solver found: how many GPUs of each kind change how, and what of each pool serves each want."""

    changed: tuple[tuple[int, ...], ...]  # by kind and change
    served: Mapping[tuple[int, int, int], int]  # want, pool, profile -> slices
    solver: str
    gap: float = 0.0  # at most this share of what could be served best is missed

    def of_want(self, want: int) -> int:
        return sum(count for (nth, _, _), count in self.served.items() if nth == want)


def market(problem: Problem, wanted: tuple[Want, ...]) -> Market:
    serving = {name for want in wanted for name in want.profiles}
    profiles = {m: tuple(sorted(serving & shapes.keys())) for m, shapes in problem.models.items()}
    frames = {m: frame_of(shapes) for m, shapes in problem.models.items()}
    nth_of = {key: nth for nth, key in enumerate(sorted({(s.place, s.model) for s in problem.states}))}
    supply = [[0] * len(profiles[model]) for _, model in nth_of]
    kinds: dict[tuple[int, tuple[Change, ...]], Kind] = {}
    for state, count in problem.states.items():
        pool = nth_of[state.place, state.model]
        names = profiles[state.model]
        for name, _ in state.idle:
            if name in serving:
                supply[pool][names.index(name)] += count
        found = columns(frames[state.model], state, names) if state.open else ()
        if found:
            changes = tuple((column.gain, column.destroyed) for column in found)
            kind = kinds.setdefault((pool, changes), Kind(pool=pool, changes=changes))
            kind.count += count
            kind.members.append((state, count, found))
    pools = tuple(Pool(place=place, model=model, profiles=profiles[model]) for place, model in nth_of)
    return Market(
        wants=wanted,
        pools=pools,
        supply=tuple(map(tuple, supply)),
        kinds=tuple(kinds[key] for key in sorted(kinds)),
        uses=tuple(_uses(problem, wanted, pools)),
        changing=problem.limits.changing,
    )


def _uses(problem: Problem, wanted: Sequence[Want], pools: Sequence[Pool]) -> list[tuple[int, int, int, int]]:
    found = []
    for nth, want in enumerate(wanted):
        for at, pool in enumerate(pools):
            if want.places is not None and pool.place not in want.places:
                continue
            shapes = problem.models[pool.model]
            able = [name for name in want.profiles if name in shapes]
            found += [
                (nth, at, pool.profiles.index(name), shapes[name].size - min(shapes[n].size for n in able))
                for name in able
            ]
    return found


def secured(asked: Market, now: Answer) -> Market:
    """The same market, where what guarantees have now comes before all else, so that none has less afterwards."""
    rows: list[tuple[int, Want]] = []
    for nth, want in enumerate(asked.wants):
        have = now.of_want(nth) if want.promise else 0
        if have:
            rows.append((nth, replace(want, count=have, tier=want.tier - 1)))
        if want.count > have:
            rows.append((nth, replace(want, count=want.count - have)))
    wanted = tuple(want for _, want in rows)
    uses = tuple(
        (at, pool, profile, waste)
        for at, (nth, _) in enumerate(rows)
        for want, pool, profile, waste in asked.uses
        if want == nth
    )
    return replace(asked, wants=wanted, uses=uses)


def unchanged(market: Market) -> tuple[tuple[int, ...], ...]:
    return tuple((0,) * len(kind.changes) for kind in market.kinds)
