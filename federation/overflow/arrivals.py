"""A run of a job that begins on a virtual node: which burst it is of. Synchronous, on the store's thread."""

from dataclasses import dataclass, replace
from uuid import UUID

from federation.overflow.burst import Burst, Claim, SlurmJob, claim, reattached
from federation.overflow.bursts import burst_of, bursts_of, save
from federation.store.store import Store

JUST_S = 2  # what Slurm said of a job may be older than the close of its last burst, which gave its limit back


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A proxy said hello, and Slurm has confirmed who it is. `restarts`: of the run that it is the proxy of."""

    job: SlurmJob
    restarts: int
    node: str
    pool: str  # SITE/POOL
    user: str
    stdout_size: int = 0
    stderr_size: int = 0
    stdout_own: int = 0  # bytes of those that this proxy has written itself
    stderr_own: int = 0
    welcomed: bool = False  # before: it knows how far it is in the job's streams


def arrive(store: Store, arrival: Arrival, token: UUID, now: int) -> tuple[Claim, Burst | None]:
    """What its proxy gets, and of which burst; that is on record. `token`: of a new one."""
    job, burst = arrival.job, burst_of(store, arrival.job.job_id)
    what = claim(burst, job, arrival.restarts)
    if what is Claim.NEW:
        before = bursts_of(store, job.job_id)[:1]
        if before and now - JUST_S < before[0].closed_at <= now:
            return Claim.WAIT, before[0]
        burst = _new(arrival, token)
    elif what is Claim.REATTACH and burst is not None:
        burst = _with_files(reattached(burst, job, arrival.node), arrival)
    else:
        return what, burst
    save(store, burst)
    return what, burst


def _with_files(burst: Burst, arrival: Arrival) -> Burst:
    """As they are now. One that has less than it had before the job is another: all is written to it anew."""
    burst = replace(burst, stdout_own=arrival.stdout_own, stderr_own=arrival.stderr_own)
    if arrival.welcomed:
        return burst
    stdout_base = max(0, min(burst.stdout_base, arrival.stdout_size - arrival.stdout_own))
    stderr_base = max(0, min(burst.stderr_base, arrival.stderr_size - arrival.stderr_own))
    return replace(burst, stdout_base=stdout_base, stderr_base=stderr_base)


def _new(arrival: Arrival, token: UUID) -> Burst:
    job = arrival.job
    return Burst(
        token=token,
        job_id=job.job_id,
        array_id=job.array_id,
        task_id=job.task_id,
        uid=job.uid,
        user=arrival.user,
        submitted_at=job.submitted_at,
        restarts=job.restarts,
        started_at=job.started_at,
        node=arrival.node,
        pool=arrival.pool,
        limit_s=job.limit_s,
        stdout_base=max(0, arrival.stdout_size - arrival.stdout_own),
        stderr_base=max(0, arrival.stderr_size - arrival.stderr_own),
        stdout_own=arrival.stdout_own,
        stderr_own=arrival.stderr_own,
    )
