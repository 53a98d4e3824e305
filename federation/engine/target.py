"""A site as target: what it answers to an origin's messages about attempts, and what it does with its backends.

Every method is one transaction over the journal, and tells the effects that are wanted once it is durable.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from federation.engine.attempts import ASK_S, again, ended, poll_s, retry_s, room_poll_s
from federation.engine.doubts import REFUSED_S, Doubts
from federation.engine.effects import Deliver, Effect, Fence, Forget, HandOver, LetGo, Look, Send
from federation.engine.orphans import Orphans
from federation.engine.silences import Silences
from federation.model.job import Attempt, over
from federation.model.messages import (
    STATES,
    Busy,
    Cancel,
    Follow,
    FromOrigin,
    Record,
    Release,
    Signal,
    Submit,
    Told,
)
from federation.model.states import NEVER_LET_IN, OPEN, End, Outcome, Target, TargetEvent
from federation.model.token import Key
from federation.policy.admit import House, Verdict, admit
from federation.ports import Now, Seen, Sight
from federation.store.store import Store

HANDING_S = 10.0  # until a backend is asked about what it is being given
AGREEING = 2  # looks in a row before what is not there counts as not there
MOST_VAIN = 3  # times that a backend may begin to start an attempt in vain: each may cost it a node
VAIN_TRIES = 5  # what one of these counts for the wait until the next
MOST_DUE = 500  # attempts of one pass
TOMBSTONE_S = 30 * 86400.0  # how long a released attempt is remembered: no duplicate of a submit is later
LEASE_CHECK_S = 1.0
UNNAMED = "?"  # the handle of what a backend may have had, and never told its name for
IN_BACKEND = frozenset({Target.READY, Target.SUBMITTING, Target.PENDING, Target.RUNNING})


class TargetSide(Doubts):
    """`more_due`: the last pass was a full one."""

    def __init__(self, house: House, now: Now) -> None:
        super().__init__(house)
        self._silences = Silences(now)
        self._orphans = Orphans()
        self.more_due = False
        self._leases_at = 0.0

    def start(self, store: Store, now: Now) -> list[Effect]:
        """After any restart the backends are asked before anything is done, and silence counts from before it."""
        self._silences.start(store, now)
        store.wake_attempts(now.wall)
        return []

    def message(self, store: Store, origin: str, message: FromOrigin, now: Now) -> list[Effect]:
        self._silences.heard(origin, now)
        if not isinstance(message, Follow) and self._is_anothers(store, origin, message.key):
            return []
        match message:
            case Submit():
                return self._submit(store, origin, message, now)
            case Cancel():
                return self._cancel(store, origin, message, now)
            case Signal():
                return self._signal(store, message)
            case Release():
                return self._release(store, origin, message, now)
            case Follow():
                return self._follow(store, origin, message)

    # -- what origins ask

    def _submit(self, store: Store, origin: str, submit: Submit, now: Now) -> list[Effect]:
        if (known := store.attempt(submit.key)) is not None:
            return self._resubmitted(store, known, submit)
        if not store.may_accept():
            return [Send(site=origin, message=Busy(key=submit.key, why="its journal is short of room"))]
        held = store.held_bytes(origin) if submit.spec.inputs else 0
        verdict = admit(submit, origin, self.house, store.attempts(), held)
        if submit.over and verdict.no is None:
            verdict = Verdict(no=End.NO_ROOM, why="it was over, and what it left is not here")
        elif store.draining and verdict.no is None:
            verdict = Verdict(no=End.NO_ROOM, why="its site is draining")
        attempt = Attempt(key=submit.key, origin=origin, pool=submit.pool, user=verdict.user, state=Target.READY)
        if verdict.no is not None and submit.again and submit.pool in self.house.pools:
            return self._doubt(store, replace(attempt, stopped_for=verdict.no, why=verdict.why), submit, now)
        if verdict.no is not None and not self._may_refuse(origin, now):
            return [Send(site=origin, message=Busy(key=submit.key, why="too many jobs were refused today"))]
        if verdict.no is not None:
            no = Outcome(end=verdict.no, reason=verdict.why)
            refused = replace(attempt, state=Target.RELEASED, outcome=no, why=verdict.why, ended_at=now.wall)
            return self._saved(store, refused, None)
        spec = verdict.spec or submit.spec
        state, due_at = (Target.STAGING, None) if spec.inputs else (Target.READY, now.wall)
        size, lease_s = spec.input_bytes, spec.lease.limit_s
        kept = replace(attempt, state=state, due_at=due_at, lease_s=lease_s, input_bytes=size)
        return [self._tell(store, store.add_attempt(kept, spec))]

    def _cancel(self, store: Store, origin: str, cancel: Cancel, now: Now) -> list[Effect]:
        known = store.attempt(cancel.key)
        if known is None:
            return self._cancel_unknown(store, origin, cancel, now)
        if known.state is Target.STAGING or known.state in IN_BACKEND:
            return self._stop(store, known, End.CANCELLED, now)
        return [self._answer(store, known)]

    def _signal(self, store: Store, signal: Signal) -> list[Effect]:
        """One of STATES counts once it is delivered: until then its origin says it again. Others before, so that none
        is delivered twice.
        """
        known = store.attempt(signal.key)
        if known is None or known.signals >= signal.number:
            return [self._answer(store, known)] if known else []
        running = known.state is Target.RUNNING
        deliver = Deliver(pool=known.pool, key=known.key, number=signal.number, signal=signal.signal)
        if signal.signal in STATES:
            return [deliver] if running else [self._answer(store, known)]
        effects = self._saved(store, replace(known, signals=signal.number), known)
        return [*effects, deliver] if running else effects

    def _release(self, store: Store, origin: str, release: Release, now: Now) -> list[Effect]:
        known = store.attempt(release.key)
        if known is None:
            gone = Record(key=release.key, revision=0, state=Target.RELEASED)
            return [Send(site=origin, message=Told(journal=store.journal, record=gone))]
        if known.state is not Target.ENDED:
            return [self._answer(store, known)]
        return self._let_go(store, known, now)

    def _let_go(self, store: Store, known: Attempt, now: Now) -> list[Effect]:
        store.drop_attempt_spec(known.key)
        released = known.on(TargetEvent.RELEASE, ended_at=now.wall, due_at=now.wall + retry_s(0), tries=0)
        return [*self._saved(store, released, known), Forget(pool=known.pool, key=known.key)]

    # -- what backends answer

    def handed_over(self, store: Store, key: Key, handle: str, now: Now) -> list[Effect]:
        known = store.attempt(key)
        if known is None or known.state is not Target.SUBMITTING:
            return []
        pending = known.on(TargetEvent.SUBMITTED, handle=handle, due_at=now.wall + poll_s(0), tries=0, misses=0)
        if known.pool in self._full:
            self._wakes[known.pool] += 1  # there was room: is there more?
        return self._saved(store, pending, known)

    def no_room(self, store: Store, key: Key, why: str, now: Now) -> list[Effect]:
        """Certain, and no failure: it waits for that pool, and is tried when an attempt there ends, or in a while."""
        known = store.attempt(key)
        if known is None or known.state is not Target.SUBMITTING:
            return []
        self._full.add(known.pool)
        waiting = sum(count for (pool, _), count in store.attempts().items() if pool == known.pool)
        due_at = now.wall + room_poll_s(waiting)
        waits = known.on(TargetEvent.NOT_SUBMITTED, due_at=due_at, misses=0, why=why)
        return self._saved(store, waits, known, told=False)

    def not_handed_over(self, store: Store, key: Key, why: str, now: Now) -> list[Effect]:
        """Certain: the backend does not have it, and may be tried again. Its user hears of each new reason."""
        known = store.attempt(key)
        if known is None or known.state is not Target.SUBMITTING:
            return []
        return self._saved(store, again(known, why, now), known, told=known.why != why)

    def rejected(self, store: Store, key: Key, why: str, now: Now) -> list[Effect]:
        """The backend refused it for good."""
        known = store.attempt(key)
        if known is None or known.state is not Target.SUBMITTING:
            return []
        outcome = Outcome(end=End.REFUSED, ended_at=now.wall, reason=why)
        return self._saved(store, ended(known, TargetEvent.REJECTED, outcome, now), known)

    def unanswered(self, store: Store, key: Key, now: Now) -> list[Effect]:
        """It may have it or not: it is asked before anything else."""
        known = store.attempt(key)
        if known is None or known.state is not Target.SUBMITTING:
            return []
        return self._saved(store, replace(known, due_at=now.wall + ASK_S), known, told=False)

    def delivered(self, store: Store, key: Key, number: int) -> list[Effect]:
        """The backend has this signal, and all before it that still mean something."""
        known = store.attempt(key)
        if known is None or known.signals >= number or known.state not in OPEN:
            return []
        return self._saved(store, replace(known, signals=number), known)

    def fenced(self, store: Store, key: Key, never_runs: bool, now: Now) -> list[Effect]:
        known = store.attempt(key)
        if known is None or known.state is not Target.STOPPING:
            return []
        if not never_runs:
            return self._saved(store, replace(known, due_at=now.wall + ASK_S), known, told=False)
        return self._fenced(store, known, now)

    def _fenced(self, store: Store, known: Attempt, now: Now) -> list[Effect]:
        """It never runs. If nothing on record wanted that, an older journal did: to its origin it was never let in."""
        if known.state is Target.STOPPING:
            outcome = Outcome(end=known.stopped_for, ended_at=now.wall, reason=known.why or "it never started")
            return self._saved(store, ended(known, TargetEvent.FENCED, outcome, now), known)
        outcome = Outcome(end=End.NO_ROOM, ended_at=now.wall, reason="it was stopped here before, and never started")
        return self._saved(store, ended(known, TargetEvent.EXITED, outcome, now), known)

    def looked(self, store: Store, seen: Mapping[Key, Seen], now: Now) -> list[Effect]:
        """What could be observed. What is not in it is as it was."""
        effects: list[Effect] = []
        for key, sight in seen.items():
            known = store.attempt(key)
            if known is not None and (known.state in IN_BACKEND or known.state is Target.STOPPING):
                effects += self._saw(store, known, sight, now)
        return effects

    def _saw(self, store: Store, known: Attempt, seen: Seen, now: Now) -> list[Effect]:
        if seen.sight is Sight.FENCED:
            return self._fenced(store, known, now)
        if seen.sight is Sight.EXITED and seen.outcome is not None:
            outcome = over(known, seen.outcome)
            return self._saved(store, ended(known, TargetEvent.EXITED, outcome, now), known)
        if seen.sight is Sight.GONE or (seen.sight is Sight.ABSENT and known.state is Target.RUNNING):
            return self._missed(store, known, now, self._lost)
        if seen.sight is Sight.ABSENT:
            if known.state in (Target.SUBMITTING, Target.PENDING):
                return self._missed(store, known, now, partial(self._absent, vain=bool(seen.handle)))
            return []
        if seen.sight is Sight.RUNNING and known.state in IN_BACKEND and known.state is not Target.RUNNING:
            at = seen.started_at or now.wall
            running = known.on(TargetEvent.STARTED, started_at=at, due_at=now.wall + poll_s(0), misses=0)
            return self._saved(store, replace(running, handle=seen.handle or known.handle, tries=0), known)
        if seen.sight is Sight.PENDING and known.state is Target.SUBMITTING:
            return self.handed_over(store, known.key, seen.handle, now)
        return self._saved(store, replace(known, misses=0), known, told=False) if known.misses else []

    def _missed(
        self, store: Store, known: Attempt, now: Now, then: Callable[[Store, Attempt, Now], list[Effect]]
    ) -> list[Effect]:
        if known.misses + 1 >= AGREEING:
            return then(store, known, now)
        again = replace(known, misses=known.misses + 1, due_at=now.wall + ASK_S)
        return self._saved(store, again, known, told=False)

    def _lost(self, store: Store, known: Attempt, now: Now) -> list[Effect]:
        end = known.stopped_for if known.state is Target.STOPPING else End.LOST
        outcome = Outcome(end=end, started_at=known.started_at, ended_at=now.wall, reason="it left no exit record")
        return self._saved(store, ended(known, TargetEvent.LOST, outcome, now), known)

    def _absent(self, store: Store, known: Attempt, now: Now, *, vain: bool) -> list[Effect]:
        """`vain`: its backend began to start it, and ended it."""
        if known.stopped_for in NEVER_LET_IN:
            return self._stop(store, known, known.stopped_for, now)
        # Its tries were looks at it, and say nothing of how often it was handed over in vain.
        tries = VAIN_TRIES * known.vain
        had = replace(known, handle=known.handle or UNNAMED, tries=tries, vain=known.vain + vain)
        if vain and had.vain >= MOST_VAIN:
            why = f"{known.pool} ended it {had.vain} times before it began, as when a prolog fails"
            return self._stop(store, replace(had, why=why), End.NODE_FAIL, now)
        return self._saved(store, again(had, "the backend does not have it", now), known, told=False)

    def forgotten(self, store: Store, key: Key) -> list[Effect]:
        """The backend has dropped its output."""
        known = store.attempt(key)
        if known is None or known.state is not Target.RELEASED:
            return []
        return self._saved(store, replace(known, due_at=None), known, told=False)

    def inputs_here(self, store: Store, key: Key, now: Now) -> list[Effect]:
        known = store.attempt(key)
        if known is None or known.state is not Target.STAGING:
            return []
        return self._saved(store, known.on(TargetEvent.INPUTS_HERE, due_at=now.wall), known)

    # -- what is due

    def due(self, store: Store, now: Now) -> list[Effect]:
        """One pass, over at most MOST_DUE attempts."""
        effects: list[Effect] = []
        looks: dict[str, list[Key]] = {}
        self._wake(store, now)
        due = store.due_attempts(now.wall, MOST_DUE)
        self.more_due = len(due) == MOST_DUE
        for attempt in due:
            if attempt.state is Target.READY:
                effects += self._hand_over(store, attempt, now)
                continue
            stopping, released = attempt.state is Target.STOPPING, attempt.state is Target.RELEASED
            wait_s = retry_s(attempt.tries) if stopping or released else poll_s(attempt.tries)
            if stopping:
                effects.append(Fence(pool=attempt.pool, key=attempt.key))
            if released:
                effects.append(Forget(pool=attempt.pool, key=attempt.key))
            else:
                looks.setdefault(attempt.pool, []).append(attempt.key)
            later = replace(attempt, due_at=now.wall + wait_s, tries=attempt.tries + 1)
            self._saved(store, later, attempt, told=False)
        effects += [Look(pool=pool, keys=tuple(keys)) for pool, keys in looks.items()]
        if now.mono >= self._leases_at:
            self._leases_at = now.mono + LEASE_CHECK_S
            effects += self._end_leases(store, now)
        for orphan in self._orphans.found(store, now):
            if orphan.origin in self.house.guests:
                effects.append(self._answer(store, orphan))  # does it know of it?
            else:
                effects += [LetGo(site=orphan.origin, key=orphan.key), *self._let_go(store, orphan, now)]
        return effects

    def forget(self, store: Store, now: Now) -> int:
        return store.forget_released(now.wall - TOMBSTONE_S, now.wall - REFUSED_S, MOST_DUE)

    def _hand_over(self, store: Store, attempt: Attempt, now: Now) -> list[Effect]:
        """A pool that is no more takes nothing; but what it was given before, and forgot, it may remember yet."""
        spec = store.attempt_spec(attempt.key)
        if spec is None or attempt.pool not in self.house.pools:
            why = f"pool {attempt.pool} is no more"
            if attempt.handle:
                doubted = replace(attempt, stopped_for=End.REFUSED, why=why, misses=0)
                doubted = doubted.on(TargetEvent.HANDED, due_at=now.wall + ASK_S)
                return [*self._saved(store, doubted, attempt), Look(pool=attempt.pool, keys=(attempt.key,))]
            outcome = Outcome(end=End.REFUSED, ended_at=now.wall, reason=why)
            handed = attempt.on(TargetEvent.HANDED)
            return self._saved(store, ended(handed, TargetEvent.REJECTED, outcome, now), attempt)
        handed = attempt.on(TargetEvent.HANDED, due_at=now.wall + HANDING_S, misses=0)
        self._saved(store, handed, attempt, told=False)
        return [HandOver(pool=attempt.pool, key=attempt.key, spec=spec, user=attempt.user)]

    def _end_leases(self, store: Store, now: Now) -> list[Effect]:
        effects: list[Effect] = []
        for origin, silence_s in self._silences.of_open(store, now):
            for attempt in store.leases_over_from(origin, silence_s, MOST_DUE):
                effects += self._stop(store, attempt, End.LEASE, now)
        return effects

    def _stop(self, store: Store, attempt: Attempt, why: End, now: Now) -> list[Effect]:
        due_at = now.wall + retry_s(0)
        stopping = attempt.on(TargetEvent.STOP, stopped_for=why, due_at=due_at, tries=0, misses=0)
        return [*self._saved(store, stopping, attempt), Fence(pool=attempt.pool, key=attempt.key)]
