"""The problem as the solvers see it: pools of slices, and kinds of GPUs that offer the same changes.

A pool is one model in one place; a want may use some pools. GPUs whose changes supply and destroy the same are of one
*kind*, whatever their layouts: a cluster of any size has a few hundred kinds, and the program has as many rows.

Between two plans the numbers change and the states that there are hardly do. So all that does not depend on numbers is
remembered, and a market costs one addition a state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter

from slurm_plugin.planner.columns import Column, Frame, columns, frame_of
from slurm_plugin.planner.problem import GpuState, Problem, Want

REMEMBERED = 16  # sets of states with what they offer

Change = tuple[tuple[int, ...], int]  # idle slices gained of each wanted profile, instances destroyed
Member = tuple[int, GpuState, tuple[Column, ...]]  # its turn among all states


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    place: str
    model: str
    frame: Frame
    profiles: tuple[str, ...]  # those that serve anybody


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    pool: int
    changes: tuple[Change, ...]
    members: tuple[Member, ...] = ()  # in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    wants: tuple[Want, ...]
    pools: tuple[Pool, ...]
    supply: tuple[tuple[int, ...], ...]  # idle now, by pool and profile
    kinds: tuple[Kind, ...]
    gpus: tuple[int, ...]  # of each kind
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stalls:
    """A market without its numbers. States that supply the same and are of one kind are a group."""

    pools: tuple[Pool, ...]
    kinds: tuple[Kind, ...]
    group_of: tuple[int, ...]  # by state
    groups: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]  # kind (-1: none), pool, (profile, idle slices)


def market(problem: Problem, wanted: tuple[Want, ...]) -> Market:
    serving = frozenset(name for want in wanted for name in want.profiles)
    frames = tuple(sorted((model, frame_of(shapes)) for model, shapes in problem.models.items()))
    stalls = _stalls(tuple(problem.states), frames, serving)
    totals = [0] * len(stalls.groups)
    for group, count in zip(stalls.group_of, problem.states.values(), strict=True):
        totals[group] += count
    gpus = [0] * len(stalls.kinds)
    supply = [[0] * len(pool.profiles) for pool in stalls.pools]
    for (kind, pool, idle), count in zip(stalls.groups, totals, strict=True):
        for nth, slices in idle:
            supply[pool][nth] += slices * count
        if kind >= 0:
            gpus[kind] += count
    return Market(
        wants=wanted,
        pools=stalls.pools,
        supply=tuple(map(tuple, supply)),
        kinds=stalls.kinds,
        gpus=tuple(gpus),
        uses=tuple(_uses(wanted, stalls.pools)),
        changing=problem.limits.changing,
    )


@lru_cache(maxsize=REMEMBERED)
def _stalls(states: tuple[GpuState, ...], frames: tuple[tuple[str, Frame], ...], serving: frozenset[str]) -> _Stalls:
    pool_of = {key: nth for nth, key in enumerate(sorted({(s.place, s.model) for s in states}))}
    frame_by = dict(frames)
    pools = tuple(
        Pool(place=place, model=model, frame=frame, profiles=tuple(sorted(serving & frame.shapes.keys())))
        for place, model in pool_of
        for frame in (frame_by[model],)
    )
    turns = {state: nth for nth, state in enumerate(sorted(states, key=lambda state: state.order))}
    members: dict[tuple[int, tuple[Change, ...]], list[Member]] = {}
    offers: list[tuple[int, tuple[tuple[int, int], ...], tuple[Change, ...]]] = []
    for state in states:
        nth = pool_of[state.place, state.model]
        names = [name for name, _ in state.idle]
        found = columns(pools[nth].frame, state, pools[nth].profiles) if state.open else ()
        changes = tuple((column.gain, column.destroyed) for column in found)
        if changes:
            members.setdefault((nth, changes), []).append((turns[state], state, found))
        idle = ((p, names.count(name)) for p, name in enumerate(pools[nth].profiles) if name in names)
        offers.append((nth, tuple(idle), changes))
    kind_of = {key: nth for nth, key in enumerate(sorted(members))}
    kinds = tuple(
        Kind(pool=key[0], changes=key[1], members=tuple(sorted(members[key], key=itemgetter(0)))) for key in kind_of
    )
    groups: dict[tuple[int, int, tuple[tuple[int, int], ...]], int] = {}
    group_of = tuple(
        groups.setdefault((kind_of.get((pool, changes), -1), pool, idle), len(groups)) for pool, idle, changes in offers
    )
    return _Stalls(pools=pools, kinds=kinds, group_of=group_of, groups=tuple(groups))


def _uses(wanted: Sequence[Want], pools: Sequence[Pool]) -> list[tuple[int, int, int, int]]:
    found = []
    for nth, want in enumerate(wanted):
        for at, pool in enumerate(pools):
            if want.places is not None and pool.place not in want.places:
                continue
            shapes = pool.frame.shapes
            able = [name for name in want.profiles if name in shapes]
            least = min((shapes[name].size for name in able), default=0)
            found += [(nth, at, pool.profiles.index(name), shapes[name].size - least) for name in able]
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


@lru_cache(maxsize=REMEMBERED)
def unchanged(kinds: tuple[Kind, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple((0,) * len(kind.changes) for kind in kinds)
