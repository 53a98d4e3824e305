"""The integer program over kinds and changes, solved by HiGHS.

Only how many GPUs change how must be whole: what serves whom is then a transport, whole by itself. The linear program
comes first, one goal after the other; its corner is whole but for a few kinds, since few rows tie kinds together. Those
few are then solved as integers with the rest as it is; a small pool is solved as integers altogether, which is exact.
"""

from slurm_plugin.planner.highs import EPSILON, Highs, Matrix
from slurm_plugin.planner.market import Answer, Market

TIERS_MAX = 8  # goals solved one after the other; later tiers share the last, where age alone orders them
DESTROY = 1_024  # an instance destroyed
CHANGE = 64  # a GPU changed at all: more than a whole GPU of better fitting slices is worth
WASTE = 1  # a memory slice more than was asked
WHOLE_GPUS_MAX = 64  # a pool of so many that can change is solved as integers altogether


def solve(market: Market, time_s: float) -> Answer | None:
    """The best answer, or None when the time was over before there was any."""
    matrix, limits = build(market)
    goals = goals_of(market)
    solver = Highs(matrix, limits, time_s)
    best = solver.run(goals)
    if best is None:
        return None
    changes = sum(len(kind.changes) for kind in market.kinds)
    if not any(abs(value - round(value)) > EPSILON for value in best.columns):
        return _answer(market, best.columns, "best found" if best.cut_short else "exact", float(best.cut_short))
    small = sum(kind.count for kind in market.kinds) <= WHOLE_GPUS_MAX
    lower, upper = _box(market, best.columns, small=small)
    solver.restrict(lower, upper, changes)
    whole = solver.run(goals)
    if whole is None:
        return None
    if best.cut_short or whole.cut_short:
        return _answer(market, whole.columns, "best found", 1.0)
    gap = next(((a - b) / a for a, b in zip(best.reached, whole.reached, strict=True) if a - b > EPSILON * a), 0.0)
    exact = small or gap == 0.0
    return _answer(market, whole.columns, "exact" if exact else "rounded", 0.0 if exact else gap)


def build(market: Market) -> tuple[Matrix, list[float]]:
    """Rows: each kind's GPUs, then each pool's profiles, then each want, then the most that may change."""
    matrix = Matrix()
    limits: list[float] = [kind.count for kind in market.kinds]
    first = []
    for supply in market.supply:
        first.append(len(limits))
        limits += supply
    wants = len(limits)
    limits += [want.count for want in market.wants]
    most = [(len(limits), 1)] if market.changing is not None else []
    limits += [market.changing] if market.changing is not None else []
    for nth, kind in enumerate(market.kinds):
        base = first[kind.pool]
        for gain, destroyed in kind.changes:
            entries = [(nth, 1), *((base + p, -more) for p, more in enumerate(gain) if more), *most]
            matrix.add(entries, -CHANGE - DESTROY * destroyed, kind.count)
    for want, pool, profile, waste in market.uses:
        matrix.add([(first[pool] + profile, 1), (wants + want, 1)], -WASTE * waste, market.wants[want].count)
    return matrix, limits


def goals_of(market: Market) -> list[list[float]]:
    """By tier, what each column is worth."""
    tiers = sorted({want.tier for want in market.wants})
    level = {tier: min(nth, TIERS_MAX - 1) for nth, tier in enumerate(tiers)}
    changes = sum(len(kind.changes) for kind in market.kinds)
    goals = [[0.0] * (changes + len(market.uses)) for _ in range(max(level.values(), default=0) + 1)]
    for nth, (want, *_) in enumerate(market.uses):
        goals[level[market.wants[want].tier]][changes + nth] = float(market.wants[want].value)
    return goals


def _box(market: Market, columns: list[float], *, small: bool) -> tuple[list[float], list[float]]:
    """Bounds of the integer program: whole kinds stay as they are, those that are not may round as they like."""
    lower: list[float] = []
    upper: list[float] = []
    nth = 0
    for kind in market.kinds:
        some = columns[nth : nth + len(kind.changes)]
        nth += len(kind.changes)
        if small:
            floor, left = [0] * len(some), kind.count
        else:
            floor = [int(value + EPSILON) for value in some]
            left = kind.count - sum(floor) if any(abs(v - round(v)) > EPSILON for v in some) else 0
        lower += floor
        upper += [value + left for value in floor]
    return lower, upper


def _answer(market: Market, columns: list[float], solver: str, gap: float) -> Answer:
    whole = [round(value) for value in columns]
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
