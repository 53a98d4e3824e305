"""PURE: nodes whose counts Slurm has refused: told, and tried again less and less often."""

from collections.abc import Iterable
from dataclasses import dataclass

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
TOLD_S = 30.0  # after a pause: if nothing was tried since, nothing is wanted there any more
NAMED = 10  # nodes that are named


@dataclass(slots=True, kw_only=True)
class _Node:
    why: str
    pause_s: float
    until: float


class Refusals:
    """Bound: one record a node."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def refused(self, names: Iterable[str], why: str, now: float) -> None:
        self._forget(now)
        for name in names:
            before = self._nodes.get(name)
            pause_s = min(LONGEST_PAUSE_S, 2 * before.pause_s) if before else FIRST_PAUSE_S
            self._nodes[name] = _Node(why=why, pause_s=pause_s, until=now + pause_s)

    def taken(self, names: Iterable[str]) -> None:
        for name in names:
            self._nodes.pop(name, None)

    def rests(self, name: str, now: float) -> bool:
        """Is it too soon to try again?"""
        node = self._nodes.get(name)
        return node is not None and now < node.until

    def problem(self, now: float) -> str:
        """In words; empty when none was refused."""
        self._forget(now)
        names = sorted(self._nodes)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        last = max(self._nodes.values(), key=lambda node: node.until, default=None)
        return f"Slurm refuses what is to be published on {', '.join(names[:NAMED])}{more}: {last.why}" if last else ""

    def _forget(self, now: float) -> None:
        for name in [name for name, node in self._nodes.items() if now > node.until + TOLD_S]:
            del self._nodes[name]
