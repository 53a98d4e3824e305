"""The queue, read again and again: a row that says what it said before is not read again. Pure.

A queue of 100,000 jobs says the same of nearly all of them twice a second.
"""

from typing import Final

from slurm_plugin.ports import QueuedJob
from slurm_plugin.slurm import queue, table
from slurm_plugin.slurm.queue import Pool

_COLUMNS: Final = len(queue.QUEUE_FIELDS)


class QueueReading:
    """Remembers the last answer, and no more."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[str, QueuedJob | None] = {}

    def jobs(self, lines: list[str]) -> tuple[QueuedJob, ...]:
        """The pool's jobs among these rows, cut by `table.lines`. Raises SlurmError for a row that can't be read."""
        known = self._known
        self._known = {line: known[line] if line in known else self._read(line) for line in lines}
        return queue.limited(job for job in self._known.values() if job is not None)

    def _read(self, line: str) -> QueuedJob | None:
        return queue.queued_job(table.cells(line, _COLUMNS), self._pool)
