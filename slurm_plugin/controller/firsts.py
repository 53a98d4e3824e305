"""Putting the jobs that a guarantee is for before those that Slurm would give its slices to.

Slurm starts the first job of a class, and knows nothing of what is promised to an account. Slices that are kept for one
are offered only when one of its jobs is the first, so such a job gets a priority just above that of the others.

Crash: a job has its new priority or the old one; the next controller finds it as this one did.
"""

import logging
from collections.abc import Mapping

from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.due import Due, Terms
from slurm_plugin.errors import SlurmError
from slurm_plugin.model import RunKey
from slurm_plugin.ports import QueuedJob, Slurm

log = logging.getLogger(__name__)

AT_ONCE = 20  # jobs for one pass
AGAIN_S = 5.0  # until a job that is still behind others is put before them again
PRIORITY_MAX = 2**32 - 3  # of those above it, Slurm takes one for no change and one for a release

_Element = tuple[int, int]  # job, and of an array the element


class Firsts:
    def __init__(self, desk: Desk, slurm: Slurm) -> None:
        self._desk = desk
        self._slurm = slurm
        self._wanted: Mapping[int, int] = {}
        self._jobs: dict[_Element, QueuedJob] = {}
        self._due: Due[_Element] = Due(Terms(pause_s=AGAIN_S, at_once=AT_ONCE), desk.tick, lambda one: one[0])

    def see(self, first: Mapping[int, int]) -> None:
        """What the last pass found: job -> priority."""
        wanted = first if self._desk.has_agents else {}
        jobs = (job for job in self._desk.books.jobs if job.job_id in wanted) if wanted else ()
        self._wanted, self._jobs = wanted, {(job.job_id, job.first_task): job for job in jobs}
        self._due.see(self._jobs, first.keys)

    async def run(self) -> None:
        """For ever, whatever Slurm says."""
        await self._due.run(self._put, self._refused)

    async def _put(self, one: _Element) -> None:
        job = self._jobs[one]
        run = RunKey(job_id=job.job_id, started_at=0, uid=job.uid)
        await self._slurm.put_first(run, min(PRIORITY_MAX, self._wanted[job.job_id]), job.first_task)
        self._desk.wake.set()

    def _refused(self, one: _Element, error: SlurmError) -> None:
        log.warning("job.not_put_first", extra={"job": one[0], "error": str(error)})
