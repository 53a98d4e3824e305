"""Steps in a thread that a test holds up, and which files are open meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

STEP_S = 30.0


class Step:
    """A call in a thread that is held up until it is let go."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.begun, self.go, self.over = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.begun.set()
        assert self.go.wait(STEP_S)
        found = self._call(*args, **kwargs)
        self.over.set()
        return found

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, STEP_S)


async def cancelled(task: "asyncio.Task[Any]", times: int) -> None:
    for _ in range(times):
        task.cancel()
        await asyncio.wait((task,), timeout=0.05)
        assert not task.done()


def files_of(folder: Path) -> list[str]:
    """Open ones of this process in there."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(one.readlink()))
    return [one for one in found if one.startswith(str(folder))]
