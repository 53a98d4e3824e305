"""What nobody tells the daemon of: jobs whose proxy never came, and jobs that were requeued after their end.

Of the first Slurm believes that they run on a virtual node. Their slurmd was killed as it launched them, or their
slurmstepd before its proxy said hello. Slurm misses them when their node registers next, in up to half an hour. Nothing
of theirs has run anywhere, so they are started again.

The note of the others still says that they may be running elsewhere, which kept it from being begun anew until Slurm
had its end on record, and could not be changed then. With that no node here would start it.

Crash: the next daemon waits for them anew.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from federation.model.job import Job
from federation.overflow.burst import Burst, Phase, SlurmJob, same_job
from federation.overflow.bursts import bursts_of
from federation.overflow.loop import Loop
from federation.overflow.notes import is_open, note, token_in
from federation.overflow.reconcile import Place
from federation.overflow.slurm_site import SlurmSite
from federation.ports import Now
from federation.runner import Runner
from federation.store.store import Store

log = logging.getLogger(__name__)

LOOK_S = 15.0  # between looks
UNHEARD_S = 150.0  # more than slurmd has to launch a job: BatchStartTimeout is 120 where `vgpu render` wrote it

Run = tuple[int, int, int]  # JobId, restarts, start


class Unheard:
    def __init__(self, runner: Runner, site: SlurmSite, place: Place, clock: Callable[[], Now]) -> None:
        self._runner, self._site, self._place, self._clock = runner, site, place, clock
        self._since: dict[Run, float] = {}  # when it was first seen so; monotonic
        self.loop = Loop("jobs whose proxy never came", self.look, lambda _: asyncio.sleep(LOOK_S))

    async def look(self) -> None:
        """Raises FedError: Slurm does not answer, or says no."""
        there = await self._site.jobs_on(self._place.partition)
        await self._close_notes([job for job in there if job.waits and is_open(job.note)])
        jobs = [job for job in there if self._is_alone(job)]
        if jobs:
            jobs = await self._runner.read(lambda store: [job for job in jobs if not _has_begun(store, job)])
        now = self._clock().mono
        unheard = {(job.job_id, job.restarts, job.started_at): job for job in jobs}
        self._since = {run: self._since.get(run, now) for run in unheard}
        for run, job in unheard.items():
            if now - self._since[run] >= UNHEARD_S and job == await self._site.job(job.job_id):
                self._since[run] = now
                log.warning("job.unheard_of", extra={"job": job.name, "nodes": ",".join(job.nodes)})
                await self._site.requeue(job)

    async def _close_notes(self, jobs: Sequence[SlurmJob]) -> None:
        """Slurm holds a job back for two minutes once it is requeued: each is found before it could start."""
        known = await self._runner.read(lambda store: [_over(store, job) for job in jobs]) if jobs else []
        for job, over in zip(jobs, known, strict=True):
            if over is None:
                continue
            burst, fed = over
            log.info("burst.requeued", extra={"job": burst.name, "token": str(burst.token)})
            if burst.limit_s not in (0, job.limit_s):
                await self._site.set_limit(job.name, burst.limit_s)
            await self._site.note(burst, note(burst, fed))

    def _is_alone(self, job: SlurmJob) -> bool:
        here = job.state == "RUNNING" and all(map(self._place.serves, job.nodes))
        return here and not self._place.attended(job.job_id)


def _over(store: Store, job: SlurmJob) -> tuple[Burst, Job | None] | None:
    """What its note is of, where that is this job's last burst, and closed."""
    newest = next(iter(bursts_of(store, job.job_id)), None)
    if newest is None or newest.phase is not Phase.CLOSED or not same_job(newest, job):
        return None
    return (newest, store.job(newest.token)) if token_in(job.note) == newest.token else None


def _has_begun(store: Store, job: SlurmJob) -> bool:
    """Anything of this run, or of a job before it that has to be ended first."""
    newest = next(iter(bursts_of(store, job.job_id)), None)
    if newest is None:
        return False
    mine = same_job(newest, job) and (newest.restarts, newest.started_at) == (job.restarts, job.started_at)
    return mine or newest.closed_at == 0
