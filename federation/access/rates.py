"""PURE: how much a peer may send: a bucket that fills at a rate, up to a burst. Time is an argument."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    per_s: float
    burst: float


class Bucket:
    """Of one peer and one kind of thing."""

    def __init__(self, rate: Rate, now: float) -> None:
        """`now`: seconds that only pass."""
        self._rate = rate
        self._level = rate.burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take it, or tell after how many seconds it could be taken; 0: it was.

        What is more than the burst is taken from a full bucket, and owed: else it would never pass.
        """
        self._level = min(self._rate.burst, self._level + max(0.0, now - self._at) * self._rate.per_s)
        self._at = max(self._at, now)
        missing = min(amount, self._rate.burst) - self._level
        if missing > 0:
            return missing / self._rate.per_s
        self._level -= amount
        return 0.0
