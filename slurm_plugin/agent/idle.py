"""Which slices a job holds and does not use: no process computes there. Looked at now and then, for the report.

A driver that gives no answer says nothing: what was known before stays.
"""

import time
from collections.abc import Callable

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.threads import Threads
from slurm_plugin.errors import NvmlError
from slurm_plugin.model import RunKey
from slurm_plugin.ports import Gpus


class Idle:
    """`moved` is called when a slice comes into use or out of it."""

    def __init__(
        self,
        book: Book,
        *,
        gpus: Gpus,
        threads: Threads,
        moved: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._book = book
        self._gpus = gpus
        self._threads = threads
        self._moved = moved
        self._clock = clock
        self._since: dict[tuple[RunKey, str], float] = {}

    @property
    def since(self) -> dict[str, float]:
        """By slice, since when its run has used it no more, as far as was seen; Unix seconds."""
        return {slice_: at for (_, slice_), at in self._since.items()}

    async def look(self) -> None:
        """One question to the driver for each held slice."""
        found: dict[tuple[RunKey, str], float] = {}
        for key in [(grant.run, slice_) for grant in self._book.grants.values() for slice_ in grant.slices]:
            before = self._since.get(key)
            try:
                used = bool(await self._threads.driver(self._gpus.processes, key[1]))
            except NvmlError:
                used = before is None
            if not used:
                found[key] = self._clock() if before is None else before
        moved = found.keys() != self._since.keys()
        self._since = found
        if moved:
            self._moved()
