"""Attempts whose folders are on this host's files: that one has begun, or ended, is seen there before its next look.

Only what is seen is told; whether it is so, the look that follows finds out. On a file system that tells late what
another host has written, that look comes when it would have come anyway.
"""

import asyncio
from collections.abc import Callable
from enum import IntEnum

from federation.executors import layout
from federation.executors.spool import Spool
from federation.model.token import Key

LOOK_S = 0.25  # between looks, at the least
LOOKS_PER_S = 2000.0  # at names, on average: many attempts are looked at less often
MOST = 20_000  # attempts; more wait for their next look


class _Waits(IntEnum):
    """For what; it never goes back, whatever somebody writes into his own folder."""

    BEGIN = 0
    END = 1
    NOTHING = 2


_FILES = {_Waits.BEGIN: layout.CLAIM, _Waits.END: layout.EXIT}


class Marks:
    """Used on one event loop. It looks only while there is something to be seen."""

    def __init__(self, spool: Spool, told: Callable[[tuple[Key, ...]], None]) -> None:
        self._spool, self._told = spool, told
        self._known: dict[Key, _Waits] = {}
        self._looking: asyncio.Task[None] | None = None

    def follow(self, key: Key, *, begun: bool) -> None:
        """Until it has ended. `begun`: that is known already."""
        known = self._known.get(key)
        if known is None and len(self._known) >= MOST:
            return
        self._known[key] = max(known or _Waits.BEGIN, _Waits.END if begun else _Waits.BEGIN)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    def drop(self, key: Key) -> None:
        self._known.pop(key, None)

    async def _look(self) -> None:
        while waiting := [(key, waits) for key, waits in self._known.items() if waits in _FILES]:
            await asyncio.sleep(max(LOOK_S, len(waiting) / LOOKS_PER_S))
            changed = await self._spool.on_thread(self._changed, waiting)
            for key, waits in changed:
                if self._known.get(key) is waits:
                    self._known[key] = _Waits(waits + 1)
            if changed:
                self._told(tuple(key for key, _ in changed))

    def _changed(self, waiting: list[tuple[Key, _Waits]]) -> list[tuple[Key, _Waits]]:
        return [(key, waits) for key, waits in waiting if self._spool.has(key, _FILES[waits])]
