"""How much of what was read here waits for one site to take it: a peer that takes nothing makes us hold no more.

Who needs more of it waits for the others of that site, and of the same pool: a file server that hangs keeps no other
pool's output back.
"""

import asyncio
from collections import Counter, defaultdict

MOST_PARTS = 64  # of one site and pool, of a MiB each at the most


class Shares(defaultdict[tuple[str, str], asyncio.Semaphore]):
    """Of each site and pool. Used on one event loop."""

    def __init__(self) -> None:
        super().__init__(lambda: asyncio.Semaphore(MOST_PARTS))


class Slots:
    """What one stream holds of its site's."""

    def __init__(self, shares: Shares, site: str) -> None:
        self._shares, self._site = shares, site
        self._held: Counter[str] = Counter()

    async def take(self, pool: str) -> None:
        await self._shares[self._site, pool].acquire()
        self._held[pool] += 1

    def give(self, pool: str) -> None:
        if self._held[pool]:
            self._held[pool] -= 1
            self._shares[self._site, pool].release()

    def close(self) -> None:
        for pool in self._held.elements():
            self._shares[self._site, pool].release()
        self._held.clear()
