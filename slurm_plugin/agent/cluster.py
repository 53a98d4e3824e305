"""The agent's two questions to Slurm about a run: which run is this, and will you take it back?"""

import asyncio
import logging

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.ports import JobRun, Slurm

log = logging.getLogger(__name__)

ASK_TRIES = 5  # times a prolog asks which run this is
ASK_PAUSE_S = 1.0  # between two of them
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


async def turn_away(slurm: Slurm, run: JobRun, why: str) -> None:
    """No slice for a job that Slurm has started: back into the queue if it can go there, else cancelled.

    If neither can be done now, the task prolog still keeps the job from running without its slice.
    """
    job_id = run.key.job_id
    try:
        if run.requeue:
            await slurm.requeue(run.key)
        else:
            await slurm.cancel(run.key, why)
    except SlurmError as error:
        log.error("bind.not_turned_away", extra={"job_id": job_id, "error": str(error)})  # noqa: TRY400
