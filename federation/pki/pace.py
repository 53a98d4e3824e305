"""How fast each site may send, held on the stream: who is too fast is not read from, and TCP tells him to wait."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from federation.access.rates import Bucket, Rate
from federation.errors import Refused

MAX_PAUSE_S = 60.0  # longest wait for one message

_Message = TypeVar("_Message")


class Pace:
    """Of all sites. There are as many buckets as sites that were believed."""

    def __init__(
        self,
        rate_of: Callable[[str], Rate | None],
        clock: Callable[[], float],
        *,
        count: Callable[[object], int] = lambda _: 1,
    ) -> None:
        """`rate_of` None: as fast as it can. `clock`: seconds that only pass. `count`: messages that are in one."""
        self._rate_of = rate_of
        self._count = count
        self._clock = clock
        self._buckets: dict[str, tuple[Rate, Bucket]] = {}
        self.paused = 0  # messages that had to wait

    def call(self, site: str) -> None:
        """A call that carries one message. Raises Refused when the site calls too often."""
        wait_s = self._wait_s(site)
        if wait_s > 0:
            raise Refused(f"site {site} calls too often", hint=f"again in {wait_s:.1f} s")

    async def stream(self, site: str, received: AsyncIterator[_Message]) -> AsyncIterator[_Message]:
        """The same messages, no faster than they may come."""
        async for message in received:
            count = self._count(message)
            while (wait_s := self._wait_s(site, count)) > 0:
                self.paused += 1
                await asyncio.sleep(min(wait_s, MAX_PAUSE_S))
            yield message

    def _wait_s(self, site: str, count: int = 1) -> float:
        rate = self._rate_of(site)
        if rate is None:
            return 0.0
        known = self._buckets.get(site)
        if known is None or known[0] != rate:
            known = self._buckets[site] = rate, Bucket(rate, self._clock())
        return known[1].take(count, self._clock())
