"""PURE: do two agents speak for one node, and put each other out?

An agent that was restarted, or whose host has moved, comes as another one and the old one never comes back. One that
does, after another had its place, is alive beside it: two hosts say they are the same node.
"""

import re
import time
from collections import deque
from dataclasses import dataclass, field

TIMES = 2  # so often one has come back: a second's doubt about a clock or an address is not told
TOLD_S = 600.0  # for so long after the last time it is told
SEEN = 4  # agents of one node that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Which agent: where it calls from, and when it was started (Unix seconds)."""

    peer: str
    started_at: float

    @property
    def host(self) -> str:
        """`ipv4:10.0.0.1:4242`, as gRPC names it, without what changes from call to call."""
        return re.sub(r"^ipv[46]:|:\d+$", "", self.peer)

    def __str__(self) -> str:
        return f"{self.host} (started {time.strftime('%H:%M:%S', time.localtime(self.started_at))})"


@dataclass(slots=True)
class Twins:
    _seen: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=SEEN))
    _now: Who | None = None
    _other: Who | None = None
    _times: int = 0
    _at: float = 0.0

    def came(self, who: Who, now: float) -> None:
        """An agent has begun to speak."""
        before, key = self._now, (who.host, who.started_at)
        if before is not None and key != (before.host, before.started_at) and key in self._seen:
            self._times = self._times + 1 if now - self._at < TOLD_S else 1
            self._other, self._at = before, now
        elif key not in self._seen:
            self._seen.append(key)
        self._now = who

    def problem(self, now: float) -> str:
        """In words; empty when one agent speaks."""
        if self._times < TIMES or now - self._at > TOLD_S:
            return ""
        both = " and ".join(sorted(map(str, (self._now, self._other))))
        return f"two agents speak for it and put each other out: {both}"
