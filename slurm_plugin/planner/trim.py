"""An answer brought down to GPUs, without what nobody asked for.

Full layouts make more than what waits. What is too much goes, where that leaves most room; then every idle slice that
was in the way of nothing stays after all, and what room there is takes what the group's default has.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_plugin.mig.geometry import Layout, Shapes, mask
from slurm_plugin.mig.layouts import feasible, occupied, room
from slurm_plugin.planner.market import Answer, Kind, Market
from slurm_plugin.planner.problem import GpuState, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    state: GpuState
    idle: Layout  # what is idle afterwards
    gpus: int


def trimmed(problem: Problem, asked: Market, answer: Answer) -> list[Move]:
    spare = _spare(asked, answer)
    moves = []
    for kind, row in zip(asked.kinds, answer.changed, strict=True):
        pool = asked.pools[kind.pool]
        left = dict(zip(pool.profiles, spare[kind.pool], strict=True))
        for move in _trim(problem.models[pool.model], left, _spread(kind, row)):
            if move.idle != move.state.idle:
                moves.append(move)
        spare[kind.pool] = [left[name] for name in pool.profiles]
    return sorted(moves, key=move_order)


def state_order(state: GpuState) -> tuple[object, ...]:
    return (state.place, state.model, state.fixed, state.idle, state.blocked, state.default)


def move_order(move: Move) -> tuple[object, ...]:
    return (*state_order(move.state), move.idle)


def _spare(asked: Market, answer: Answer) -> list[list[int]]:
    """How many slices of each pool and profile serve nobody once the answer is carried out."""
    left = [list(supply) for supply in asked.supply]
    for kind, row in zip(asked.kinds, answer.changed, strict=True):
        for (gain, _), count in zip(kind.changes, row, strict=True):
            for p, more in enumerate(gain):
                left[kind.pool][p] += count * more
    for (_, pool, profile), count in answer.served.items():
        left[pool][profile] -= count
    return left


def _spread(kind: Kind, row: tuple[int, ...]) -> Iterator[Move]:
    """Which members of a kind change, in a fixed order."""
    if not any(row):
        return
    members = deque(sorted(kind.members, key=lambda member: state_order(member[0])))
    state, free, columns = members.popleft()
    for nth, wanted in enumerate(row):
        left = wanted
        while left:
            if not free:
                state, free, columns = members.popleft()
            count = min(left, free)
            free, left = free - count, left - count
            yield Move(state=state, idle=columns[nth].idle, gpus=count)


def _trim(shapes: Shapes, spare: dict[str, int], moves: Iterator[Move]) -> Iterator[Move]:
    todo = deque(moves)
    while todo:  # each round ends a move, or takes a slice out of some of its GPUs
        move = todo.popleft()
        extra = _most_in_the_way(shapes, move, spare)
        if extra is None:
            yield Move(state=move.state, idle=_filled(shapes, move), gpus=move.gpus)
            continue
        count = min(move.gpus, spare.get(extra[0], move.gpus))
        if extra[0] in spare:
            spare[extra[0]] -= count
        shorter = tuple(one for one in move.idle if one != extra)
        if count < move.gpus:
            todo.appendleft(Move(state=move.state, idle=move.idle, gpus=move.gpus - count))
        todo.appendleft(Move(state=move.state, idle=shorter, gpus=count))


def _most_in_the_way(shapes: Shapes, move: Move, spare: dict[str, int]) -> tuple[str, int] | None:
    """The new slice that nobody wants and without which most room is left."""
    extra = [one for one in move.idle if one not in move.state.idle and spare.get(one[0], 1) > 0]
    if len(extra) < 2:
        return extra[0] if extra else None
    taken = move.state.blocked | occupied(shapes, (*move.state.fixed, *move.idle))
    return max(extra, key=lambda one: (room(shapes, taken & ~mask(one[1], shapes[one[0]].size)), one))


def _filled(shapes: Shapes, move: Move) -> Layout:
    """With every idle slice that there is room for after all, then with what the default has and this GPU lacks."""
    layout = list(move.idle)
    names = [name for name, _ in (*move.state.fixed, *layout)]
    lacking = [(name, start) for name, _ in move.state.default if name in shapes for start in shapes[name].starts]
    lacking.sort(key=lambda placed: (-shapes[placed[0]].size, placed))
    for piece in (*move.state.idle, *lacking):
        if piece not in move.state.idle and names.count(piece[0]) >= dict(move.state.default)[piece[0]]:
            continue
        taken = move.state.blocked | occupied(shapes, layout)
        if mask(piece[1], shapes[piece[0]].size) & taken or not feasible(shapes, (*move.state.fixed, *layout, piece)):
            continue
        layout.append(piece)
        names.append(piece[0])
    return tuple(sorted(layout, key=lambda placed: (placed[1], placed[0])))
