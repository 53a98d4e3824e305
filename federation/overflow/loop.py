"""A look at something, again and again. No fault ends the daemon, which has more to do: the next look may be spared it.

What is wrong meanwhile is told by `fed overflow` and `fed doctor`; the log has it once.
"""

import logging
import time
from collections.abc import Awaitable, Callable

from federation.errors import FedError
from federation.tasks import heed
from slurm_plugin.errors import VgpuError

log = logging.getLogger(__name__)


class Loop:
    """`look` may tell what is wrong though it went on; `rest` is told how many seconds the look took."""

    def __init__(
        self, about: str, look: Callable[[], Awaitable[str | None]], rest: Callable[[float], Awaitable[None]]
    ) -> None:
        self.about, self._look, self._rest = about, look, rest
        self.problem = ""  # of the last look; empty: none

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began = time.monotonic()
            await self.once()
            await self._rest(time.monotonic() - began)

    async def once(self) -> None:
        before, extra = self.problem, {"about": self.about}
        try:
            self.problem = await self._look() or ""
        except (FedError, VgpuError) as error:
            heed()
            self.problem = str(error)
            if self.problem != before:
                log.warning("overflow.not_looked", extra=extra | {"why": self.problem})
        except Exception as error:
            heed()
            self.problem = fault(error)
            if self.problem != before:
                log.exception("overflow.failed", extra=extra)


def fault(error: Exception) -> str:
    """What an admin is told of it: the log has more."""
    return f"a fault of the daemon's: {type(error).__name__}: {error}"
