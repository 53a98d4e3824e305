"""Releasing the pool's jobs that Slurm has put on hold for a class of which nothing was published.

A job with the wait partition in its list never gets there; one whose list somebody has changed does, and Slurm leaves
it held for good (reason BadConstraints, priority 0), also when its class is there again. What a user or an admin holds
has another reason, and Slurm is asked for that once more before each release: it is never touched.

Crash: the next controller finds the job as this one did.
"""

import logging
from collections.abc import Callable

from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.due import Due, Terms
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
        self._jobs: dict[int, QueuedJob] = {}
        terms = Terms(
            patience_s=PATIENCE_S, pause_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S, times=TIMES, at_once=AT_ONCE
        )
        self._due: Due[int] = Due(terms, desk.tick)

    def see(self) -> None:
        """What the last pass has read of Slurm: those that are held, and whom Slurm would not hold again at once."""
        held = [job for job in self._desk.books.jobs if self._is_held(job)]
        there = self._published() if held else set()
        wait = self._desk.config.wait_partition
        able = (job for job in held if wait in job.partitions or all(item.type in there for item in self._ours(job)))
        self._jobs = {job.job_id: job for job in able}
        self._due.see(self._jobs, self._desk.job_ids)

    async def run(self) -> None:
        """For ever, whatever Slurm says."""
        await self._due.run(self._release, self._refused)

    async def _release(self, job_id: int) -> None:
        job = self._jobs[job_id]
        self._due.count(job_id)
        await self._slurm.release(RunKey(job_id=job_id, started_at=0, uid=job.uid), REASON)
        asked = ", ".join(f"{item.name}:{item.type}" for item in self._ours(job))
        why = f"job {job_id}: Slurm held it as {REASON}, and {asked} is there again"
        self._note(Entry(at=self._desk.clock(), what=What.RELEASED, why=why))

    def _refused(self, job_id: int, error: SlurmError) -> None:
        log.warning("hold.not_released", extra={"job": job_id, "error": str(error)})

    def _published(self) -> set[str]:
        """The classes that some node has."""
        name, nodes = self._desk.config.gres.name, self._desk.books.nodes.values()
        return {item.type for node in nodes for item in node.gres if item.name == name and item.count}

    def _is_held(self, job: QueuedJob) -> bool:
        config = self._desk.config
        return (
            job.reason == REASON
            and job.state == "PENDING"
            and not job.priority
            and not job.on_nodes
            and not {*config.partitions, config.wait_partition}.isdisjoint(job.partitions)
            and any(item.type for item in self._ours(job))
            and not self._due.spent(job.job_id)
        )

    def _ours(self, job: QueuedJob) -> list[GresItem]:
        return [item for item in job.gres if item.name == self._desk.config.gres.name]
