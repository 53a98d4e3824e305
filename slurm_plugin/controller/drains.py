"""Undoing the drains that Slurm makes of its own after one of its daemons was killed.

A slurmctld that is killed forgets the jobs of its last seconds and gives their ids to the next ones. A slurmd that
still knows a job of that id refuses the new one. Slurm then drains the node, for the reason below, and puts the job
back into the queue, held. It tells slurmd that the job is gone, so the next try works: nothing is wrong with the node,
and nobody but an admin would end its drain.

A node is resumed when its agent is there and has no grant but of runs that Slurm knows, so that no job that was
forgotten still runs there. Then the pool's held jobs are released. Slurm puts some back only when the drain is over,
and a slurmctld that starts again may forget the drain alone: so a job that was put back before slurmctld's last start,
or soon after it, is released too.

A slurmd that was killed forgets which jobs' prologs it has run. From 23.11 on it waits for those of a step that comes
then, in vain, and Slurm drains the node as if a prolog had failed. Only the time tells that apart: a prolog that does
fail drains its node again, whenever its slurmd was started. Any other reason is somebody's, and left alone.

Crash: the next controller finds what is still to be done as this one did.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterable

from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.due import Due, Terms
from slurm_plugin.controller.state import Agent, NodeState
from slurm_plugin.errors import SlurmError
from slurm_plugin.model import RunKey
from slurm_plugin.pool import DuplicateJobid
from slurm_plugin.ports import QueuedJob, Slurm, SlurmNode

log = logging.getLogger(__name__)

PATIENCE_S = 3.0  # a node must be found so for so long: Slurm takes a moment to put the job back
AGAIN_S = 10.0  # until a node that is still drained is tried again, and between two questions when slurmctld started
FORGOT_S = 120.0  # after a start of slurmctld: a job that is refused so soon is one whose start it forgot
TIMES = 3  # a job that is refused so often is for a person to look at
FORGOTTEN_S = 60.0  # between a slurmd's start and the drain for the prologs that it forgot: its waits, and ours
REASON = "launch failed requeued held"  # Slurm's for a job that a node has refused, as squeue prints it
_REASON = re.compile(r"Duplicate jobid(?: \[[\w.-]+@\d+\])?")
_PROLOG = re.compile(r"Prolog error \[[\w.-]+@(\d+)\]")


def drained_twice(node: SlurmNode) -> bool:
    """Has Slurm itself drained it for a job's id, and nobody else for another reason?"""
    return "DRAIN" in node.state and _REASON.fullmatch(node.reason.strip()) is not None


def drained_for_restart(node: SlurmNode) -> bool:
    """Has Slurm drained it for a prolog, about when its slurmd was started? Once more it may have been killed since."""
    found = _PROLOG.fullmatch(node.reason.strip())
    return "DRAIN" in node.state and found is not None and abs(int(found[1]) - node.slurmd_started_at) <= FORGOTTEN_S


def drained_by_itself(node: SlurmNode) -> bool:
    return drained_twice(node) or drained_for_restart(node)


def is_clear(node: NodeState, jobs: Iterable[QueuedJob]) -> bool:
    """Its agent is there, and has only grants of runs that Slurm knows."""
    known = {(job.job_id, job.started_at) for job in jobs if job.on_nodes}
    held = {(grant.run.job_id, grant.run.started_at) for grant in node.view.holder.values()}
    return node.agent is Agent.CONNECTED and not node.fault and held <= known


class Drains:
    def __init__(self, desk: Desk, slurm: Slurm) -> None:
        self._desk = desk
        self._slurm = slurm
        self._nodes: Due[str] = Due(Terms(patience_s=PATIENCE_S, pause_s=AGAIN_S), desk.tick)
        self._forgotten: Due[str] = Due(Terms(pause_s=AGAIN_S), desk.tick)  # slurmctld is asked once for all
        self._times: Counter[int] = Counter()  # by job: how often one was released

    def see(self) -> None:
        """What the last pass has read of Slurm."""
        desk = self._desk
        if self._times:
            self._times &= Counter(dict.fromkeys(desk.job_ids(), TIMES))
        undo = desk.config.duplicate_jobid is DuplicateJobid.RESUME
        drained = (name for name, node in desk.books.nodes.items() if drained_by_itself(node))
        self._nodes.see(drained if undo else (), desk.books.nodes.keys)
        self._forgotten.see([REASON] if undo and self._refused() else (), lambda: [REASON])

    async def run(self) -> None:
        """For ever, whatever Slurm says."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(self._resume, self._failed))
            group.create_task(self._forgotten.run(self._release_forgotten, self._failed))

    def _failed(self, what: str, error: SlurmError) -> None:
        log.warning("drain.not_undone", extra={"what": what, "error": str(error)})

    async def _resume(self, name: str) -> None:
        (node,) = await self._slurm.nodes([name])
        if name not in self._desk.roster or not drained_by_itself(node):
            return
        if not is_clear(self._desk.views([name]).nodes[name], self._desk.books.jobs):
            return
        log.warning("drain.resume", extra={"node": name, "reason": node.reason})
        await self._slurm.resume(name)
        self._desk.look_at([name])
        for job in self._refused():
            await self._release(job)

    async def _release_forgotten(self, _: str) -> None:
        started_at = await self._slurm.started_at()
        for job in self._refused():
            if job.submitted_at < started_at + FORGOT_S:
                await self._release(job)

    def _refused(self) -> list[QueuedJob]:
        return [job for job in self._desk.books.jobs if job.launch_failed and self._times[job.job_id] < TIMES]

    async def _release(self, job: QueuedJob) -> None:
        """Whoever was refused so; what somebody holds by now stays held."""
        self._times[job.job_id] += 1
        log.warning("drain.release", extra={"job": job.job_id})
        await self._slurm.release(RunKey(job_id=job.job_id, started_at=0, uid=job.uid), REASON)
