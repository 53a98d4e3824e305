"""A pool that fails fast is left alone for a while: a job's next try goes elsewhere. To be full is no failure."""

from collections import deque
from dataclasses import dataclass, field

MAX_FAILURES = 5  # within WINDOW_S before the pool is left alone
WINDOW_S = 60.0
FIRST_COOL_S = 30.0
MOST_COOL_S = 600.0  # each opening without a success between doubles the time, up to this


@dataclass(slots=True)
class Breaker:
    """One pool's. Seconds are those that only pass, in each call the same clock's."""

    failed_at: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_FAILURES))
    open_until: float = 0.0
    openings: int = 0

    def failed(self, now: float) -> None:
        self.failed_at.append(now)
        if len(self.failed_at) == MAX_FAILURES and now - self.failed_at[0] <= WINDOW_S:
            self.open_until = now + min(FIRST_COOL_S * 2**self.openings, MOST_COOL_S)
            self.openings = min(self.openings + 1, 10)
            self.failed_at.clear()

    def worked(self) -> None:
        self.failed_at.clear()
        self.open_until, self.openings = 0.0, 0

    def cools_for(self, now: float) -> float:
        """Seconds until the pool is worth a try; 0: it is."""
        return max(0.0, self.open_until - now)
