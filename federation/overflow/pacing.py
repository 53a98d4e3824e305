"""How much of a slurmctld's time is ours: ends of jobs that are over at once, and looks at a queue that is long."""

import asyncio
import time

from federation.access.rates import Bucket, Rate

ENDS = Rate(per_s=50.0, burst=25.0)
SHARE = 10  # looks take no more than one part of the time in so many
LONGEST_S = 30.0  # between looks, whatever they took: Slurm starts a job again two minutes after it lost its gateway


def apart_s(least_s: float, took_s: float) -> float:
    """Between two looks, by what the last one took."""
    return max(least_s, min(LONGEST_S, SHARE * took_s))


class Pacer:
    def __init__(self, rate: Rate = ENDS) -> None:
        self._bucket = Bucket(rate, time.monotonic())

    async def turn(self) -> None:
        """Returns when one more may end."""
        wait_s = self._bucket.take(1.0, time.monotonic())
        while wait_s > 0:
            await asyncio.sleep(wait_s)
            wait_s = self._bucket.take(1.0, time.monotonic())
