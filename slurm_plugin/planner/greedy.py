"""The simple answer: wants one after the other, each from what is idle, then from the cheapest changes.

It takes no time to speak of and needs no solver: what a plan falls back to when the time is over, what a solver's
answer is compared with, and what serves now with nothing changed.
"""

from slurm_plugin.planner.market import Answer, Kind, Market, unchanged


def stay(market: Market) -> Answer:
    """What is served when nothing changes."""
    trade = _Trade(market)
    for want in in_turn(market):
        trade.take(want)
    return trade.answer("none")


def greedy(market: Market) -> Answer:
    trade = _Trade(market)
    for want in in_turn(market):
        trade.take(want)
        while trade.lacking[want] and trade.change(want):
            trade.take(want)
    return trade.answer("heuristic")


def in_turn(market: Market) -> list[int]:
    return sorted(range(len(market.wants)), key=lambda nth: market.wants[nth].tier)


class _Trade:
    """The market while wants are served."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._left = [list(supply) for supply in market.supply]
        self._gpus = list(market.gpus)
        self._changed: dict[int, list[int]] = {}  # by kind, of those that change
        self._may_change = market.changing if market.changing is not None else sum(self._gpus)
        self._served: dict[tuple[int, int, int], int] = {}
        self._uses: dict[int, list[tuple[int, int, int]]] = {}
        for want, pool, profile, waste in market.uses:
            self._uses.setdefault(want, []).append((waste, pool, profile))
        self.lacking = [want.count for want in market.wants]

    def take(self, want: int) -> None:
        for _, pool, profile in sorted(self._uses.get(want, ())):
            count = min(self.lacking[want], max(0, self._left[pool][profile]))
            if count:
                self._left[pool][profile] -= count
                self.lacking[want] -= count
                at = (want, pool, profile)
                self._served[at] = self._served.get(at, 0) + count

    def change(self, want: int) -> bool:
        """Change some GPUs in the way that helps this want most, and then destroys least. False when none can."""
        best: tuple[tuple[int, int, int, int], int] | None = None
        useful = {(pool, profile) for _, pool, profile in self._uses.get(want, ())}
        for nth, kind in enumerate(self._market.kinds):
            if not self._gpus[nth]:
                continue
            able = [p for p in range(len(self._left[kind.pool])) if (kind.pool, p) in useful]
            for at, (gain, destroyed) in enumerate(kind.changes):
                helped = min(self.lacking[want], sum(gain[p] for p in able))
                count = self._most(nth, kind, at, want, helped)
                if helped > 0 and count:
                    rank = (-helped, destroyed, nth, at)
                    best = min(best, (rank, count)) if best else (rank, count)
        if best is None:
            return False
        (_, _, nth, at), count = best
        kind = self._market.kinds[nth]
        self._gpus[nth] -= count
        self._changed.setdefault(nth, [0] * len(kind.changes))[at] += count
        self._may_change -= count
        for p, more in enumerate(kind.changes[at][0]):
            self._left[kind.pool][p] += count * more
        return True

    def _most(self, nth: int, kind: Kind, at: int, want: int, helped: int) -> int:
        """How many GPUs may change so, and nothing that serves already goes."""
        count = min(self._gpus[nth], self._may_change, -(-self.lacking[want] // max(1, helped)))
        for p, more in enumerate(kind.changes[at][0]):
            if more < 0:
                count = min(count, self._left[kind.pool][p] // -more)
        return count

    def answer(self, solver: str) -> Answer:
        changed = list(unchanged(self._market.kinds))
        for nth, row in self._changed.items():
            changed[nth] = tuple(row)
        return Answer(
            changed=tuple(changed), served=self._served, solver=solver, gap=1.0 if solver == "heuristic" else 0.0
        )
