"""What the agent asks Slurm about a run: which is it, may you have forgotten another, will you take it back?"""

import asyncio
import logging
import re
import time

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.ports import VIRTUAL, JobRun, Slurm

log = logging.getLogger(__name__)

ASK_TRIES = 5  # times a prolog asks which run this is
ASK_PAUSE_S = 1.0  # between two of them
SETTLE_S = 10.0  # after slurmctld's start: three looks of a federation's daemon at what it has open elsewhere
RESTART_S = 2  # no slurmctld starts a job, ends, and comes back to start it again, in less
BOOT_KNOWN_S = 1.0  # likewise, since it was asked
AWAY_S = 90.0  # longest that a prolog tries to have a job sent back that must not start here
_VIRTUAL = re.compile(rf"(?:^|,){VIRTUAL}")
_OVER = (
    "COMPLET",
    "CANCEL",
    "FAIL",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPT",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_ME",
    "REVOKED",
)


async def ask_run(slurm: Slurm, job_id: int, *, tries: int = ASK_TRIES, pause_s: float = ASK_PAUSE_S) -> JobRun | None:
    """The run of this job that is starting or running now; None when Slurm knows of none.

    Raises SlurmError: it gave no answer, or none that can be read. That is no word on the run. Bound: `tries`.
    """
    for left in reversed(range(tries)):
        try:
            run = await slurm.run_of(job_id)
        except SlurmUnavailable:
            if not left:
                log.error("run.no_answer", extra={"job_id": job_id})  # noqa: TRY400
                raise
            await asyncio.sleep(pause_s)
            continue
        except SlurmError as error:
            log.error("run.unreadable", extra={"job_id": job_id, "error": str(error)})  # noqa: TRY400
            raise
        if run is None or is_over(run):
            log.warning("run.over", extra={"job_id": job_id, "state": run.state if run else "unknown"})
            return None
        return run
    raise SlurmUnavailable(f"nobody was asked about job {job_id}")


def is_over(run: JobRun) -> bool:
    """Has this run ended, though its epilogs may not have?"""
    return run.key.started_at <= 0 or run.state.startswith(_OVER)


class Boots:
    """How much longer it could turn out that slurmctld has forgotten a run before this one, with our note on the job.

    A slurmctld that is killed loses what happened since it saved its state, seconds ago. A job that it had started on a
    virtual node then starts anew, here perhaps; who has it open elsewhere sends it back, or writes its note again. That
    the job might start there may be forgotten too, so its partitions tell nothing; Slurm's virtual nodes do.
    """

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        self._asked: asyncio.Task[int] | None = None
        self._asked_at = 0.0

    async def left_s(self, run: JobRun) -> float:
        """0 at once for a job that has not waited: no slurmctld ends and comes back in that time."""
        if run.elsewhere or not run.batch or run.key.started_at - run.submitted_at < RESTART_S:
            return 0.0
        boot = await asyncio.shield(self._boot())
        if boot < 0:
            return SETTLE_S
        age_s = run.key.started_at - boot  # by slurmctld's clock
        return SETTLE_S - age_s if run.submitted_at < boot and 0 <= age_s < SETTLE_S else 0.0

    def _boot(self) -> "asyncio.Task[int]":
        """One question serves the prologs of a moment."""
        if self._asked is None or time.monotonic() - self._asked_at > BOOT_KNOWN_S:
            self._asked, self._asked_at = asyncio.create_task(self._started_at()), time.monotonic()
        return self._asked

    async def _started_at(self) -> int:
        """0: there are no virtual nodes; -1: it does not say."""
        try:
            partitions = (await self._slurm.partitions()).values()
            bursts = any(_VIRTUAL.search(fields.get("Nodes", "")) for fields in partitions)
            return await self._slurm.started_at() if bursts else 0
        except SlurmError as error:
            log.warning("run.no_boot_time", extra={"error": str(error)})
            return -1


async def turn_away(slurm: Slurm, run: JobRun, why: str) -> bool:
    """No slice for a job that Slurm has started: back into the queue if it can go there, else cancelled.

    One that may be running elsewhere always can: --no-requeue is about its script, which does not run again.
    False: neither can be done now. The task prolog still keeps the job from running without its slice.
    """
    job_id = run.key.job_id
    try:
        if run.requeue or (run.elsewhere and run.batch):
            await slurm.requeue(run.key, lift=not run.requeue)
        else:
            await slurm.cancel(run.key, why)
    except SlurmError as error:
        log.error("bind.not_turned_away", extra={"job_id": job_id, "error": str(error)})  # noqa: TRY400
        return False
    return True
