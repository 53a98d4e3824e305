"""Files from which nothing more has come, looked at all together: a thousand that wait cost hardly more than one."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

LOOK_S = 0.1  # between looks


class Growth:
    """Used on one event loop. It looks only while somebody waits."""

    def __init__(self) -> None:
        self._looks: dict[ThreadPoolExecutor | None, _Look] = {}

    def watching(
        self, event: asyncio.Event, file: int | Path, size: int, threads: ThreadPoolExecutor | None = None
    ) -> AbstractContextManager[None]:
        """Inside, `event` is set once an open file has more bytes than so many, or there is one of this name.

        `threads`: of its file system. One that hangs keeps nobody waiting who waits for another.
        """
        return self._looks.setdefault(threads, _Look(threads)).watching(event, file, size)


class _Look:
    """At the files of one file system."""

    def __init__(self, threads: ThreadPoolExecutor | None) -> None:
        self._threads = threads
        self._waiting: dict[asyncio.Event, tuple[int | Path, int]] = {}
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, event: asyncio.Event, file: int | Path, size: int) -> Iterator[None]:
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
            loop, waiting = asyncio.get_running_loop(), list(self._waiting.items())
            for event in await loop.run_in_executor(self._threads, _grown, waiting):
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
