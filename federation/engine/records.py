"""A target's records of attempts: how they are saved, who is told of what changed, and who is woken by it."""

from collections import Counter
from collections.abc import Sequence

from federation.engine.attempts import record
from federation.engine.effects import Effect, Send
from federation.model.job import Attempt
from federation.model.messages import MOST_CHANGES, Changes, Follow, Told
from federation.model.states import OPEN
from federation.model.token import Key
from federation.ports import Now
from federation.store.store import Store

WOKEN = 2  # of what waits for room in a pool, when an attempt there ends: the first may not fit


class Records:
    """Kept in memory: up to where each origin was told, and whether that is all there is; which pools were full when
    asked, and how many of what waits for those is to be tried now.
    """

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._told_all: set[str] = set()
        self._full: set[str] = set()
        self._wakes: Counter[str] = Counter()

    def _is_anothers(self, store: Store, origin: str, key: Key) -> bool:
        """Nobody is told of, or may touch, another site's attempt. Sites that had one before know its token."""
        known = store.attempt(key)
        return known is not None and known.origin != origin

    def _saved(self, store: Store, attempt: Attempt, was: Attempt | None, *, told: bool = True) -> list[Effect]:
        attempt = store.save_attempt(attempt, was=was, told=told)
        if attempt.pool in self._full and was is not None and was.state in OPEN and attempt.state not in OPEN:
            self._wakes[attempt.pool] += WOKEN
        return [self._tell(store, attempt)] if told else []

    def _tell(self, store: Store, attempt: Attempt) -> Effect:
        """What has just changed, to an origin that knows all that was before it; another one asks for what it lacks."""
        origin, after = attempt.origin, self._told.get(attempt.origin, -1)
        if origin not in self._told_all or attempt.revision <= after:
            return self._answer(store, attempt)
        upto = self._told[origin] = attempt.revision
        changes = Changes(journal=store.journal, after=after, upto=upto, records=(record(attempt),))
        return Send(site=origin, message=changes)

    def _answer(self, store: Store, attempt: Attempt) -> Effect:
        return Send(site=attempt.origin, message=Told(journal=store.journal, record=record(attempt)))

    def _follow(self, store: Store, origin: str, follow: Follow) -> list[Effect]:
        """What changed since; who follows asks for the rest of a long list, and is told at once from its end on."""
        after = follow.after if follow.journal == store.journal else 0
        attempts: Sequence[Attempt] = store.attempts_since(origin, after, MOST_CHANGES)
        (self._told_all.add if len(attempts) < MOST_CHANGES else self._told_all.discard)(origin)
        upto = self._told[origin] = attempts[-1].revision if attempts else after
        records = tuple(map(record, attempts))
        return [Send(site=origin, message=Changes(journal=store.journal, after=after, upto=upto, records=records))]

    def _wake(self, store: Store, now: Now) -> None:
        for pool, most in self._wakes.items():
            if not store.wake_waiting(pool, now.wall, most):
                self._full.discard(pool)
        self._wakes.clear()
