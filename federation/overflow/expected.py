"""When the pool's controller expects a job to start here: Slurm has no word on a class of which there is none now."""

import asyncio
import logging
import pwd
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from federation.access.names import asked
from federation.overflow.facts import Waiting
from slurm_plugin.config import load_place
from slurm_plugin.errors import RequestError, VgpuError
from slurm_plugin.explanation import Explanation, Why
from slurm_plugin.explanation_wire import from_wire
from slurm_plugin.link.client import open_link
from slurm_plugin.link.munge import Munge

log = logging.getLogger(__name__)

MOST_ASKED = 20  # jobs of one look, the oldest; of the others nobody can tell
ASK_S = 5.0  # longest time for all of them


class Expects(Protocol):
    async def starts(self, jobs: Sequence[Waiting], now: float) -> dict[int, float]:
        """By job id, in Unix seconds. A job of which nobody can tell is not in it."""


class Controller:
    """Asks the controller that pool.yaml names, over one link a look."""

    def __init__(self, pool_yaml: Path) -> None:
        self._pool_yaml = pool_yaml

    async def starts(self, jobs: Sequence[Waiting], now: float) -> dict[int, float]:
        found: dict[int, float] = {}
        try:
            async with asyncio.timeout(ASK_S):
                await self._ask(jobs[:MOST_ASKED], now, found)
        except (VgpuError, TimeoutError, KeyError) as error:
            log.warning("overflow.no_estimate", extra={"why": str(error) or f"no answer within {ASK_S:g} s"})
        return found

    async def _ask(self, jobs: Sequence[Waiting], now: float, found: dict[int, float]) -> None:
        place = load_place(self._pool_yaml)
        uid = (await asked(pwd.getpwnam, place.user)).pw_uid
        async with await open_link(place.dial, munge=Munge(place.munge_socket), server_uid=uid) as link:
            for job in jobs:
                with suppress(RequestError):  # it does not know this one
                    if (at := expected(from_wire(await link.explain(job.job_id)), now)) is not None:
                        found[job.job_id] = at


def expected(told: Explanation, now: float) -> float | None:
    """By what the pool knows; None: it can't tell, since others come first or nothing of it is certain."""
    if told.why is Why.STARTING:
        return now
    if told.why is Why.CHANGE and told.change is not None:
        return max(now, told.change.at)
    if told.ahead:
        return None
    if told.why is Why.ROOM:
        return max(now, told.again_at)
    return float(told.free_at) if told.why is Why.BUSY and told.free_at else None
