"""Many jobs that find no pool cost an origin the same number of looks each second, however many they are."""

import math
from collections import Counter
from uuid import UUID

import pytest

from federation.engine.attempts import MOST_RETRY_S
from federation.engine.effects import Effect
from federation.engine.origin import MOST_DUE, MOST_OPEN, RECHOOSE_S, RECHOOSES_PER_S
from federation.model.job import Job
from federation.ports import Now
from federation.store.store import LATEST_S, Store
from tests.unit.federation.engine.bench import Pair

MANY = 4 * MOST_DUE


class Crowd:
    """So many jobs, while the only link is down. `looks`: how often any of them was looked at, by second."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pair, self.looks = Pair(most_open=count), Counter[int]()
        self.edge = self.pair.edge
        self.edge.link("hpc", up=False)
        for number in range(count):
            self.edge.submit(token=UUID(int=number + 1))
        place = self.edge.engine.origin._place

        def looked(store: Store, job: Job, now: Now) -> list[Effect]:
            self.looks[int(now.wall)] += 1
            return place(store, job, now)

        monkeypatch.setattr(self.edge.engine.origin, "_place", looked)

    def seconds(self, count: float) -> None:
        for _ in range(math.ceil(count)):
            self.edge.due(1.0)
            while self.edge.engine.origin.more_due:
                self.edge.due()


@pytest.mark.parametrize("count", [MANY, pytest.param(MOST_OPEN, marks=pytest.mark.soak)])
def test_each_is_looked_at_in_its_turn(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(count, monkeypatch)
    crowd.seconds(1)
    assert crowd.looks.total() == count  # each once, as soon as it is there
    spread_s = min(count / RECHOOSES_PER_S, MOST_RETRY_S)
    for _ in range(2):
        crowd.looks.clear()
        crowd.seconds(RECHOOSE_S + spread_s)
        assert crowd.looks.total() >= count
        assert max(crowd.looks.values()) <= 1.1 * count / spread_s
    assert RECHOOSE_S + MOST_RETRY_S < LATEST_S, "what is due later is taken for a calendar that was set back"


def test_a_few_are_looked_at_soon_again_once_many_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(MANY, monkeypatch)
    crowd.seconds(1)
    with crowd.edge.store.transaction():
        for number in range(2, MANY + 1):
            crowd.edge.engine.origin.cancel(crowd.edge.store, UUID(int=number), crowd.edge.now())
    crowd.looks.clear()
    crowd.seconds(10 * RECHOOSE_S)
    assert crowd.looks.total() >= 9
