"""Sending back the jobs whose prologs or ends were lost, one after the other.

A batch job that may be requeued is, and every other one is cancelled with a message. Slurm is asked first whether it is
still the same run: the decision is as old as the reading of the queue it was made on.

Crash: a job was sent back or was not; the next controller finds it as this one did.
"""

import logging
from collections.abc import Iterable

from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.due import Due, Terms
from slurm_plugin.controller.state import LostProlog
from slurm_plugin.errors import SlurmError
from slurm_plugin.ports import Slurm

log = logging.getLogger(__name__)

PATIENCE_S = 3.0  # a job must be found lost for so long: agents and Slurm are not read at one moment
SPACING_S = 1.0  # between two jobs
AGAIN_S = 30.0  # until a job that is still there is tried again
TIMES = 3  # a job that loses every prolog is for a person to look at
TOLD_S = 60.0  # how long status tells what a person should know


class Rescue:
    def __init__(self, desk: Desk, slurm: Slurm) -> None:
        self._desk = desk
        self._slurm = slurm
        terms = Terms(patience_s=PATIENCE_S, pause_s=AGAIN_S, times=TIMES, spacing_s=SPACING_S)
        self._due: Due[LostProlog] = Due(terms, desk.tick, lambda one: one.job_id)
        self._told_until = 0.0

    def see(self, lost: Iterable[LostProlog]) -> None:
        """What the last pass found lost."""
        self._due.see(lost, self._desk.job_ids)
        if self._desk.tick() >= self._told_until:
            self._desk.problems.pop("prologs", None)

    async def run(self) -> None:
        """For ever, whatever Slurm says."""
        await self._due.run(self._send_back, self._refused)

    def _refused(self, one: LostProlog, error: SlurmError) -> None:
        log.warning("prolog.not_sent_back", extra={"job": one.job_id, "error": str(error)})
        self._tell(f"job {one.job_id} lost its prolog, and Slurm does not take it back: {error}")

    async def _send_back(self, lost: LostProlog) -> None:
        facts = {"job": lost.job_id, "started_at": lost.started_at, "nodes": lost.nodes}
        run = await self._slurm.run_of(lost.job_id)
        if run is None or run.state != "RUNNING" or (run.key.started_at, run.key.uid) != (lost.started_at, lost.uid):
            log.info("prolog.over", extra=facts)
        elif lost.ended and await self._slurm.started_at() <= lost.started_at:
            log.warning("prolog.unknown", extra=facts)  # not slurmctld has forgotten, but an agent: it may well run
        elif self._due.spent(lost):
            log.error("prolog.lost_too_often", extra=facts | {"times": TIMES})
            self._tell(f"job {lost.job_id} lost its prolog {TIMES} times and more: look at {', '.join(lost.nodes)}")
        elif run.requeue:
            self._due.count(lost)
            log.warning("prolog.requeue", extra=facts)
            await self._slurm.requeue(run.key)
        else:
            log.warning("prolog.cancel", extra=facts)
            why = "slurmctld lost its end" if lost.ended else "slurmd was restarted in its prolog"
            await self._slurm.cancel(run.key, f"vgpu: {why} on {', '.join(lost.nodes)}")
            self._tell(f"job {lost.job_id} was cancelled: it lost its prolog and can't be requeued")

    def _tell(self, text: str) -> None:
        self._desk.problems["prologs"] = text
        self._told_until = self._desk.tick() + TOLD_S
