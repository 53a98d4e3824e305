"""PURE: one job of Slurm's that runs elsewhere, as it is on record here, and how its ends are told apart.

A burst ties Slurm's job to the federation's, which is its *token*. It is OPEN from before the job is first handed over
until Slurm has the job's end on its own record, so that nothing that Slurm starts again in between runs twice: a run
that finds an open burst of the same job *reattaches* to what runs. STOPPING is a burst whose token is being cancelled,
and a new run waits; CLOSED is over on both sides.

A JobId is no identity: a slurmctld that was killed hands it out again. A run is of the same job when user and array
place are the same, and when Slurm either counts more restarts than we know, or as many with the same submission: a
requeue brings a new SubmitTime with a new count, and a slurmctld that forgot a start brings neither.

Who ended a job is told by Slurm's state when the proxy hears a signal of its slurmstepd's:

    COMPLETING, one more restart    the user (or a preemption) requeued it
    COMPLETING, reason TimeLimit    its time is over
    COMPLETING, or over             it was cancelled
    RUNNING                         a plain signal
    SUSPENDED, on TSTP              suspended; RUNNING, on CONT: resumed
    waiting, or another run of it   Slurm lost this run: what runs goes on, and the next run reattaches
    not known, or no answer         nothing: `without_proxy` tells once Slurm does

A signal of anybody else's means that the gateway goes down: nothing, too.
"""

import signal as signals
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from federation.executors.slurm_states import is_over
from federation.model.states import End, Outcome

LOOKS = 3  # of a slurmctld that answers and does not know a job: then it has forgotten it
MINUTE_S = 60  # Slurm counts limits in minutes
SLACK_S = 5  # a job's end at home is this much later than where it runs: that one has the word
SOON_S, LATE_S = 60, 300  # an end in Slurm that comes so soon is put off by so much, while it is not known to be due
KEEP_BYTES = 1 << 20  # of a stream, between two times that it is written down how far it has come
AHEAD_BYTES = 3 << 20  # that may be in the job's file beyond that: those, what is on its way, and as much once more
TIMED_OUT_CODE = 124  # of an exit, where Slurm does not say TIMEOUT in the end
OUT_OF_MEMORY_CODE = 137  # as a shell tells of a process that was killed; Slurm's own 0:125 is no exit
LOST_CODE = 1

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_TIMES = frozenset({"TIMEOUT", "DEADLINE"})
_SLURMS = frozenset({signals.SIGTERM, signals.SIGTSTP, signals.SIGCONT})  # of an end or a suspension, or a user's


class Phase(StrEnum):
    OPEN = "open"
    STOPPING = "stopping"
    CLOSED = "closed"


class Ends(StrEnum):
    """What a signal, or Slurm's record, means for what runs elsewhere."""

    NOTHING = "nothing"
    CANCEL = "cancel"
    REQUEUE = "requeue"
    TIMEOUT = "timeout"
    SIGNAL = "signal"
    SUSPEND = "suspend"
    RESUME = "resume"


class Claim(StrEnum):
    """What a proxy that says hello is to be given."""

    NEW = "new"  # nothing of this job is open: a new token
    REATTACH = "reattach"  # to what runs
    WAIT = "wait"  # for the old attempt, which is being stopped
    REUSED = "reused"  # the id was another job's: that one is to be stopped first
    STALE = "stale"  # of a run that Slurm has given up
    ENDED = "ended"  # Slurm is ending the job, of which nothing has begun


class Way(StrEnum):
    """How the job is to end in Slurm."""

    EXIT = "exit"  # the proxy exits with this code
    SIGNAL = "signal"  # the proxy ends itself by this signal
    TIMEOUT = "timeout"  # Slurm's own limit is shortened until it says so
    REQUEUE = "requeue"  # as Slurm does with a job whose node failed
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job as Slurm tells of it now. No text of a user's is in it."""

    job_id: int
    array_id: int = 0  # 0: it is in no array
    task_id: int = -1  # -1: it is no single element of one
    uid: int
    state: str  # Slurm's long name
    reason: str = ""
    partitions: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    submitted_at: int  # Unix seconds; of the requeue when it was requeued
    started_at: int = 0  # of this run; 0: it waits
    limit_s: int = 0  # 0: none
    batch: bool = True
    requeue: bool = True  # Slurm may start it again
    note: str = ""  # what overflow has written on it
    comment: str = ""  # all that admins, and what works for them, have

    @property
    def name(self) -> str:
        """What Slurm's commands call exactly this job. An array's last element has the array's own id."""
        return f"{self.array_id}_{self.task_id}" if self.array_id and self.task_id >= 0 else str(self.job_id)

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def lives(self) -> bool:
        """It waits or runs, and Slurm lets its record be changed."""
        return not self.over and self.state != "COMPLETING"

    @property
    def over(self) -> bool:
        """Nothing of it runs here or will, unless somebody requeues it."""
        return is_over(self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """`token` is the federation's job. Times are by this site's clock, in Unix seconds."""

    token: UUID
    job_id: int
    array_id: int = 0
    task_id: int = -1
    uid: int
    user: str
    submitted_at: int  # SubmitTime of the run that owns it now
    restarts: int  # likewise
    started_at: int  # likewise
    node: str
    pool: str  # SITE/POOL
    limit_s: int  # the user's own time limit; 0: none
    phase: Phase = Phase.OPEN
    stdout_base: int = 0  # bytes of the job's file that are none of its stream, less the next two
    stderr_base: int = 0
    began_at: int = 0  # when its start elsewhere was first seen; 0: it waits there
    told: int = 0  # what Slurm was told of its time last: seconds of a limit, or when it ends; 0: nothing
    suspended: bool = False  # what runs elsewhere was told to stop for a while
    partitions: tuple[str, ...] = ()  # that it asked for, once it was pinned to ours; (): it never was
    closed_at: int = 0
    why: str = ""
    written: bool = False  # its proxy has written all that the job wrote
    stdout_own: int = 0  # bytes that its proxy has written there itself
    stderr_own: int = 0
    stdout_acked: int = 0  # bytes of the stream that are in the job's file, as far as is written down
    stderr_acked: int = 0
    stdout_most: int = AHEAD_BYTES  # and that may be
    stderr_most: int = AHEAD_BYTES
    script: bytes = b""  # a digest of what it runs, arguments too; empty of one from before this was written down

    @property
    def name(self) -> str:
        return f"{self.array_id}_{self.task_id}" if self.array_id and self.task_id >= 0 else str(self.job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A signal that a proxy got. `restarts`: of the run that it is the proxy of."""

    signal: int
    from_stepd: bool
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    way: Way
    value: int = 0  # an exit code, or a signal


def same_job(burst: Burst, job: SlurmJob) -> bool:
    """Whether what Slurm has under this id is the burst's job."""
    if (job.uid, job.array_id, job.task_id) != (burst.uid, burst.array_id, burst.task_id):
        return False
    if job.restarts == burst.restarts:
        return job.submitted_at == burst.submitted_at
    return job.restarts > burst.restarts and job.submitted_at >= burst.submitted_at


def same_run(burst: Burst, seen: Burst) -> bool:
    """Whether the run that owned it when it was `seen` still does."""
    mine, its = ((one.restarts, one.submitted_at, one.started_at) for one in (burst, seen))
    return mine == its


def claim(burst: Burst | None, job: SlurmJob, restarts: int) -> Claim:
    """For the proxy of the run with so many restarts; `burst` is what is not CLOSED of this id."""
    if burst is None and job.state == "COMPLETING":
        return Claim.ENDED
    if restarts != job.restarts or job.waits or job.over:
        return Claim.STALE
    if burst is None:
        return Claim.NEW
    if burst.phase is Phase.STOPPING:
        return Claim.WAIT
    return Claim.REATTACH if same_job(burst, job) else Claim.REUSED


def reattached(burst: Burst, job: SlurmJob, node: str) -> Burst:
    """The same, owned by the run that Slurm has now."""
    run = replace(burst, restarts=job.restarts, submitted_at=job.submitted_at, started_at=job.started_at, node=node)
    if run == burst:
        return burst
    stdout_base, stderr_base = burst.stdout_base + burst.stdout_own, burst.stderr_base + burst.stderr_own
    return replace(run, told=0, stdout_base=stdout_base, stderr_base=stderr_base, stdout_own=0, stderr_own=0)


def closed(burst: Burst, now: int, job: SlurmJob | None) -> Burst:
    """Over on both sides. `job` goes on in Slurm with a limit and partitions that are not its user's: None, if not."""
    if job is None:
        return replace(burst, phase=Phase.CLOSED, closed_at=now, told=0, partitions=())
    return replace(burst, phase=Phase.CLOSED, closed_at=now, told=job.limit_s)


def begins_at(extra: int, acked: int, most: int) -> int:
    """The byte of its stream that a new proxy is to have first, whose file has `extra` bytes more than the job found.

    Less than is known to be there: the file was emptied, and all is written to it anew. More than there may be: others
    write to it, too, and how much is the job's, only what was acknowledged tells.
    """
    return max(0, extra) if extra < acked else extra if extra <= most else acked


def stopping(burst: Burst, why: str) -> Burst:
    return replace(burst, phase=Phase.STOPPING, why=why)


def verdict(heard: Heard, job: SlurmJob | None, *, known: bool) -> Ends:
    """What a signal means. `job` is what Slurm says once it was heard; not `known`: Slurm did not answer."""
    if not heard.from_stepd:
        return Ends.NOTHING
    if heard.signal not in _SLURMS and not known:
        return Ends.SIGNAL  # of no end's: nothing but a user's word
    if job is None or not known or job.waits:
        return Ends.NOTHING
    if job.state == "COMPLETING" or job.over:
        return _ended(heard, job) if heard.signal == signals.SIGTERM else Ends.NOTHING
    if job.restarts != heard.restarts:
        return Ends.NOTHING
    suspended = job.state == "SUSPENDED"
    if heard.signal == signals.SIGCONT:
        return Ends.NOTHING if suspended else Ends.RESUME
    return Ends.SUSPEND if suspended and heard.signal == signals.SIGTSTP else Ends.SIGNAL


def _ended(heard: Heard, job: SlurmJob) -> Ends:
    if job.restarts == heard.restarts + 1 and not job.over:
        return Ends.REQUEUE
    if job.restarts != heard.restarts:
        return Ends.NOTHING
    return Ends.TIMEOUT if job.reason == "TimeLimit" or job.state in _TIMES else Ends.CANCEL


def without_proxy(burst: Burst, job: SlurmJob | None, looks: int) -> Ends:
    """What Slurm's record alone means. `looks`: answers in a row that did not know the job, this one too."""
    if job is None:
        return Ends.CANCEL if looks >= LOOKS else Ends.NOTHING
    if not same_job(burst, job):
        return Ends.CANCEL
    if not job.over:
        return Ends.NOTHING
    return Ends.TIMEOUT if job.state in _TIMES else Ends.CANCEL


def left_behind(burst: Burst, job: SlurmJob) -> bool:
    """The run that owns it is over, and its job waits or runs anew."""
    return job.waits or (job.lives and (job.restarts, job.started_at) != (burst.restarts, burst.started_at))


def to_suspend(burst: Burst, job: SlurmJob) -> bool | None:
    """Whether what runs elsewhere is to stop for a while, or to go on; None: it does as it should."""
    wanted = job.state == "SUSPENDED"
    return wanted if wanted != burst.suspended and (wanted or job.state == "RUNNING") else None


def to_pin(burst: Burst, job: SlurmJob, partition: str) -> bool:
    """Slurm put it back, and could start it where no proxy is while an attempt of it lives."""
    return burst.phase is not Phase.CLOSED and job.waits and same_job(burst, job) and job.partitions != (partition,)


def longest(burst: Burst, longest_wait_s: int) -> int:
    """The limit of a job that waits elsewhere, in seconds: the user's and the longest wait. 0: the user has none."""
    return _minutes(burst.limit_s + longest_wait_s) if burst.limit_s else 0


def ends_at(burst: Burst) -> int:
    """When Slurm is to end one that has begun elsewhere, a little after that place does. 0: the user has no limit."""
    return burst.began_at + burst.limit_s + SLACK_S if burst.limit_s and burst.began_at else 0


def put_off(burst: Burst, now: int, longest_wait_s: int) -> int:
    """The same of one whose end there may be one that is not known here yet, or whose output is on its way."""
    told = max(ends_at(burst), burst.told)  # what it was told before it began was seconds, and is less
    return told if told > now + SOON_S else max(told, min(now + LATE_S, ends_at(burst) + longest_wait_s))


def shrunk(job: SlurmJob, now: int) -> int:
    """A limit, in seconds, that is over now: a job has one of whole minutes, and its end moves by what that does."""
    return max(MINUTE_S, (now - job.started_at) // MINUTE_S * MINUTE_S)


def _minutes(seconds: int) -> int:
    return -(-seconds // MINUTE_S) * MINUTE_S


def ending(outcome: Outcome) -> Ending:
    """How a job that ended so elsewhere ends in Slurm."""
    match outcome.end:
        case End.EXITED:
            return Ending(way=Way.EXIT, value=outcome.exit_code or 0)
        case End.SIGNALED:
            return Ending(way=Way.SIGNAL, value=outcome.signal or signals.SIGKILL)
        case End.TIMEOUT:
            return Ending(way=Way.TIMEOUT, value=TIMED_OUT_CODE)
        case End.OUT_OF_MEMORY:
            return Ending(way=Way.EXIT, value=OUT_OF_MEMORY_CODE)
        case End.NODE_FAIL | End.PREEMPTED:
            return Ending(way=Way.REQUEUE, value=LOST_CODE)
        case End.CANCELLED | End.LEASE:
            return Ending(way=Way.CANCEL, value=LOST_CODE)
    return Ending(way=Way.EXIT, value=LOST_CODE)
