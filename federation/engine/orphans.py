"""What ended at a target, and is kept for an origin that does not ask for it: that has lost its journal, or is no peer.

The target says so again, once in a while; an origin that does not know such a job lets go of it. Not before ORPHAN_S:
until then what a job left can be got at the target by hand.
"""

from uuid import UUID

from federation.model.job import Attempt
from federation.model.states import Target
from federation.model.token import Key
from federation.ports import Now
from federation.store.store import Store

ORPHAN_S = 14 * 86400.0
LOOK_S, MOST_LOOKED_AT = 60.0, 500  # between pages of all attempts that are remembered, and how many are on one
_FIRST = Key(UUID(int=0), 0)


class Orphans:
    """Kept in memory: up to where it has looked."""

    def __init__(self) -> None:
        self._after = _FIRST
        self._look_at = 0.0

    def found(self, store: Store, now: Now) -> list[Attempt]:
        """On the next page, if it is time for one: what ended ORPHAN_S ago."""
        if now.mono < self._look_at:
            return []
        self._look_at = now.mono + LOOK_S
        page = store.attempts_after(self._after, MOST_LOOKED_AT)
        self._after = page[-1].key if page else _FIRST
        return [one for one in page if one.state is Target.ENDED and is_old(one.ended_at, now)]


def is_old(ended_at: float | None, now: Now) -> bool:
    return ended_at is not None and ended_at < now.wall - ORPHAN_S
