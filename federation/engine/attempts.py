"""Small steps of an attempt at its target, and the waits between them."""

from federation.model.job import Attempt
from federation.model.messages import Record
from federation.model.states import Outcome, TargetEvent
from federation.ports import Now

FIRST_RETRY_S, MOST_RETRY_S = 1.0, 300.0
FIRST_POLL_S, MOST_POLL_S = 2.0, 30.0
ASK_S = 2.0  # until a backend is asked about what it did not answer
ROOM_POLL_S = 5.0  # until a full pool is tried again, when no end of a job there is heard
ROOM_POLLS_PER_S = 2.0  # of one pool when many wait for it


def record(attempt: Attempt) -> Record:
    return Record(
        key=attempt.key,
        revision=attempt.revision,
        state=attempt.state,
        outcome=attempt.outcome,
        started_at=attempt.started_at,
        signals=attempt.signals,
        why=attempt.why,
    )


def retry_s(tries: int) -> float:
    return min(FIRST_RETRY_S * (1 << min(tries, 16)), MOST_RETRY_S)


def poll_s(tries: int) -> float:
    """Between looks at what a backend has: short ones at first, for short jobs."""
    return min(FIRST_POLL_S * (1 << min(tries, 16)), MOST_POLL_S)


def room_poll_s(waiting: int) -> float:
    return min(max(ROOM_POLL_S, waiting / ROOM_POLLS_PER_S), MOST_RETRY_S)


def again(known: Attempt, why: str, now: Now) -> Attempt:
    due_at = now.wall + retry_s(known.tries)
    return known.on(TargetEvent.NOT_SUBMITTED, due_at=due_at, tries=known.tries + 1, misses=0, why=why)


def ended(known: Attempt, event: TargetEvent, outcome: Outcome, now: Now) -> Attempt:
    return known.on(event, outcome=outcome, due_at=None, ended_at=outcome.ended_at or now.wall, lease_s=None)
