"""What a GPU in one state could become: the ways worth looking at, best of each kind only.

Whatever can be added to a layout is added: that costs nobody anything, and what no one wants is left out again once the
plan is made. So only *full* layouts count, beside doing nothing. Of those that supply the same, one that destroys least
stays; one that supplies no more than another and destroys no less goes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from slurm_plugin.mig.geometry import Layout, Shape, Shapes, mask, memory_slices
from slurm_plugin.mig.layouts import engine_limit
from slurm_plugin.planner.problem import GpuState

REMEMBERED = 50_000  # states, and rests of a GPU
MODELS_REMEMBERED = 256
PACKINGS_MAX = 5_000  # full layouts of one rest; known GPUs have under 400

_Spot = tuple[str, int, int, tuple[int, ...]]  # profile, start, bits, engines
Axis = tuple[tuple[str, int, tuple[int, ...], tuple[int, ...]], ...]  # profile, size, starts, engines


@dataclass(frozen=True, slots=True)
class _Profile:
    name: str
    size: int
    starts: tuple[int, ...]
    engines: tuple[int, ...]
    compute_slices: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """The geometry of a model. Equal ones are one object, so that it costs nothing to look something up by it."""

    axis: Axis
    slices: int
    limit: tuple[int, ...]  # its engines
    shapes: Mapping[str, Shape]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """One thing a GPU could become. `gain` is how many more idle slices of each wanted profile it has then."""

    idle: Layout  # all that is idle afterwards
    destroyed: int
    gain: tuple[int, ...]


def frame_of(shapes: Shapes) -> Frame:
    profiles = [profile for _, profile in sorted(shapes.items())]
    axis = tuple((p.name, p.size, tuple(sorted(p.starts)), p.engines) for p in profiles)
    return _frame(axis, tuple(p.compute_slices for p in profiles))


@lru_cache(maxsize=MODELS_REMEMBERED)
def _frame(axis: Axis, compute: tuple[int, ...]) -> Frame:
    shapes = {one[0]: _Profile(*one, slices) for one, slices in zip(axis, compute, strict=True)}
    return Frame(axis=axis, slices=memory_slices(shapes), limit=engine_limit(shapes), shapes=shapes)


@lru_cache(maxsize=REMEMBERED)
def columns(frame: Frame, state: GpuState, wanted: tuple[str, ...]) -> tuple[Column, ...]:
    """Every change of a GPU in this state that could serve somebody better, in a fixed order.

    `wanted`: the profiles that serve anybody. What is supplied of others does not count.
    """
    free, engines = _rest(frame, state)
    names = frozenset(wanted) | {name for name, _ in state.idle}
    usable = tuple(profile for profile in frame.axis if profile[0] in names)
    idle, before = frozenset(state.idle), _supply(state.idle, wanted)
    best: dict[tuple[int, ...], Column] = {}
    for packing in packings(usable, free, engines if frame.limit else ()):
        gain = tuple(a - b for a, b in zip(_supply(packing, wanted), before, strict=True))
        if max(gain, default=0) <= 0:
            continue
        column = Column(idle=packing, destroyed=len(idle.difference(packing)), gain=gain)
        if gain not in best or _rank(column) < _rank(best[gain]):
            best[gain] = column
    return _undominated(list(best.values()))


def _undominated(found: list[Column]) -> tuple[Column, ...]:
    kept: list[Column] = []
    for column in sorted(found, key=lambda c: (c.destroyed, -sum(c.gain), c.idle)):  # only earlier ones can dominate
        if not any(all(a >= b for a, b in zip(other.gain, column.gain, strict=True)) for other in kept):
            kept.append(column)
    return tuple(kept)


def _rank(column: Column) -> tuple[int, Layout]:
    return (column.destroyed, column.idle)


def _rest(frame: Frame, state: GpuState) -> tuple[int, tuple[int, ...]]:
    """The memory slices and engines that what is fixed leaves."""
    taken, left = state.blocked, list(frame.limit)
    for name, start in state.fixed:
        profile = frame.shapes[name]
        taken |= mask(start, profile.size)
        left = [have - used for have, used in zip(left, profile.engines or (0,) * len(left), strict=True)]
    return mask(0, frame.slices) & ~taken, tuple(left)


@lru_cache(maxsize=REMEMBERED)
def packings(axis: Axis, free: int, engines: tuple[int, ...]) -> tuple[Layout, ...]:
    """Every full layout of the free memory slices. Bounds: at most PACKINGS_MAX."""
    spots = [
        (name, start, mask(start, size), used if engines else ())
        for name, size, starts, used in axis
        for start in starts
        if not mask(start, size) & ~free
    ]
    spots.sort(key=lambda spot: (spot[1], spot[0]))
    found: list[Layout] = []
    _pack(spots, 0, (free, engines, ()), found)
    return tuple(found)


def _pack(spots: list[_Spot], nth: int, at: tuple[int, tuple[int, ...], Layout], found: list[Layout]) -> None:
    free, engines, layout = at
    if len(found) >= PACKINGS_MAX:
        return
    fitting = [k for k in range(len(spots)) if _fits(spots[k], free, engines)]
    if not fitting:
        found.append(layout)
        return
    if fitting[-1] < nth:
        return  # something passed over before would still fit: not full
    for k in fitting:
        if k >= nth:
            name, start, bits, used = spots[k]
            left = tuple(have - one for have, one in zip(engines, used, strict=True)) if used else engines
            _pack(spots, k + 1, (free & ~bits, left, (*layout, (name, start))), found)


def _fits(spot: _Spot, free: int, engines: tuple[int, ...]) -> bool:
    return not spot[2] & ~free and all(have >= used for have, used in zip(engines, spot[3], strict=False))


def _supply(layout: Layout, wanted: tuple[str, ...]) -> tuple[int, ...]:
    names = [name for name, _ in layout]
    return tuple(names.count(name) for name in wanted)
