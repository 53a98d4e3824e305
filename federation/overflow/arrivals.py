"""A run of a job that begins on a virtual node: which burst it is of. Synchronous, on the store's thread."""

from dataclasses import dataclass
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
        burst = reattached(burst, job, arrival.node)
    else:
        return what, burst
    save(store, burst)
    return what, burst


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
        stdout_base=arrival.stdout_size,
        stderr_base=arrival.stderr_size,
    )
