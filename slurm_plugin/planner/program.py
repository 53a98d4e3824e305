"""The integer program over kinds and changes, solved by HiGHS.

How many GPUs change how must be whole, and so must what serves whom. The linear program
comes first, one goal after the other; its corner is whole but for a few kinds, since few rows tie kinds together. Those
few are then solved as integers with the rest as it is. A small pool is solved as integers altogether, which is exact;
so is a large one where that rounding misses more than GAP_MAX of a goal, such as a tier of two slices.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from slurm_plugin.planner.highs import EPSILON, Columns, Found, Highs, Matrix
from slurm_plugin.planner.market import Answer, Kind, Market

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TIERS_MAX = 8  # goals solved one after the other; later tiers share the last, where age alone orders them
DESTROY = 1_024  # an instance destroyed
CHANGE = 64  # a GPU changed at all: more than a whole GPU of better fitting slices is worth
WASTE = 1  # a memory slice more than was asked
REMEMBERED = 16  # matrices: they are the same while the states that there are are
GAP_MAX = 0.001  # of a goal may be missed by rounding; then all of it is solved as integers
WHOLE_GPUS_MAX = 64  # a pool of so many that can change is solved as integers altogether


def solve(market: Market, time_s: float) -> Answer | None:
    """The best answer, or None when the time was over before there was any."""
    goals = goals_of(market)
    solver = Highs(*build(market), time_s)
    best = solver.run(goals)
    if best is None:
        return None
    if (abs(best.columns - best.columns.round()) <= EPSILON).all():
        return _answer(market, best.columns, "best found" if best.cut_short else "exact", float(best.cut_short))
    if sum(market.gpus) <= WHOLE_GPUS_MAX:
        return _whole(market, solver, best, everything=True)
    near = _whole(market, solver, best, everything=False)
    if near is None or near.solver != "rounded" or near.gap <= GAP_MAX:
        return near
    exact = _whole(market, solver, best, everything=True)
    return exact if exact is not None and exact.solver == "exact" else near


def _whole(market: Market, solver: Highs, best: Found, *, everything: bool) -> Answer | None:
    """In whole numbers: `everything`, or only the kinds that the linear program left in fractions."""
    lower, upper = _box(market, best.columns.tolist(), everything=everything)
    solver.restrict(lower, upper, len(lower))
    found = solver.run(goals_of(market))
    if found is None:
        return None
    if best.cut_short or found.cut_short:
        return _answer(market, found.columns, "best found", 1.0)
    gap = next(((a - b) / a for a, b in zip(best.reached, found.reached, strict=True) if a - b > EPSILON * a), 0.0)
    exact = everything or gap == 0.0
    return _answer(market, found.columns, "exact" if exact else "rounded", 0.0 if exact else gap)


def build(market: Market) -> "tuple[Columns, NDArray[np.float64]]":
    """Rows: each kind's GPUs, then each pool's profiles, then each want, then the most that may change."""
    import numpy as np

    counts = [want.count for want in market.wants]
    changing = [] if market.changing is None else [market.changing]
    shape = _shape(market.kinds, tuple(map(len, market.supply)), market.uses, len(counts), len(changing))
    gpus, wanted = np.array(market.gpus, dtype=float), np.array(counts, dtype=float)
    upper = np.concatenate([gpus[shape.kinds], wanted[shape.wants]])
    supply = (slices for pool in market.supply for slices in pool)
    return replace(shape.columns, upper=upper), np.array([*market.gpus, *supply, *counts, *changing], dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The program without its limits."""

    columns: Columns
    kinds: "NDArray[np.intp]"  # whose change each of the first columns is
    wants: "NDArray[np.intp]"  # whom each of the others serves


@lru_cache(maxsize=REMEMBERED)
def _shape(
    kinds: tuple[Kind, ...],
    profiles: tuple[int, ...],
    uses: tuple[tuple[int, int, int, int], ...],
    wants: int,
    changing: int,
) -> _Shape:
    """`profiles`: how many each pool has. `wants` and `changing`: how many of such rows there are."""
    import numpy as np

    matrix = Matrix()
    first = [len(kinds) + sum(profiles[:nth]) for nth in range(len(profiles) + 1)]
    most = [(first[-1] + wants, 1)] if changing else []
    for nth, kind in enumerate(kinds):
        base = first[kind.pool]
        for gain, destroyed in kind.changes:
            entries = [(nth, 1), *((base + p, -more) for p, more in enumerate(gain) if more), *most]
            matrix.add(entries, -CHANGE - DESTROY * destroyed, 0)
    for want, pool, profile, waste in uses:
        matrix.add([(first[pool] + profile, 1), (first[-1] + want, 1)], -WASTE * waste, 0)
    return _Shape(
        columns=matrix.columns(),
        kinds=np.array([nth for nth, kind in enumerate(kinds) for _ in kind.changes], dtype=np.intp),
        wants=np.array([want for want, *_ in uses], dtype=np.intp),
    )


def goals_of(market: Market) -> "list[NDArray[np.float64]]":
    """By tier, what each column is worth."""
    import numpy as np

    tiers = sorted({want.tier for want in market.wants})
    level = {tier: min(nth, TIERS_MAX - 1) for nth, tier in enumerate(tiers)}
    changes = sum(len(kind.changes) for kind in market.kinds)
    goals = [np.zeros(changes + len(market.uses)) for _ in range(max(level.values(), default=0) + 1)]
    for nth, (want, *_) in enumerate(market.uses):
        goals[level[market.wants[want].tier]][changes + nth] = float(market.wants[want].value)
    return goals


def _box(market: Market, columns: list[float], *, everything: bool) -> tuple[list[float], list[float]]:
    """Bounds of the integer program: whole kinds stay as they are, those that are not may round as they like."""
    lower: list[float] = []
    upper: list[float] = []
    nth = 0
    for kind, gpus in zip(market.kinds, market.gpus, strict=True):
        some = columns[nth : nth + len(kind.changes)]
        nth += len(kind.changes)
        if everything:
            floor, left = [0] * len(some), gpus
        else:
            floor = [int(value + EPSILON) for value in some]
            left = gpus - sum(floor) if any(abs(v - round(v)) > EPSILON for v in some) else 0
        lower += floor
        upper += [value + left for value in floor]
    return lower, upper


def _answer(market: Market, columns: "NDArray[np.float64]", solver: str, gap: float) -> Answer:
    whole = columns.round().astype(int).tolist()
    changed: list[tuple[int, ...]] = []
    nth = 0
    for kind in market.kinds:
        changed.append(tuple(whole[nth : nth + len(kind.changes)]))
        nth += len(kind.changes)
    served = {
        (want, pool, profile): count
        for (want, pool, profile, _), count in zip(market.uses, whole[nth:], strict=True)
        if count
    }
    return Answer(changed=tuple(changed), served=served, solver=solver, gap=gap)
