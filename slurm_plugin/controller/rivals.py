"""PURE: is what this controller writes on nodes changed by somebody else, again and again?

One change is an admin's, or another slurm.conf. Several, each soon after ours, are a second controller of the same
pool, or a script. Two that write against each other flip the counts every few seconds, and jobs start on neither. So
the one that has the node's agent goes on, and one that has not leaves the node alone for a while, then tries once.
"""

from dataclasses import dataclass

SOON_S = 60.0  # a change that comes later than so after the one before says nothing
TIMES = 3  # so many changes by others are no accident
LEAVE_S = 600.0  # for so long a controller without the node's agent leaves it alone
TOLD_S = 900.0  # ... and for so long it is told: longer, so that it still is when the other one tries again
NAMED = 10  # nodes that are named


@dataclass(slots=True)
class _Node:
    times: int
    last_at: float


class Rivals:
    """Bound: one record a node."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def changed(self, name: str, now: float) -> None:
        """Somebody else has changed what was written there."""
        node = self._nodes.get(name)
        if node is None or now - node.last_at > (TOLD_S if node.times >= TIMES else SOON_S):
            self._nodes[name] = _Node(1, now)
        else:
            node.times, node.last_at = node.times + 1, now

    def leave(self, now: float) -> frozenset[str]:
        """Nodes that are not to be written by a controller without their agents."""
        return self._since(now, LEAVE_S)

    def problem(self, now: float) -> str:
        """In words; empty when nobody else writes."""
        names = sorted(self._since(now, TOLD_S))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        where = ", ".join(names[:NAMED]) + more
        return f"somebody else changes what is published on {where} again and again" if names else ""

    def _since(self, now: float, for_s: float) -> frozenset[str]:
        return frozenset(n for n, node in self._nodes.items() if node.times >= TIMES and now - node.last_at < for_s)
