"""What `fed sacct` tells: the runs elsewhere of jobs of the Slurm here, as numbers."""

from collections.abc import Sequence

from federation.access.local import Caller
from federation.desk.overflow import slurm_job
from federation.desk.view import RunList, RunView
from federation.errors import Refused
from federation.model.job import Job
from federation.overflow.burst import Burst, Phase
from federation.overflow.bursts import bursts_of, bursts_of_array, newest_bursts, others_newest
from federation.overflow.notes import state_of
from federation.runner import Runner
from federation.store.store import Store

MOST_NAMES = 1000  # of one question


async def runs(runner: Runner, caller: Caller, names: Sequence[str], everybody: bool, most: int) -> RunList:
    """Newest first: those of these jobs, or the caller's newest; an admin's question may be about everybody's.

    Raises Refused for what is no job's name. A job that never ran elsewhere has no line.
    """
    if len(names) > MOST_NAMES:
        raise Refused(f"{len(names)} jobs at once; {MOST_NAMES} are the most")
    wanted = [slurm_job(name) for name in names]
    user = "" if everybody and caller.admin else caller.user

    def read(store: Store) -> list[tuple[Burst, Job | None]]:
        if not wanted:
            found = newest_bursts(store, user, most)
        else:
            found = sorted({one.token: one for name in wanted for one in _of(store, *name)}.values(), key=_newest)
        mine = [one for one in found if caller.may_see(one.user)][:most]
        return [(one, store.job(one.token)) for one in mine]

    return RunList(runs=tuple(_view(burst, job) for burst, job in await runner.read(read, long=True)))


async def others(runner: Runner, caller: Caller) -> int:
    """Runs of which an admin who asked about his own was not told."""
    return await runner.read(lambda store: others_newest(store, caller.user), long=True) if caller.admin else 0


def _of(store: Store, job_id: int, task: int) -> list[Burst]:
    if task >= 0:
        return bursts_of_array(store, job_id, task)
    return [*bursts_of(store, job_id), *bursts_of_array(store, job_id)]


def _newest(burst: Burst) -> int:
    return -burst.token.int


def _view(burst: Burst, job: Job | None) -> RunView:
    outcome = job.outcome if job else None
    return RunView(
        job=burst.name,
        token=str(burst.token),
        attempt=job.attempt if job else 0,
        user=burst.user,
        pool=burst.pool,
        gateway=burst.node,
        state=state_of(job),
        submitted_at=float(burst.submitted_at),
        began_at=float(burst.started_at),
        started_at=outcome.started_at if outcome else job.started_at if job else None,
        ended_at=outcome.ended_at if outcome else None,
        end=outcome.end.value if outcome else "",
        exit_code=outcome.exit_code if outcome else None,
        signal=outcome.signal if outcome else None,
        node=outcome.node if outcome else "",
        cpu_s=outcome.cpu_s if outcome else None,
        memory_mib=outcome.memory_mib if outcome else None,
        slices=outcome.slices if outcome else "",
        cost=round(job.cost, 4) if job else 0.0,
        limit_s=burst.limit_s,
        closed=burst.phase is Phase.CLOSED,
        why=burst.why or (job.why if job else ""),
    )
