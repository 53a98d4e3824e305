"""Files from which nothing more has come, looked at all together: a thousand that wait cost hardly more than one."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_S = 0.1  # between looks


class Growth:
    """Used on one event loop. It looks only while somebody waits."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, tuple[int | Path, int]] = {}
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, event: asyncio.Event, file: int | Path, size: int) -> Iterator[None]:
        """Inside, `event` is set once an open file has more bytes than so many, or there is one of this name."""
        self._waiting[event] = file, size
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            del self._waiting[event]

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(LOOK_S)
            for event in await asyncio.to_thread(_grown, list(self._waiting.items())):
                event.set()


def _grown(waiting: list[tuple[asyncio.Event, tuple[int | Path, int]]]) -> list[asyncio.Event]:
    return [event for event, (file, size) in waiting if _size(file) > size]


def _size(file: int | Path) -> int:
    """What can't be looked at is to be looked at by who waits for it. -1: there is none of that name."""
    try:
        return os.stat(file).st_size  # noqa: PTH116 - of descriptors, too
    except FileNotFoundError:
        return -1
    except OSError:
        return 1 << 62
