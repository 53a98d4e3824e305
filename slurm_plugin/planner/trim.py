"""An answer brought down to GPUs, without what nobody asked for.

Full layouts make more than what waits. What is too much goes, where that leaves most room; then every idle slice that
was in the way of nothing stays after all, and what room there is takes what the group's default has.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from slurm_plugin.mig.geometry import Layout, mask, show
from slurm_plugin.mig.layouts import counts_of, feasible, occupied, room
from slurm_plugin.planner.columns import Column, Frame
from slurm_plugin.planner.market import Answer, Kind, Market, Pool
from slurm_plugin.planner.problem import GpuState, Problem

REMEMBERED = 50_000  # changes of a state
SLICES_MAX = 16  # of one profile on a GPU; known ones have at most 8

_Given = tuple[int, GpuState, Column, int]  # its turn, a state, what becomes of it, how many GPUs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Made:
    """What becomes of a GPU. GPUs of one state that become the same share one."""

    idle: Layout  # afterwards
    destroy: Layout
    create: Layout
    new: tuple[str, ...]  # profiles of what is created
    comes: str  # both in words; "" for nothing
    goes: str

    @classmethod
    def of(cls, before: Layout, after: Layout) -> "Made":
        destroy = tuple(one for one in before if one not in after)
        create = tuple(one for one in after if one not in before)
        new, gone = counts_of(create), counts_of(destroy)
        words = show(new) if new else "", show(gone) if gone else ""
        return cls(idle=after, destroy=destroy, create=create, new=tuple(new), comes=words[0], goes=words[1])


class Move(NamedTuple):
    """So many GPUs of one state become the same."""

    turn: int  # of the state, among all
    state: GpuState
    made: Made
    gpus: int


def trimmed(problem: Problem, asked: Market, answer: Answer) -> list[Move]:
    spare = _spare(asked, answer)
    moves: list[Move] = []
    for kind, row in zip(asked.kinds, answer.changed, strict=True):
        if any(row):
            moves += _trim(asked.pools[kind.pool], spare[kind.pool], _spread(kind, row, problem.states))
    moves.sort(key=itemgetter(0))
    return moves


def _spare(asked: Market, answer: Answer) -> list[list[int]]:
    """How many slices of each pool and profile serve nobody once the answer is carried out."""
    left = [list(supply) for supply in asked.supply]
    for kind, row in zip(asked.kinds, answer.changed, strict=True):
        for nth, count in enumerate(row):
            if count:
                for p, more in enumerate(kind.changes[nth][0]):
                    left[kind.pool][p] += count * more
    for (_, pool, profile), count in answer.served.items():
        left[pool][profile] -= count
    return left


def _spread(kind: Kind, row: tuple[int, ...], states: Mapping[GpuState, int]) -> Iterator[_Given]:
    """Which members of a kind change how, and how many of each, in a fixed order."""
    members = iter(kind.members)
    turn, state, columns = next(members)
    free = states[state]
    for nth, left in enumerate(row):
        while left:
            while not free:
                turn, state, columns = next(members)
                free = states[state]
            count = min(left, free)
            free, left = free - count, left - count
            yield turn, state, columns[nth], count


def _trim(pool: Pool, spare: list[int], given: Iterable[_Given]) -> Iterator[Move]:
    """Each round ends for at least one GPU: none gives up more than there is to spare."""
    most = _at_most(spare)
    for turn, state, column, gpus in given:
        left = gpus
        while left:
            made, less = _made(pool, state, column, most)
            count = left
            if less:
                count = min(left, *(spare[p] // fewer for p, fewer in less))
                for p, fewer in less:
                    spare[p] -= count * fewer
                if any(spare[p] < SLICES_MAX for p, _ in less):
                    most = _at_most(spare)
            left -= count
            if made.new or made.goes:
                yield Move(turn, state, made, count)


def _at_most(spare: list[int]) -> tuple[int, ...]:
    return tuple([min(count, SLICES_MAX) for count in spare])


@lru_cache(maxsize=REMEMBERED)
def _made(
    pool: Pool, state: GpuState, column: Column, spare: tuple[int, ...]
) -> tuple[Made, tuple[tuple[int, int], ...]]:
    """Without new slices that nobody wants, as far as there are some to spare: what leaves most room goes first.

    And how many fewer of which of the pool's profiles it has so.
    """
    shapes, idle = pool.frame.shapes, column.idle
    left = dict(zip(pool.profiles, spare, strict=True))
    taken = state.blocked | occupied(shapes, (*state.fixed, *idle))
    while extra := [one for one in idle if left.get(one[0], 1) > 0 and one not in state.idle]:
        without = {one: taken & ~mask(one[1], shapes[one[0]].size) for one in extra}
        goes = max(extra, key=lambda one: (room(shapes, without[one]), one))
        if goes[0] in left:
            left[goes[0]] -= 1
        idle, taken = tuple(one for one in idle if one != goes), without[goes]
    less = tuple((p, spare[p] - left[name]) for p, name in enumerate(pool.profiles) if left[name] < spare[p])
    return Made.of(state.idle, _filled(pool.frame, state, idle)), less


def _filled(frame: Frame, state: GpuState, idle: Layout) -> Layout:
    """With every idle slice that there is room for after all, then with what the default has and this GPU lacks."""
    shapes, layout, default = frame.shapes, list(idle), dict(state.default)
    names = [name for name, _ in (*state.fixed, *layout)]
    lacking = [(name, start) for name in default if name in shapes for start in shapes[name].starts]
    lacking.sort(key=lambda placed: (-shapes[placed[0]].size, placed))
    for piece in (*state.idle, *lacking):
        if piece not in state.idle and names.count(piece[0]) >= default[piece[0]]:
            continue
        taken = state.blocked | occupied(shapes, layout)
        if mask(piece[1], shapes[piece[0]].size) & taken or not feasible(shapes, (*state.fixed, *layout, piece)):
            continue
        layout.append(piece)
        names.append(piece[0])
    return tuple(sorted(layout, key=lambda placed: (placed[1], placed[0])))
