"""When a job that does not fit now may start in a Slurm pool, by its queue: asked as seldom as the slices there."""

import logging
import time

from federation.errors import Unavailable
from federation.executors import slurm_commands as commands
from federation.executors.host import Host
from federation.executors.slices import REST
from federation.executors.slurm_commands import Where
from slurm_plugin.errors import VgpuError

log = logging.getLogger(__name__)

LEAST_S = 30.0  # between looks


class Waits:
    def __init__(self, host: Host, where: Where) -> None:
        self._host, self._where = host, where
        self._starts_at = 0.0  # Unix seconds; 0: the queue does not tell
        self._look_at = 0.0  # seconds that only pass

    async def starts_in_s(self) -> float:
        """0: nobody can tell. A queue that does not answer is no reason to offer no room."""
        begun = time.monotonic()
        if begun >= self._look_at:
            self._starts_at = await self._read()
            self._look_at = time.monotonic() + max(LEAST_S, REST * (time.monotonic() - begun))
        return max(1.0, self._starts_at - time.time()) if self._starts_at else 0.0

    async def _read(self) -> float:
        try:
            return commands.parse_waits(await self._host.run(commands.waits(self._where)))
        except (VgpuError, Unavailable, ValueError) as error:
            log.info("pool.waits_not_told", extra={"why": str(error)})
            return 0.0
