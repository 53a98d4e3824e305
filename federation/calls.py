"""Calls of a site's backends: so many of one pool at a time, and what comes of each as a transaction.

Signals of one attempt are delivered one by one, in their order, and it is handed over once at a time.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from federation.engine.effects import Deliver, Effect, Fence, Forget, HandOver, Look
from federation.engine.target import TargetSide
from federation.errors import FedError, NoRoom, OutcomeUnknown, Refused, Unavailable
from federation.model.token import Key
from federation.ports import Executor, Now, Sight
from federation.store.store import Store

log = logging.getLogger(__name__)

CALLS = 16  # of one pool's backend at a time
MOST_CALLS = 4096  # of one pool's backend, begun or waiting; more are dropped
CALL_S = 120.0  # longest call of a backend; then its outcome is unknown

Call: TypeAlias = HandOver | Look | Fence | Deliver | Forget
Step: TypeAlias = Callable[[Store], list[Effect]]


@dataclass(slots=True)
class _Line:
    """Signals of one attempt that are being delivered, or wait for that."""

    newest: int = 0
    waiting: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Calls:
    """`executors`: one a pool; one may be added at any time. `act` takes what came of a call as a transaction."""

    def __init__(
        self,
        executors: Mapping[str, Executor],
        target: TargetSide,
        act: Callable[[Step], Awaitable[None]],
        clock: Callable[[], Now],
    ) -> None:
        self._executors, self._target, self._act, self._clock = executors, target, act, clock
        self._open: Counter[str] = Counter()
        self._gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(CALLS))
        self._lines: dict[Key, _Line] = {}
        self._handing: set[Key] = set()

    def on_its_way(self, effect: Call) -> bool:
        """What is being handed over; a signal that is being delivered, or one that is older than that and must not come
        after it.
        """
        if isinstance(effect, HandOver):
            return effect.key in self._handing
        if not isinstance(effect, Deliver):
            return False
        line = self._lines.get(effect.key)
        return line is not None and effect.number <= line.newest

    def take(self, effect: Call) -> bool:
        """A place for one more call. False: there is no such pool, or too much waits for it."""
        pool = effect.pool
        if pool not in self._executors or self._open[pool] >= MOST_CALLS:
            return False
        self._open[pool] += 1
        if isinstance(effect, Deliver):
            line = self._lines.setdefault(effect.key, _Line())
            line.newest, line.waiting = effect.number, line.waiting + 1
        if isinstance(effect, HandOver):
            self._handing.add(effect.key)
        return True

    async def call(self, effect: Call) -> None:
        """In the place that was taken. The next one begins before the journal has heard of this one, but for signals
        of one attempt.
        """
        if isinstance(effect, HandOver):
            try:
                return await self._call(effect)
            finally:
                self._handing.discard(effect.key)
        if not isinstance(effect, Deliver):
            return await self._call(effect)
        line = self._lines[effect.key]
        try:
            async with line.turn:
                await self._call(effect)
        finally:
            line.waiting -= 1
            if not line.waiting:
                del self._lines[effect.key]

    async def _call(self, effect: Call) -> None:
        step: Step | None = None
        try:
            async with self._gates[effect.pool], asyncio.timeout(CALL_S):
                step = await self._ask(self._executors[effect.pool], effect)
        except (FedError, TimeoutError) as error:
            log.info("backend.no_answer", extra={"pool": effect.pool, "what": type(effect).__name__, "why": str(error)})
        finally:
            self._open[effect.pool] -= 1
        if step is not None:
            await self._act(step)

    async def _ask(self, executor: Executor, effect: Call) -> Step:
        target, clock = self._target, self._clock
        match effect:
            case HandOver():
                return await self._hand_over(executor, effect)
            case Look():
                handing = frozenset(self._handing)
                told = await executor.look(effect.keys)
                # It may be there in a moment: to hand it over again now would only begin that anew.
                seen = {key: one for key, one in told.items() if one.sight is not Sight.ABSENT or key not in handing}
                return lambda store: target.looked(store, seen, clock())
            case Fence():
                never = await executor.fence(effect.key)
                if not never:
                    await executor.stop(effect.key)
                return lambda store: target.fenced(store, effect.key, never, clock())
            case Deliver():
                await executor.signal(effect.key, effect.signal)
                return lambda store: target.delivered(store, effect.key, effect.number)
            case Forget():
                await executor.forget(effect.key)
                return lambda store: target.forgotten(store, effect.key)

    async def _hand_over(self, executor: Executor, effect: HandOver) -> Step:
        target, key, clock = self._target, effect.key, self._clock
        try:
            handle = await executor.submit(key, effect.spec, effect.user)
        except Refused as error:
            why = str(error)
            return lambda store: target.rejected(store, key, why, clock())
        except NoRoom as error:
            why = str(error)
            return lambda store: target.no_room(store, key, why, clock())
        except Unavailable as error:
            why = str(error)
            return lambda store: target.not_handed_over(store, key, why, clock())
        except OutcomeUnknown:
            return lambda store: target.unanswered(store, key, clock())
        return lambda store: target.handed_over(store, key, handle, clock())
