"""How fast ends are given out: those of a thousand jobs that are over at once would be more than a slurmctld likes."""

import asyncio
import time

from federation.access.rates import Bucket, Rate

ENDS = Rate(per_s=50.0, burst=25.0)


class Pacer:
    def __init__(self, rate: Rate = ENDS) -> None:
        self._bucket = Bucket(rate, time.monotonic())

    async def turn(self) -> None:
        """Returns when one more may end."""
        wait_s = self._bucket.take(1.0, time.monotonic())
        while wait_s > 0:
            await asyncio.sleep(wait_s)
            wait_s = self._bucket.take(1.0, time.monotonic())
