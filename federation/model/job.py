"""The two records of a job, and the one way they change: an event that the tables allow, with what came with it."""

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from federation.model.spec import Lease
from federation.model.states import (
    NEW_ATTEMPT,
    End,
    Origin,
    OriginEvent,
    Outcome,
    Target,
    TargetEvent,
    after,
    after_at_target,
)
from federation.model.token import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The origin's record. `attempt` is the one that is or will be tried; `site` and `pool` are empty until chosen."""

    token: UUID
    state: Origin = Origin.QUEUED
    attempt: int = 1
    site: str = ""
    pool: str = ""
    user: str
    account: str = ""
    name: bytes = b""
    lease: Lease
    accepted_at: float  # Unix seconds, as all here that end so
    due_at: float | None  # when something is to be tried next; None: only what the target says goes on with it
    tries: int = 0  # of what is due, without success
    revision: int = 0  # of the newest record of this attempt that was taken in
    far: Target | None = None  # what that record said
    signals: int = 0  # sent to this attempt
    cost: float = 0.0  # reserved, or spent, against the account's budget of `cost_day`
    cost_day: int = 0  # days since 1970
    avoid: tuple[tuple[str, str], ...] = ()  # pools that refused it for good, and why
    reasons: tuple[tuple[str, str], ...] = ()  # of the last choice, one a pool
    why: str = ""  # one line for the user: why it is where it is
    started_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None

    @property
    def key(self) -> Key:
        return Key(self.token, self.attempt)

    def on(self, event: OriginEvent, **changes: Any) -> "Job":
        """What it is after this. A job that is QUEUED again is so for its next attempt. Raises IllegalEvent."""
        state = after(self.state, event)
        if state is Origin.QUEUED and event in NEW_ATTEMPT:
            fresh = {"attempt": self.attempt + 1, "site": "", "pool": "", "revision": 0, "far": None, "signals": 0}
            changes = fresh | {"started_at": None, "cost": 0.0, "tries": 0} | changes
        return replace(self, state=state, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The target's record of one attempt."""

    key: Key
    origin: str  # the site it came from
    pool: str
    user: str = ""  # here, as mapped; empty for one that was never let in
    state: Target
    revision: int = 0
    lease_s: float | None = None  # how long its origin may be silent
    due_at: float | None = None
    tries: int = 0
    misses: int = 0  # looks in a row that found it absent or gone
    handle: str = ""
    signals: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    stopped_for: End = End.CANCELLED  # why it is STOPPING
    why: str = ""
    input_bytes: int = 0  # kept here until it is RELEASED
    vain: int = 0  # times that its backend had it, and ended it before it began

    def on(self, event: TargetEvent, **changes: Any) -> "Attempt":
        """What it is after this. Raises IllegalEvent."""
        return replace(self, state=after_at_target(self.state, event), **changes)


def over(attempt: Attempt, outcome: Outcome) -> Outcome:
    """How an attempt ended, told by why it was being stopped where a signal is all that its exit shows."""
    if attempt.state is Target.STOPPING and outcome.end is End.SIGNALED:
        return replace(outcome, end=attempt.stopped_for)
    return outcome
