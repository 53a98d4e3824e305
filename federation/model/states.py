"""The life of a job, on both sides, as one table.

A job has two records. The *origin's* is the job: it is made where the user submitted, and it is what the user is told.
The *target's* is one attempt to run it, at the site that was chosen; an attempt has a number, and a job has at most one
attempt that may run. Both records are durable before anybody hears of them.

At the origin a job waits in QUEUED. Once a pool is chosen, and that is durable, it is SENDING: from then on the target
may have it, whatever we hear. A submit without an answer makes it UNKNOWN, never failed; to ask again is harmless, as a
target that knows the attempt tells what became of it. What the target then says moves it to ACCEPTED and RUNNING.
An end comes from the target's record and nothing else, but for an admin's order about a target that can't be reached.
RESULTS_PENDING is a job that is over and whose output is still at the target, where it stays until it is fetched. DONE
is the only last state, and its outcome says how it went.
Silence changes nothing, unless the job's user chose a lease that says otherwise.

A cancel of a job that may be at a target makes it STOPPING, a requeue REQUEUING, until the target confirms that the
attempt is over. A refusal is over too: the target has written down that this attempt never runs there.

At the target an attempt is STAGING until its inputs are there, READY, then SUBMITTING. That is durable before the
backend hears of it, so after a crash the backend is asked first. PENDING waits in the backend, RUNNING has claimed the
attempt: an atomic create that the job's wrapper does before any code of the user's. Who loses the claim runs nothing.
So an attempt that the backend forgot *before* the claim is handed to it again, and one that is gone *after* it, without
a record of its exit, is lost. STOPPING takes the claim itself: if it gets it, the attempt never runs; else it stops
what runs. ENDED keeps outcome and output until the origin has them. RELEASED remembers only that this attempt is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from federation.errors import IllegalEvent


class Origin(StrEnum):
    QUEUED = "queued"
    SENDING = "sending"
    UNKNOWN = "outcome_unknown"
    ACCEPTED = "accepted"
    RUNNING = "running"
    STOPPING = "stopping"
    REQUEUING = "requeuing"
    RESULTS_PENDING = "results_pending"
    DONE = "done"


class OriginEvent(StrEnum):
    CHOSEN = "chosen"  # a pool, for the next attempt
    UNANSWERED = "unanswered"
    ACCEPTED = "accepted"
    REFUSED = "refused"  # this attempt never runs there
    STARTED = "started"
    ENDED = "ended"
    FORGOTTEN = "forgotten"  # the target has a new journal: it does not know what it knew
    CANCEL = "cancel"
    REQUEUE = "requeue"
    REPLACE = "replace"  # its lease ran out, or it was lost, and its user wants another attempt then
    FETCHED = "fetched"  # all results are here, durable
    GIVEN_UP = "given_up"  # they are gone, or not wanted any more; or its target is gone


class Target(StrEnum):
    STAGING = "staging"
    READY = "ready"
    SUBMITTING = "submitting"
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    RELEASED = "released"


class TargetEvent(StrEnum):
    INPUTS_HERE = "inputs_here"
    HANDED = "handed"  # about to be given to the backend
    SUBMITTED = "submitted"
    NOT_SUBMITTED = "not_submitted"  # certain: the backend does not have it, and nobody has claimed it
    REJECTED = "rejected"  # the backend refused it for good
    STARTED = "started"  # claimed
    EXITED = "exited"  # the exit is on record
    LOST = "lost"  # claimed, gone by two agreeing looks, no record of an exit
    STOP = "stop"
    FENCED = "fenced"  # we have the claim: it never runs
    RELEASE = "release"  # the origin has all it wants


_AT_TARGET = (Origin.SENDING, Origin.UNKNOWN, Origin.ACCEPTED, Origin.RUNNING)
_IN_BACKEND = (Target.READY, Target.SUBMITTING, Target.PENDING, Target.RUNNING)

ORIGIN: Mapping[tuple[Origin, OriginEvent], Origin] = MappingProxyType(
    {
        (Origin.QUEUED, OriginEvent.CHOSEN): Origin.SENDING,
        (Origin.QUEUED, OriginEvent.CANCEL): Origin.DONE,
        (Origin.SENDING, OriginEvent.UNANSWERED): Origin.UNKNOWN,
        (Origin.SENDING, OriginEvent.ACCEPTED): Origin.ACCEPTED,
        (Origin.UNKNOWN, OriginEvent.ACCEPTED): Origin.ACCEPTED,
        (Origin.SENDING, OriginEvent.REFUSED): Origin.QUEUED,
        (Origin.UNKNOWN, OriginEvent.REFUSED): Origin.QUEUED,
        (Origin.ACCEPTED, OriginEvent.REFUSED): Origin.QUEUED,
        (Origin.STOPPING, OriginEvent.REFUSED): Origin.DONE,
        (Origin.REQUEUING, OriginEvent.REFUSED): Origin.QUEUED,
        (Origin.SENDING, OriginEvent.STARTED): Origin.RUNNING,
        (Origin.UNKNOWN, OriginEvent.STARTED): Origin.RUNNING,
        (Origin.ACCEPTED, OriginEvent.STARTED): Origin.RUNNING,
        **{(state, OriginEvent.ENDED): Origin.RESULTS_PENDING for state in (*_AT_TARGET, Origin.STOPPING)},
        (Origin.REQUEUING, OriginEvent.ENDED): Origin.QUEUED,
        (Origin.ACCEPTED, OriginEvent.FORGOTTEN): Origin.UNKNOWN,
        (Origin.RUNNING, OriginEvent.FORGOTTEN): Origin.UNKNOWN,
        **{(state, OriginEvent.CANCEL): Origin.STOPPING for state in (*_AT_TARGET, Origin.REQUEUING)},
        **{(state, OriginEvent.REQUEUE): Origin.REQUEUING for state in _AT_TARGET},
        **{(state, OriginEvent.REPLACE): Origin.QUEUED for state in (*_AT_TARGET, Origin.REQUEUING)},
        (Origin.RESULTS_PENDING, OriginEvent.FETCHED): Origin.DONE,
        **{
            (state, OriginEvent.GIVEN_UP): Origin.DONE
            for state in (Origin.RESULTS_PENDING, *_AT_TARGET, Origin.STOPPING, Origin.REQUEUING)
        },
    }
)
"""Everything that may happen to a job at its origin."""

TARGET: Mapping[tuple[Target, TargetEvent], Target] = MappingProxyType(
    {
        (Target.STAGING, TargetEvent.INPUTS_HERE): Target.READY,
        (Target.READY, TargetEvent.HANDED): Target.SUBMITTING,
        (Target.SUBMITTING, TargetEvent.SUBMITTED): Target.PENDING,
        (Target.SUBMITTING, TargetEvent.NOT_SUBMITTED): Target.READY,
        (Target.PENDING, TargetEvent.NOT_SUBMITTED): Target.READY,
        (Target.SUBMITTING, TargetEvent.REJECTED): Target.ENDED,
        **{(state, TargetEvent.STARTED): Target.RUNNING for state in _IN_BACKEND if state is not Target.RUNNING},
        **{(state, TargetEvent.EXITED): Target.ENDED for state in (*_IN_BACKEND, Target.STOPPING)},
        **{(state, TargetEvent.LOST): Target.ENDED for state in (*_IN_BACKEND, Target.STOPPING)},
        **{(state, TargetEvent.STOP): Target.STOPPING for state in (Target.STAGING, *_IN_BACKEND)},
        (Target.STOPPING, TargetEvent.FENCED): Target.ENDED,
        (Target.ENDED, TargetEvent.RELEASE): Target.RELEASED,
    }
)
"""Everything that may happen to an attempt at its target."""

NEW_ATTEMPT = frozenset({OriginEvent.REFUSED, OriginEvent.REPLACE, OriginEvent.ENDED})
"""After these a job that is QUEUED again has used its attempt up: the next choice mints the next one."""

AT_TARGET = frozenset((*_AT_TARGET, Origin.STOPPING, Origin.REQUEUING))
"""States in which the target may have the job: each counts against the pool's capacity."""

OPEN = frozenset(Target) - {Target.ENDED, Target.RELEASED}
"""States of an attempt that take room at the target."""


def after(state: Origin, event: OriginEvent) -> Origin:
    """Raises IllegalEvent."""
    try:
        return ORIGIN[state, event]
    except KeyError:
        raise IllegalEvent(f"a job that is {state.value} can't be {event.value}") from None


def after_at_target(state: Target, event: TargetEvent) -> Target:
    """Raises IllegalEvent."""
    try:
        return TARGET[state, event]
    except KeyError:
        raise IllegalEvent(f"an attempt that is {state.value} can't be {event.value}") from None


class End(StrEnum):
    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    LEASE = "lease"  # stopped since its sites could not talk
    LOST = "lost"
    REFUSED = "refused"  # for good
    NO_ROOM = "no_room"  # now


NEVER_LET_IN = frozenset({End.REFUSED, End.NO_ROOM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt, or a job, ended. Sizes are those of its whole output, in bytes.

    From `node` on: what its wrapper found there, in a folder of the user's. Nothing is paid by it.
    """

    end: End
    exit_code: int | None = None
    signal: int | None = None
    started_at: float | None = None  # Unix seconds, by the target's clock; None: no code of the user's ran
    ended_at: float | None = None
    stdout_size: int = 0
    stderr_size: int = 0
    reason: str = ""
    node: str = ""  # where it ran
    cpu_s: float | None = None  # of all its processes; None: not known
    memory_mib: int | None = None  # the most at once
    slices: str = ""  # CUDA_VISIBLE_DEVICES there

    @property
    def wrote(self) -> bool:
        """Whether there may be output: of what left no exit record, what was seen of it may not be all."""
        unknown = self.started_at is not None and self.exit_code is None and self.signal is None
        return unknown or self.stdout_size + self.stderr_size > 0


def diagram() -> str:
    """Both tables as a Mermaid diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for side, table in (("origin", ORIGIN), ("target", TARGET)):
        lines.append(f"    state {side} {{")
        arrows: dict[tuple[str, str], list[str]] = {}
        for (state, event), following in table.items():
            arrows.setdefault((state.value, following.value), []).append(event.value)
        lines += [
            f"        {side}_{state} --> {side}_{following}: {', '.join(events)}"
            for (state, following), events in arrows.items()
        ]
        lines.append("    }")
    return "\n".join(lines) + "\n"
