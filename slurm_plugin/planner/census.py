"""GPUs counted by state, and kept right as they change: whoever did not change is not counted again."""

from collections.abc import Collection, Sequence
from itertools import zip_longest

from slurm_plugin.planner.problem import GpuState

EMPTY_MAX = 64  # states that nobody is in any more and that are kept all the same, beside as many as are in use


class Census:
    """The GPUs of every node.

    A state that nobody is in stays for a while with a count of 0: GPUs come back to it, and a market that has the same
    states as the last one costs next to nothing. It goes with the last GPU of its model and place.
    """

    def __init__(self) -> None:
        self._gpus: dict[str, tuple[GpuState, ...]] = {}
        self._counts: dict[GpuState, int] = {}
        self._pools: dict[tuple[str, str], int] = {}  # GPUs of a place and model
        self._used = 0  # states that somebody is in

    def put(self, node: str, gpus: Sequence[GpuState]) -> None:
        """These are a node's GPUs now, each in its place among them."""
        old = self._gpus.get(node, ())
        for before, now in zip(old, gpus, strict=True) if len(old) == len(gpus) else zip_longest(old, gpus):
            if before is now:
                continue
            if now is not None:
                self._count(now, 1)
            if before is not None:
                self._count(before, -1)
            if now is None or before is None or now.place != before.place or now.model != before.model:
                self._move(before, now)
        self._gpus[node] = tuple(gpus)

    def keep(self, nodes: Collection[str]) -> None:
        """Nodes that are not among these are gone."""
        for node in self._gpus.keys() - nodes:
            self.put(node, ())
            del self._gpus[node]

    def of(self, node: str) -> tuple[GpuState, ...]:
        return self._gpus.get(node, ())

    def states(self) -> dict[GpuState, int]:
        """How many GPUs are in each. The caller's own."""
        if not all(self._pools.values()) or len(self._counts) > 2 * self._used + EMPTY_MAX:
            self._counts = {state: count for state, count in self._counts.items() if count}
            self._pools = {pool: count for pool, count in self._pools.items() if count}
        return dict(self._counts)

    def _count(self, state: GpuState, more: int) -> None:
        count = self._counts.get(state, 0)
        self._counts[state] = count + more
        if not count or not count + more:
            self._used += more

    def _move(self, before: GpuState | None, now: GpuState | None) -> None:
        for state, more in ((before, -1), (now, 1)):
            if state is not None:
                pool = (state.place, state.model)
                self._pools[pool] = self._pools.get(pool, 0) + more
