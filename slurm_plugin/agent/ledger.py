"""The grants on disk, whatever the disk does.

A folder that can't be written binds nobody: that is the node's `fault`, told to the controller, and asked again with
each run and now and then. A file that can't be deleted is remembered and tried again: the next agent would believe it.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from slurm_plugin.agent.slices import Slices
from slurm_plugin.agent.store import Store
from slurm_plugin.agent.threads import Threads
from slurm_plugin.model import Grant, RunKey

log = logging.getLogger(__name__)


class Ledger:
    """`changed` is called when `fault` or `alarms` differ."""

    def __init__(self, store: Store, slices: Slices, threads: Threads, *, changed: Callable[[], None]) -> None:
        self.fault = ""  # why no grant can be kept; empty: it can
        self._store = store
        self._slices = slices
        self._threads = threads
        self._changed = changed
        self._stale: dict[int, RunKey] = {}  # runs that are over and have a file that could not be deleted

    async def open(self) -> tuple[tuple[Grant, ...], frozenset[int], tuple[RunKey, ...]]:
        """What an earlier agent knew: grants, jobs whose grant can't be read, runs without slices.

        Raises OSError without a folder to use.
        """
        await self._threads.disk(self._store.open)
        grants, garbled = await self._threads.disk(self._store.grants)
        return grants, garbled, await self._threads.disk(self._store.plain)

    async def keep(self, grant: Grant) -> bool:
        """On file and its devices its user's when it returns True. False: it is not, and can't be given."""
        try:
            await self._threads.disk(self._record, grant)
        except OSError as error:
            log.exception("grant.not_saved", extra={"job_id": grant.run.job_id})
            await self._judge(error)
            return False
        self._stale.pop(grant.run.job_id, None)  # the new file stands in its place
        return True

    async def forget(self, grant: Grant) -> None:
        """Crash: the grant's file is still there, or its slices are root's."""
        await self._threads.disk(self._slices.take_back, grant)
        await self.delete(grant.run)

    async def delete(self, run: RunKey) -> None:
        try:
            await self._threads.disk(self._store.delete, run.job_id)
        except OSError as error:
            log.exception("grant.not_deleted", extra={"job_id": run.job_id})
            self._stale[run.job_id] = run
            await self._judge(error)
            self._changed()

    async def delete_of(self, run: RunKey) -> None:
        """Delete what is on file of this run, and of no other of its job."""
        self._stale[run.job_id] = run
        await self.tend()

    async def note_without(self, run: RunKey) -> None:
        """A mark that tasks go by while there is no agent. Without one they wait for it."""
        try:
            await self._threads.disk(self._store.save_plain, run)
        except OSError:
            log.exception("mark.not_saved", extra={"job_id": run.job_id})

    async def unmark(self, job_id: int) -> None:
        try:
            await self._threads.disk(self._store.delete_plain, job_id)
        except OSError:
            log.exception("mark.not_deleted", extra={"job_id": job_id})

    async def writable(self) -> bool:
        """Can grants be kept now? Asked of the disk only while there is a fault."""
        if self.fault:
            await self.check()
        return not self.fault

    async def tend(self) -> None:
        await self.check()
        for job_id, run in tuple(self._stale.items()):
            try:
                await self._threads.disk(self._store.delete_stale, run)
            except OSError:
                continue
            self._stale.pop(job_id, None)
            log.info("grant.deleted_late", extra={"job_id": job_id})
            self._changed()

    async def check(self) -> None:
        try:
            await self._threads.disk(self._store.probe)
        except OSError as error:
            self._fail(error)
        else:
            if self.fault:
                log.info("state.writable")
                self.fault = ""
                self._changed()

    def alarms(self) -> list[str]:
        """A line for each file that the next agent would wrongly believe."""
        return [f"job {one} is over, and its file {self._store.path(one)} can't be deleted" for one in self._stale]

    def garbled_alarms(self, jobs: Iterable[int]) -> list[str]:
        """A line for each job whose grant can't be read."""
        return [
            f"job {one}: its grant {self._store.path(one)} can't be read; what it may have is withheld until it is over"
            for one in sorted(jobs)
        ]

    async def _judge(self, error: OSError) -> None:
        """One file's fault, or the folder's?"""
        before = self.fault
        await self.check()
        if not self.fault and not before:
            log.warning("state.odd", extra={"error": str(error)})

    def _fail(self, error: OSError) -> None:
        fault = f"grants can't be kept: {error.strerror or error} ({self._store.folder})"
        if fault != self.fault:
            log.error("state.unwritable", extra={"error": str(error)})
            self.fault = fault
            self._changed()

    def _record(self, grant: Grant) -> None:
        self._store.save(grant)
        self._slices.hand_over(grant)


def marks_of(socket: Path) -> Path:
    """Where the hooks look for the marks of runs without slices; they know the socket, and no setting more."""
    return socket.with_name(f"{socket.name}.plain")
