"""How long each origin has been silent. A restart begins nothing anew: when one was heard whose jobs have a lease is
written down.
"""

import math
from collections.abc import Iterator

from federation.ports import Now
from federation.store.store import Store

HEARD_S = 10.0  # between notes of one origin: after a restart, it may seem to be silent for so much longer


class Silences:
    """Kept in memory: when each origin was last heard, and up to when that is written down."""

    def __init__(self, now: Now) -> None:
        self._since = now.mono
        self._heard: dict[str, float] = {}
        self._noted: dict[str, float] = {}

    def start(self, store: Store, now: Now) -> None:
        """Once, before anything is heard."""
        self._heard = {origin: now.mono - max(0.0, now.wall - at) for origin, at in store.heard().items()}
        self._noted = dict(self._heard)

    def heard(self, origin: str, now: Now) -> None:
        self._heard[origin] = now.mono

    def of_open(self, store: Store, now: Now) -> Iterator[tuple[str, float]]:
        """Of origins with jobs here, in seconds. Crash: at the most HEARD_S of hearing them are forgotten."""
        for origin in {origin for (_, origin), count in store.attempts().items() if count > 0}:
            heard = self._heard.get(origin, self._since)
            if heard - self._noted.get(origin, -math.inf) >= HEARD_S and store.has_lease(origin):
                self._noted[origin] = heard
                store.save_heard(origin, now.wall - (now.mono - heard))
            yield origin, now.mono - heard
