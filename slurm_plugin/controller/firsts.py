"""Putting the jobs that a guarantee is for before those that Slurm would give its slices to.

Slurm starts the first job of a class, and knows nothing of what is promised to an account. Slices that are kept for one
are offered only when one of its jobs is the first, so such a job gets a priority just above that of the others.

Crash: a job has its new priority or the old one; the next controller finds it as this one did.
"""

import asyncio
import logging
from collections.abc import Mapping

from slurm_plugin.controller.desk import Desk
from slurm_plugin.errors import SlurmError
from slurm_plugin.model import RunKey
from slurm_plugin.ports import Slurm

log = logging.getLogger(__name__)

AT_ONCE = 20  # jobs for one pass
AGAIN_S = 5.0  # until a job that is still behind others is put before them again
PRIORITY_MAX = 2**32 - 2  # Slurm's own


class Firsts:
    def __init__(self, desk: Desk, slurm: Slurm) -> None:
        self._desk = desk
        self._slurm = slurm
        self._wanted: Mapping[int, int] = {}
        self._done: dict[tuple[int, int], float] = {}  # by job and array element: when it was put first
        self._some = asyncio.Event()

    def see(self, first: Mapping[int, int]) -> None:
        """What the last pass found: job -> priority."""
        self._wanted = first if self._desk.has_agents else {}
        self._done = {one: at for one, at in self._done.items() if one[0] in first}
        if self._wanted:
            self._some.set()

    async def run(self) -> None:
        """For ever, whatever Slurm says."""
        while True:
            await self._some.wait()
            self._some.clear()
            now, wanted = self._desk.clock(), self._wanted
            for job in [job for job in self._desk.books.jobs if job.job_id in wanted][:AT_ONCE]:
                one = (job.job_id, job.first_task)
                if self._done.get(one, -AGAIN_S) + AGAIN_S > now:
                    continue
                self._done[one] = now
                run = RunKey(job_id=job.job_id, started_at=0, uid=job.uid)
                try:
                    await self._slurm.put_first(run, min(PRIORITY_MAX, wanted[job.job_id]), job.first_task)
                except SlurmError as error:
                    log.warning("job.not_put_first", extra={"job": job.job_id, "error": str(error)})
                self._desk.wake.set()
