"""One decision at a time: GPUs counted by state, with the best place for each profile always at hand.

Between two plans jobs come one by one. What a slice would cost in each state is worked out once a state; which states
there are at the moment is kept as they come and go. So a decision costs the same for eight GPUs and for a hundred
thousand.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush

from slurm_plugin.mig.geometry import Layout, Placed, Shapes
from slurm_plugin.planner.place import Candidate, Job, Spot, ranked

Rank = tuple[bool, int, float]  # must it be cut, what is destroyed, what it costs
REMEMBERED = 100_000  # states of GPUs with their best spots


@dataclass(slots=True, eq=False)
class Cell:
    """All GPUs of one state. Made by the stock only, one a state."""

    fixed: Layout
    idle: Layout
    count: int = 0
    spots: dict[str, tuple[Rank, Spot] | None] = field(default_factory=dict)


class Stock:
    """The GPUs of one model. `profiles`: those that are ever asked for."""

    def __init__(self, shapes: Shapes, profiles: Iterable[str]) -> None:
        self._shapes = shapes
        self._profiles = tuple(profiles)
        self._heaps: dict[str, list[tuple[Rank, int, Cell]]] = {name: [] for name in self._profiles}
        self._numbers = 0
        self.cell = lru_cache(maxsize=REMEMBERED)(self._cell)

    def add(self, cell: Cell, count: int = 1) -> None:
        cell.count += count
        if cell.count == count:  # it was not there before: every heap gets it
            for name, found in cell.spots.items():
                if found:
                    self._numbers += 1
                    heappush(self._heaps[name], (found[0], self._numbers, cell))

    def take(self, cell: Cell) -> None:
        if not cell.count:
            raise ValueError("no GPU is in this state")
        cell.count -= 1

    def best(self, name: str) -> tuple[Cell, Spot] | None:
        """Where one slice of this profile goes best, or None when no GPU has room for it."""
        heap = self._heaps[name]
        while heap and not heap[0][2].count:
            heappop(heap)
        if not heap:
            return None
        cell = heap[0][2]
        found = cell.spots[name]
        assert found is not None
        return cell, found[1]

    def start(self, cell: Cell, spot: Spot) -> Cell:
        """A job starts there: the state its GPU is in then."""
        idle = tuple(one for one in cell.idle if one != spot.placed and one not in spot.destroys)
        return self._move(cell, tuple(sorted((*cell.fixed, spot.placed), key=_place)), idle)

    def end(self, cell: Cell, placed: Placed) -> Cell:
        """A job ends there, and its slice stays."""
        fixed = tuple(one for one in cell.fixed if one != placed)
        return self._move(cell, fixed, tuple(sorted((*cell.idle, placed), key=_place)))

    def _move(self, cell: Cell, fixed: Layout, idle: Layout) -> Cell:
        after = self.cell(fixed, idle)
        self.take(cell)
        self.add(after)
        return after

    def _cell(self, fixed: Layout, idle: Layout) -> Cell:
        gpu = Candidate(gpu="", idle=idle, busy=dict.fromkeys(fixed), cut=True)
        cell = Cell(fixed=fixed, idle=idle)
        for name in self._profiles:
            spots = ranked(self._shapes, [gpu], Job(profiles=(name,)), 0.0)
            cell.spots[name] = (
                ((not spots[0].exists, len(spots[0].destroys), spots[0].cost), spots[0]) if spots else None
            )
        return cell


def _place(placed: Placed) -> tuple[int, str]:
    return (placed[1], placed[0])
