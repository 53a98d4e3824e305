"""What a target makes of an attempt that it has no record of, or not all of one, and that may be in its backend all the
same: it has lost a journal that let that in. The backend, and the claim there, decide.
"""

import math
from collections import Counter
from dataclasses import replace

from federation.engine.attempts import ASK_S
from federation.engine.effects import Effect, Fence, Look, Send
from federation.engine.records import Records
from federation.model.job import Attempt
from federation.model.messages import Busy, Cancel, Submit
from federation.model.spec import JobSpec
from federation.model.states import End, Outcome, Target
from federation.policy.admit import House, admit
from federation.ports import Now
from federation.store.store import Store

REFUSED_S = 86400.0  # how long what nobody here ran is remembered: until its origin has heard, or asks anew
MOST_REFUSED = 200_000  # of one origin, within that time
MOST_DOUBTED = 256  # attempts of an origin without a record, beyond its most jobs, that are looked for at once


class Doubts(Records):
    def __init__(self, house: House) -> None:
        super().__init__()
        self.house = house
        self._refused: Counter[str] = Counter()  # by origin, since:
        self._strange: Counter[str] = Counter()
        self._counted_since = -math.inf

    def _may_refuse(self, origin: str, now: Now) -> bool:
        return self._counts(self._refused, origin, MOST_REFUSED, now)

    def _counts(self, counted: Counter[str], origin: str, most: int, now: Now) -> bool:
        """One more; False: that would be too many. In memory: a restart begins anew."""
        if now.mono - self._counted_since >= REFUSED_S:
            self._refused.clear()
            self._strange.clear()
            self._counted_since = now.mono
        if counted[origin] >= most:
            return False
        counted[origin] += 1
        return True

    def _doubt(self, store: Store, attempt: Attempt, submit: Submit, now: Now) -> list[Effect]:
        """No record of it, and no room, or it is over; but an older journal may have let it in: its backend is asked.

        What it does not have never runs here, once we have its claim. What nobody of that name may run has to end.
        Of its spec only what tells which output to keep is kept: it is never handed over.
        """
        if self._too_many_doubted(store, attempt.origin) or not self._may_refuse(attempt.origin, now):
            return [Send(site=attempt.origin, message=Busy(key=attempt.key, why="too many are being looked for"))]
        user, spec = self._left_by(submit, attempt.origin)
        if spec is None:
            stopping = replace(attempt, state=Target.STOPPING, due_at=now.wall)
            return [*self._saved(store, stopping, None), Fence(pool=attempt.pool, key=attempt.key)]
        asked = replace(attempt, user=user, state=Target.SUBMITTING, due_at=now.wall + ASK_S)
        asked = store.add_attempt(replace(asked, lease_s=spec.lease.limit_s), spec)
        return [self._tell(store, asked), Look(pool=asked.pool, keys=(asked.key,))]

    def _left_by(self, submit: Submit, origin: str) -> tuple[str, JobSpec | None]:
        """Whose its output is, and what tells which; nobody's: None."""
        allowed = admit(submit, origin, self.house, {})
        spec = allowed.spec and replace(allowed.spec, script=b"", args=(), env=(), inputs=())
        return allowed.user, spec

    def _resubmitted(self, store: Store, known: Attempt, submit: Submit) -> list[Effect]:
        """It is known. If by a cancel alone, what it left can be fetched only now that its user is told.

        Of what is over it is said anew, as an answer to this.
        """
        if submit.again and not known.user and known.state in (Target.STOPPING, Target.ENDED):
            user, spec = self._left_by(submit, known.origin)
            if spec is not None:
                return [self._tell(store, store.add_attempt(replace(known, user=user), spec, was=known))]
        if submit.over and known.user:
            return self._saved(store, known, known)
        return [self._answer(store, known)]

    def _cancel_unknown(self, store: Store, origin: str, cancel: Cancel, now: Now) -> list[Effect]:
        """It may come yet, and a backend may even have it when the journal is new: its claim decides.

        Each makes a claim. Beyond a bound, at once or in a day, nothing is said: it is asked for until it is confirmed.
        """
        most = self._most_doubted(origin)
        if self._too_many_doubted(store, origin) or not self._counts(self._strange, origin, most, now):
            return []
        never = Attempt(key=cancel.key, origin=origin, pool=cancel.pool, state=Target.STOPPING, due_at=now.wall)
        if cancel.pool in self.house.pools:
            return [*self._saved(store, never, None), Fence(pool=cancel.pool, key=cancel.key)]
        outcome = Outcome(end=End.CANCELLED, reason="it was never here")
        return self._saved(
            store, replace(never, state=Target.RELEASED, due_at=None, ended_at=now.wall, outcome=outcome), None
        )

    def _too_many_doubted(self, store: Store, origin: str) -> bool:
        taken = sum(count for (_, site), count in store.attempts().items() if site == origin)
        return taken >= self._most_doubted(origin)

    def _most_doubted(self, origin: str) -> int:
        """Beyond what it may have here: what an older journal let in is no more than that."""
        guest = self.house.guests.get(origin)
        return (guest.most_jobs if guest else 0) + MOST_DOUBTED
