"""A run of a job that begins on a virtual node: which burst it is of. Synchronous, inside a transaction."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from federation.model.job import Job
from federation.overflow.burst import Burst, Claim, SlurmJob, claim, closed, left_behind, reattached, same_job
from federation.overflow.bursts import OVER, burst_of, bursts_of, save
from federation.store.store import Store

MOST_OTHERS = 100  # jobs that had an id before, and are looked at
_START, _DIGITS = b"SLURM_JOB_START_TIME", 12
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
    began_at: int = 0  # when its run began, as Slurm told it; 0: this Slurm, before 23.02, does not
    script: bytes = b""  # a digest, as a burst's


def began_at(env: Iterable[tuple[bytes, bytes]]) -> int:
    """Of a proxy's environment. A submitter's own variable of that name is no harm: see `arrive`."""
    said = next((value for name, value in env if name == _START), b"")
    return int(said) if said.isdigit() and len(said) <= _DIGITS else 0


def arrive(store: Store, arrival: Arrival, token: UUID, now: int) -> tuple[Claim, Burst | None]:
    """What its proxy gets, and of which burst; that is on record. `token`: of a new one."""
    job, burst = arrival.job, burst_of(store, arrival.job.job_id)
    if arrival.began_at not in (0, job.started_at) and _of_another(store, arrival):
        return Claim.STALE, None
    what = claim(burst, job, arrival.restarts)
    if what is Claim.WAIT and burst is not None and _goes_on(burst, job) and is_over(store.job(burst.token)):
        before = closed(burst, now, job)
        save(store, before)
        what, burst = Claim.NEW, _new(arrival, token, before)
    elif what is Claim.NEW:
        found = bursts_of(store, job.job_id)[:1]
        if found and now - JUST_S < found[0].closed_at <= now:
            return Claim.WAIT, found[0]
        burst = _new(arrival, token, found[0] if found else None)
    elif what is Claim.REATTACH and burst is not None:
        if not _same(burst, arrival):
            return Claim.REUSED, burst
        burst = _with_files(reattached(burst, job, arrival.node), arrival)
    else:
        return what, burst
    save(store, burst)
    return what, burst


def _same(burst: Burst, arrival: Arrival) -> bool:
    """The same job: Slurm gives it the same script each time. Once requeued, all else may be another's."""
    scripts = {burst.script, arrival.script} - {b""}
    return same_job(burst, arrival.job) and len(scripts) <= 1


def is_over(fed: Job | None) -> bool:
    """Nothing of it runs anywhere."""
    return fed is None or fed.state in OVER


def _goes_on(burst: Burst, job: SlurmJob) -> bool:
    """The run that owns it should have been ended, and who was to tell Slurm, or its proxy, was gone before."""
    return job.lives and same_job(burst, job) and not left_behind(burst, job)


def _of_another(store: Store, arrival: Arrival) -> bool:
    """Its run is one of a job that had this id before, and that slurmctld forgot: its proxy lives for a while yet."""
    others = bursts_of(store, arrival.job.job_id)[:MOST_OTHERS]
    return any(one.started_at == arrival.began_at and not same_job(one, arrival.job) for one in others)


def _with_files(burst: Burst, arrival: Arrival) -> Burst:
    """As they are now. One that has less than it had before the job is another: all is written to it anew."""
    burst = replace(burst, stdout_own=arrival.stdout_own, stderr_own=arrival.stderr_own)
    if arrival.welcomed:
        return burst
    stdout_base = max(0, min(burst.stdout_base, arrival.stdout_size - arrival.stdout_own))
    stderr_base = max(0, min(burst.stderr_base, arrival.stderr_size - arrival.stderr_own))
    return replace(burst, stdout_base=stdout_base, stderr_base=stderr_base, written=False)


def _new(arrival: Arrival, token: UUID, before: Burst | None) -> Burst:
    """What its user asked for of a job whose burst before was closed while it went on is on record in that one."""
    job = arrival.job
    mine = before if before is not None and _same(before, arrival) else None
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
        limit_s=mine.limit_s if mine is not None and mine.told == job.limit_s else job.limit_s,
        partitions=mine.partitions if mine is not None else (),
        stdout_base=max(0, arrival.stdout_size - arrival.stdout_own),
        stderr_base=max(0, arrival.stderr_size - arrival.stderr_own),
        stdout_own=arrival.stdout_own,
        stderr_own=arrival.stderr_own,
        script=arrival.script,
    )
