"""The agent's threads for what blocks. The loop itself never does."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """One for files, so that what is done and undone stays in order, and one for cgroups likewise; one for the driver,
    which can be slow; one that looks through all processes, which takes as long as there are many.
    """

    def __init__(self) -> None:
        self.driver_since: float | None = None  # monotonic: when the driver's call began that runs now
        self._disk = ThreadPoolExecutor(1, "disk")
        self._driver = ThreadPoolExecutor(1, "driver")
        self._looks = ThreadPoolExecutor(1, "looks")
        self._cgroups = ThreadPoolExecutor(1, "cgroups")

    async def disk(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, call, *args)

    async def driver(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._driver, self._timed, call, *args)

    def _timed(self, call: Callable[..., T], *args: Any) -> T:
        self.driver_since = time.monotonic()
        try:
            return call(*args)
        finally:
            self.driver_since = None

    async def looks(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._looks, call, *args)

    async def cgroups(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._cgroups, call, *args)

    def close(self) -> None:
        for executor in (self._disk, self._driver, self._looks, self._cgroups):
            executor.shutdown(wait=False, cancel_futures=True)
