"""What was dropped because a bound was reached: each is counted, and they are told of together, once in a while."""

import logging
import time
from collections.abc import Callable

TOLD_S = 60.0  # between two lines of one kind


class Drops:
    """Of one kind. `event`: the name of its line in `log`."""

    def __init__(self, log: logging.Logger, event: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._event, self._clock = log, event, clock
        self.count = 0  # in all
        self._told = 0
        self._tell_at = float("-inf")

    def add(self, **facts: object) -> None:
        """`facts`: of this one, which stands for those that were not told of."""
        self.count += 1
        now = self._clock()
        if now < self._tell_at:
            return
        self._log.warning(self._event, extra={"dropped": self.count - self._told, "in_all": self.count, **facts})
        self._told, self._tell_at = self.count, now + TOLD_S
