"""Time and links. Messages are lost, doubled, late and out of order; a cut link loses what is on it."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

EPOCH = 1_800_000_000.0  # the calendar when a world begins


@dataclass(slots=True)
class Odds:
    """How bad the links are. All zero when the story's faults are over."""

    lose: float = 0.02
    double: float = 0.05
    late: float = 0.05
    latest_s: float = 20.0


@dataclass(slots=True)
class World:
    seed: int
    now: float = 0.0
    odds: Odds = field(default_factory=Odds)
    events: int = 0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, call))

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """False: it was not so when the time was over."""
        while self._heap and self.now < limit_s:
            self.now, _, call = heapq.heappop(self._heap)
            self.events += 1
            call()
            if self.events % 64 == 0 and until():
                return True
        return until()

    def odd(self, share: float) -> bool:
        return self.chance.random() < share

    def journeys(self) -> list[float]:
        """How long each copy of a message is under way."""
        odds = self.odds
        if self.odd(odds.lose):
            return []
        copies = 2 if self.odd(odds.double) else 1
        return [
            self.chance.uniform(0.5, odds.latest_s) if self.odd(odds.late) else self.chance.uniform(0.001, 0.1)
            for _ in range(copies)
        ]
