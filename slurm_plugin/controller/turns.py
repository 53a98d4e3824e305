"""Whose turn it is: calls that any user may make, and that cost something, are answered one after the other.

Those that wait are few, and fewer of each user: what they hold in memory is bounded, and nobody keeps the others out.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slurm_plugin.errors import RequestError
from slurm_plugin.link.server import Caller

log = logging.getLogger(__name__)

CALLS_MAX = 8  # that are answered or wait for it
CALLS_OF_ONE = 2  # ... of one user


class Turns:
    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._calls: Counter[int] = Counter()  # by user

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Wait for it, and have it while the context is open. Root and SlurmUser always may.

        Raises RequestError when too many wait already.
        """
        calls, uid = self._calls, caller.uid
        if not caller.trusted and (calls[uid] >= CALLS_OF_ONE or calls.total() >= CALLS_MAX):
            log.warning("turns.refused", extra={"uid": uid, "bound": CALLS_MAX, "of_one": CALLS_OF_ONE})
            raise RequestError("the controller is asked too much at this moment", hint="ask again in a few seconds")
        calls[uid] += 1
        try:
            async with self._one:
                yield
        finally:
            calls[uid] -= 1
            if not calls[uid]:
                del calls[uid]
