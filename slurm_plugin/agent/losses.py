"""Runs from under which a slice has gone: somebody destroyed it, or the GPU was reset.

The new instance in its place may have the same UUID, so what counts is that it was gone once. Such a run keeps what it
has until it is over, no task of it starts any more, and its job is sent back into the queue, or ended with a word why.
"""

import asyncio
import contextlib
import logging

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.cluster import ask_run, turn_away
from slurm_plugin.agent.store import Store
from slurm_plugin.agent.threads import Threads
from slurm_plugin.errors import SlurmError
from slurm_plugin.model import Grant
from slurm_plugin.ports import Slurm

log = logging.getLogger(__name__)


class Losses:
    def __init__(self, book: Book, *, slurm: Slurm, store: Store, threads: Threads, node: str) -> None:
        self._book = book
        self._slurm = slurm
        self._store = store
        self._threads = threads
        self._node = node
        self._telling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """What an earlier agent knew. The grants come first."""
        held = {grant.run for grant in self._book.grants.values()}
        self._book.lost = (await self._threads.disk(self._store.lost)) & held

    async def note(self, grants: tuple[Grant, ...]) -> None:
        """Durable when it returns; the jobs are told meanwhile."""
        held = {grant.run for grant in self._book.grants.values()}
        self._book.lost = (self._book.lost & held) | {grant.run for grant in grants}
        try:
            await self._threads.disk(self._store.save_lost, self._book.lost)
        except OSError:
            log.exception("lost.not_saved")
        for grant in grants:
            log.error("slice.vanished", extra={"job_id": grant.run.job_id, "slices": grant.slices})
            task = asyncio.create_task(self._tell(grant))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, grant: Grant) -> None:
        run = None
        with contextlib.suppress(SlurmError):  # no answer is logged; the task prolog knows of the loss
            run = await ask_run(self._slurm, grant.run.job_id)
        if run is not None and run.key == grant.run:
            await turn_away(self._slurm, run, f"vgpu: a slice of this job on {self._node} was destroyed by somebody")

    def alarms(self) -> list[str]:
        """A line for each, for as long as the run has its grant."""
        runs = sorted(grant.run.job_id for grant in self._book.grants.values() if grant.run in self._book.lost)
        return [f"job {job_id}: a slice it had is gone; its job was requeued or cancelled" for job_id in runs]

    def close(self) -> None:
        for task in self._telling:
            task.cancel()
