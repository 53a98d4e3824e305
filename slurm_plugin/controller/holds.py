"""Releasing the pool's jobs that Slurm has put on hold for a class of which nothing was published.

A job with the wait partition in its list never gets there; one whose list somebody has changed does, and Slurm leaves
it held for good (reason BadConstraints, priority 0), also when its class is there again. What a user or an admin holds
has another reason, and Slurm is asked for that once more before each release: it is never touched.

Crash: the next controller finds the job as this one did.
"""

import asyncio
import logging
from collections.abc import Callable

from slurm_plugin.controller.desk import Desk
from slurm_plugin.errors import SlurmError
from slurm_plugin.history import Entry, What
from slurm_plugin.model import RunKey
from slurm_plugin.ports import GresItem, QueuedJob, Slurm

log = logging.getLogger(__name__)

REASON = "BadConstraints"
PATIENCE_S = 3.0  # a job must be found so for so long: somebody may be at work on it
FIRST_PAUSE_S = 10.0  # after the first release, twice as long after each further one
LONGEST_PAUSE_S = 3600.0
TIMES = 10  # then it is for `vgpu doctor` to tell of
AT_ONCE = 100  # releases for one pass


class Holds:
    def __init__(self, desk: Desk, slurm: Slurm, note: Callable[[Entry], None]) -> None:
        self._desk = desk
        self._slurm = slurm
        self._note = note
        self._due: dict[int, float] = {}  # by job: when to act
        self._times: dict[int, int] = {}  # by job: how often it was released
        self._some = asyncio.Event()

    def see(self) -> None:
        """What the last pass has read of Slurm."""
        now, jobs = self._desk.clock(), self._desk.books.jobs
        held = [job.job_id for job in jobs if self._is_held(job)]
        if held or self._due or self._times:
            there = {job.job_id for job in jobs}
            self._times = {job_id: times for job_id, times in self._times.items() if job_id in there}
            self._due = {job_id: self._due.get(job_id, now + self._pause_s(job_id)) for job_id in held}
        if self._ready():
            self._some.set()

    async def run(self) -> None:
        """For ever, whatever Slurm says."""
        while True:
            await self._some.wait()
            self._some.clear()
            for job in self._ready()[:AT_ONCE]:
                try:
                    await self._release(job)
                except SlurmError as error:
                    log.warning("hold.not_released", extra={"job": job.job_id, "error": str(error)})

    async def _release(self, job: QueuedJob) -> None:
        self._due.pop(job.job_id, None)
        self._times[job.job_id] = self._times.get(job.job_id, 0) + 1
        await self._slurm.release(RunKey(job_id=job.job_id, started_at=0, uid=job.uid), REASON)
        asked = ", ".join(f"{item.name}:{item.type}" for item in self._ours(job))
        why = f"job {job.job_id}: Slurm held it as {REASON}, and {asked} is there again"
        self._note(Entry(at=self._desk.clock(), what=What.RELEASED, why=why))

    def _ready(self) -> list[QueuedJob]:
        """Those whose time it is, and whom Slurm would not hold again at once."""
        due = {job_id for job_id, at in self._due.items() if at <= self._desk.clock()}
        if not due:
            return []
        names = self._desk.config.gres
        published = {
            item.type
            for node in self._desk.books.nodes.values()
            for item in node.gres
            if item.name == names.name and item.count
        }
        return [
            job
            for job in self._desk.books.jobs
            if job.job_id in due
            and (
                self._desk.config.wait_partition in job.partitions
                or all(item.type in published for item in self._ours(job))
            )
        ]

    def _is_held(self, job: QueuedJob) -> bool:
        config = self._desk.config
        ours = {*config.partitions, config.wait_partition}
        return (
            job.state == "PENDING"
            and not job.priority
            and job.reason == REASON
            and not job.on_nodes
            and not ours.isdisjoint(job.partitions)
            and any(item.type for item in self._ours(job))
            and self._times.get(job.job_id, 0) < TIMES
        )

    def _ours(self, job: QueuedJob) -> list[GresItem]:
        return [item for item in job.gres if item.name == self._desk.config.gres.name]

    def _pause_s(self, job_id: int) -> float:
        times = self._times.get(job_id, 0)
        return PATIENCE_S if not times else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (times - 1))
