"""A proxy is not answered while the end of its slurmstepd would end another run, or another job, of its id.

Source: slurmctld's _slurm_rpc_complete_batch_script, 22.05 to 24.11: what has no node yet, or the same one, is
completed by whoever says that id. Slurm ends such a slurmstepd without a word once its node registers.
"""

import asyncio
import logging
from contextlib import suppress

from federation.errors import Unavailable
from federation.overflow.burst import Burst, SlurmJob, left_behind, same_job
from federation.overflow.slurm_side import ASK_S, ASKS, SlurmSide
from federation.tasks import heed

log = logging.getLogger(__name__)

HELD_S = 5.0  # between looks at whether a proxy that is not answered may end


class Held(Exception):
    """It is not answered now."""


def ends_its_own(burst: Burst, job: SlurmJob | None) -> bool:
    """`burst`: as its proxy came to it; `job`: what Slurm has under its id, which may be another's any time if None."""
    if job is None:
        return False
    elsewhere = bool(job.nodes) and burst.node not in job.nodes
    return job.over or elsewhere or (same_job(burst, job) and not left_behind(burst, job))


async def until_its_own(side: SlurmSide, burst: Burst, by_slurm: asyncio.Event) -> None:
    """Returns when its end is one of its own, or Slurm is ending it. Bound: ASKS questions that are not answered."""
    unanswered = 0
    while not by_slurm.is_set() and unanswered < ASKS:
        wait_s, why = HELD_S, "Slurm does not have this run of it any more"
        try:
            if ends_its_own(burst, await side.job(burst.job_id)):
                return
        except Unavailable as error:
            heed()
            unanswered, wait_s, why = unanswered + 1, ASK_S, str(error)
        log.info("proxy.held", extra={"job": burst.job_id, "why": why})
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await by_slurm.wait()
