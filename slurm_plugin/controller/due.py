"""What is to be done to jobs and nodes that are found in some state for long enough, not too soon again nor for ever.

Time is the monotonic clock: nothing waits longer because somebody has set the other one back.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from slurm_plugin.errors import SlurmError

_DOUBLINGS = 32

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    patience_s: float = 0.0  # so long one must be found so
    pause_s: float  # from one try to the next, twice as long after each that counts
    longest_s: float = 0.0  # ... up to this; 0: it never grows
    times: int = 0  # tries that count, until it is left for a person; 0: no bound
    at_once: int = 0  # tries for one look; 0: no bound
    spacing_s: float = 0.0  # between two of them


class Due(Generic[K]):
    """Bound: one record for each that is found, and for each that is still there of those that were tried."""

    def __init__(
        self, terms: Terms, tick: Callable[[], float], name: Callable[[K], Hashable] = lambda one: one
    ) -> None:
        """`name`: what of it lasts, and is there or not: tries are counted under that. `tick`: monotonic seconds."""
        self._terms = terms
        self._tick = tick
        self._name = name
        self._at: dict[K, float] = {}  # those that are found now: when to act
        self._rests: dict[K, float] = {}  # those that were tried: not before then
        self._times: Counter[Hashable] = Counter()  # by name
        self._some = asyncio.Event()

    def see(self, found: Iterable[K], there: Callable[[], Collection[Hashable]]) -> None:
        """What the last look has found; whatever it did not find is so no more. `there`: names that are still known."""
        now, patience_s = self._tick(), self._terms.patience_s
        self._at = {
            one: self._at[one] if one in self._at else max(now + patience_s, self._rests.get(one, now)) for one in found
        }
        if self._rests or self._times:
            known = there()
            self._rests = {one: until for one, until in self._rests.items() if self._name(one) in known}
            self._times = Counter({name: times for name, times in self._times.items() if name in known})
        if any(at <= now for at in self._at.values()):
            self._some.set()

    def spent(self, one: K) -> bool:
        """Was it tried as often as it may be?"""
        return 0 < self._terms.times <= self._times[self._name(one)]

    def count(self, one: K) -> None:
        self._times[self._name(one)] += 1

    def ready(self) -> list[K]:
        now = self._tick()
        return [one for one, at in self._at.items() if at <= now]

    async def run(self, act: Callable[[K], Awaitable[None]], failed: Callable[[K, SlurmError], None]) -> None:
        """Act on one after the other when it is due, for ever, whatever Slurm says. Each rests, also when it failed."""
        while True:
            await self._some.wait()
            self._some.clear()
            for one in self.ready()[: self._terms.at_once or None]:
                if one not in self._at:  # it is so no more
                    continue
                self._rest(one)
                try:
                    await act(one)
                except SlurmError as error:
                    failed(one, error)
                await asyncio.sleep(self._terms.spacing_s)

    def _rest(self, one: K) -> None:
        pause_s = self._terms.pause_s
        if self._terms.longest_s:
            doubled = pause_s * 2.0 ** min(_DOUBLINGS, self._times[self._name(one)])
            pause_s = min(self._terms.longest_s, doubled)
        self._at[one] = self._rests[one] = self._tick() + pause_s
