"""PURE: what each job has of a host without a queue, and how long others wait for it."""

import math
from collections.abc import Collection
from typing import NamedTuple, Self

FILE = "cpus"  # in a job's folder
MOST_CPUS_DIGITS, MOST_DIGITS = 6, 12


class Share(NamedTuple):
    cpus: int
    until: float = math.inf  # Unix seconds, by its time limit; infinite: it has none

    @classmethod
    def parse(cls, text: str) -> Self:
        """Its user may have written anything there."""
        cpus, _, until = text.partition(" ")
        return cls(_number(cpus, MOST_CPUS_DIGITS) or 1, _number(until, MOST_DIGITS) or math.inf)

    def render(self) -> bytes:
        return f"{self.cpus} {self.until:.0f}".encode()


def _number(text: str, digits: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else 0


def cpus_of(shares: Collection[Share]) -> int:
    return sum(share.cpus for share in shares)


def half_free_in_s(cpus: int, shares: Collection[Share], now: float) -> float:
    """Until more are free than now, and half of all at least, if each job takes all of its time; 0: nobody knows."""
    free = cpus - cpus_of(shares)
    for share in sorted(shares, key=lambda one: one.until):
        free += share.cpus
        if free * 2 >= cpus and math.isfinite(share.until):
            return max(1.0, share.until - now)
    return 0.0
