"""Steps made so that they can be finished by whoever comes after: intent, act, look, commit.

What a step is for is in the journal before the driver is called, and what came of it after the driver was read again.
An agent that finds a step open goes on with it where jobs and others' instances leave room, and else makes the GPU
whole. The same brings a layout back after a boot. A GPU on which steps keep failing is left alone: it has a `fault`
that names the last error and who holds the GPU, its idle slices are nobody's, its jobs go on.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from slurm_plugin.agent import durable, layout
from slurm_plugin.agent.book import Book
from slurm_plugin.agent.journal import Journal
from slurm_plugin.agent.quarantine import Quarantine
from slurm_plugin.agent.threads import Threads
from slurm_plugin.errors import GpuBusy, NoRoom, NvmlError
from slurm_plugin.model import Gpu, MigMode, Step
from slurm_plugin.ports import Gpus

log = logging.getLogger(__name__)
T = TypeVar("T")

BUSY_TRIES = 4  # of one step, while somebody holds the GPU for a moment: monitoring does
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 1.0  # between two of them


class Changes:
    """`refresh(gpu)` reads the driver anew after a change there, into the book. False: it does not answer."""

    def __init__(
        self,
        book: Book,
        *,
        gpus: Gpus,
        journal: Journal,
        threads: Threads,
        refresh: Callable[[str], Awaitable[bool]],
        at: durable.At = durable.nowhere,
    ) -> None:
        self._book = book
        self._gpus = gpus
        self._journal = journal
        self._threads = threads
        self._refresh = refresh
        self._at = at
        self._locks: dict[str, asyncio.Lock] = {}
        self._quarantine = Quarantine()
        self._unread: set[str] = set()  # GPUs that the book has only as they once were
        self._settled: set[str] = set()  # GPUs that were brought to their layout once since this agent started
        self.first_pause_s = FIRST_PAUSE_S

    async def open(self) -> None:
        """Raises OSError when the journal's folder can't be used."""
        await self._threads.disk(self._journal.open)

    def seen(self, gpus: Collection[Gpu]) -> tuple[Gpu, ...]:
        """An inventory as the pool sees it: what it did not make is foreign, what it does not use has a fault."""
        self._unread = {gpu.uuid for gpu in gpus if gpu.fault}
        granted = {slice_ for grant in self._book.grants.values() for slice_ in grant.slices}
        return tuple(self._seen(gpu, granted) for gpu in gpus)

    def _seen(self, gpu: Gpu, granted: set[str]) -> Gpu:
        record = self._journal.get(gpu.uuid)
        fault = self._journal.refused.get(gpu.uuid) or self._quarantine.why(gpu.uuid)
        if record is None:
            return replace(gpu, fault=gpu.fault or fault)
        unsettled = gpu.uuid in self._book.terms.changeable and gpu.uuid not in self._settled
        if unsettled and not layout.is_reached(gpu, record):
            fault = fault or "its layout is being restored"
        return replace(layout.marked(gpu, record, granted), fault=gpu.fault or fault)

    async def follow(self, gpus: Iterable[Gpu]) -> None:
        """GPUs that come into the pool are taken as they are; those that leave it are forgotten.

        One that could not be read when the controller was told of the others has not left it.
        """
        terms, pool = self._book.terms, self._book.terms.changeable
        come = [
            gpu
            for gpu in gpus
            if gpu.uuid in pool and gpu.mig is MigMode.ENABLED and not gpu.fault and self._journal.is_new(gpu.uuid)
        ]
        gone = [uuid for uuid in self._journal if uuid in terms.others and not terms.observe]
        if come or gone:
            await self._threads.disk(self._follow, come, gone)

    def _follow(self, come: Iterable[Gpu], gone: Iterable[str]) -> None:
        try:
            for uuid in gone:
                self._journal.drop(uuid)
            for gpu in come:
                self._journal.put(layout.adopted(gpu))
                log.info("gpu.adopted", extra={"gpu": gpu.uuid, "instances": len(gpu.instances)})
        except OSError:
            log.exception("journal.not_written")

    async def make(self, step: Step, *, cut: bool = False) -> None:
        """Make one step, alone on its GPU. `cut`: for a job that waits, so without patience; it is no sign of trouble.

        Raises NvmlError; the GPU is then whole again, or in quarantine.
        Crash: the next agent goes on with the step, or makes the GPU whole.
        """
        async with self._lock(step.gpu):
            gpu, record = self._book.gpu(step.gpu), self._journal.get(step.gpu)
            if why := (gpu.fault if gpu else "") or self._book.refusal(step):
                raise GpuBusy(why, hint="the next inventory shows what is there")
            if gpu is None or record is None:
                raise NvmlError(f"GPU {step.gpu} is not the pool's", hint="nothing was changed")
            self._book.begin(step)
            try:
                await self._write(layout.intent(gpu, record, step))
                await self._reach(step, tries=1 if cut else BUSY_TRIES)
                self._quarantine.well(step.gpu)
            except NvmlError as error:
                await self._give_up(step.gpu, error, counts=not cut and not isinstance(error, NoRoom))
                raise
            finally:
                self._book.end(step)
        log.info("step.made", extra={"gpu": step.gpu, "gone": step.destroy, "made": step.create})

    async def tend(self, *, all_: bool = False) -> None:
        """Bring GPUs back that are not as the pool needs them: without MIG, reset, a step open, not read before.

        `all_`: every GPU to its layout, as far as there is room. Those in quarantine only when they are due.
        """
        await self._threads.disk(self._journal.look_again)
        await self._refresh("")
        seen = set(self._pool()) - self._unread
        for uuid in self._pool():
            async with self._lock(uuid):
                if not self._quarantine.waits(uuid, time.monotonic()):
                    await self._mend(uuid, all_=all_ or uuid not in self._settled)
        if not seen <= self._settled:
            self._settled |= seen
            await self._refresh("")

    async def retry(self) -> None:
        """Out of quarantine with every GPU, as it is now: what failed there may not even be wanted any more."""
        for uuid in self._pool():
            if self._quarantine.why(uuid):
                async with self._lock(uuid):
                    await self._make_whole(uuid)
                    self._quarantine.release(uuid)
        await self.tend()

    def _pool(self) -> Iterator[str]:
        return (gpu.uuid for gpu in self._book.gpus if gpu.uuid in self._book.terms.changeable)

    async def _mend(self, uuid: str, *, all_: bool) -> None:
        gpu = self._book.gpu(uuid)
        try:
            if gpu is not None and self._is_to_be_switched(gpu):
                await self._switch_on(uuid)
                all_ = True
            gpu, record = self._book.gpu(uuid), self._journal.get(uuid)
            if gpu is None or record is None or gpu.mig is not MigMode.ENABLED or uuid in self._unread:
                return
            if all_ or record.is_open or self._quarantine.why(uuid) or (record.wanted and not gpu.instances):
                await self._restore(uuid)
        except NvmlError as error:
            self._quarantine.put(uuid, error, time.monotonic())
            log.error("gpu.quarantined", extra={"gpu": uuid, "error": str(error), "hint": error.hint})  # noqa: TRY400
            await self._refresh(uuid)

    async def _restore(self, gpu: str) -> None:
        """To the layout of its record. Raises NvmlError, and the record stays open."""
        record, step = self._journal.get(gpu), self._rest(gpu)
        if record is not None and (step.destroy or step.create):
            self._book.begin(step)
            try:
                await self._write(layout.Record(gpu=gpu, had=record.ours, wanted=record.wanted))
                await self._reach(step, tries=BUSY_TRIES)
            finally:
                self._book.end(step)
            log.info("layout.restored", extra={"gpu": gpu, "gone": step.destroy, "made": step.create})
        else:
            await self._commit(gpu)
        if self._quarantine.why(gpu):
            log.info("gpu.out_of_quarantine", extra={"gpu": gpu})
            self._quarantine.well(gpu)
            await self._refresh(gpu)

    def _is_to_be_switched(self, gpu: Gpu) -> bool:
        """A reset that is due may be somebody else's wish: it is made where the pool has leave to reset GPUs."""
        due = gpu.mig is MigMode.PENDING and self._book.terms.reset_gpus
        return (gpu.mig is MigMode.DISABLED or due) and not self._journal.refused.get(gpu.uuid)

    async def _switch_on(self, uuid: str) -> None:
        """Raises NvmlError. Crash: the driver itself says how far it came; there is nothing on the GPU to lose."""

        def enable_mig(gpu: str) -> Gpu:
            return self._gpus.enable_mig(gpu, may_reset=self._book.terms.reset_gpus)

        await self._patiently(lambda: self._drive(enable_mig, uuid), tries=BUSY_TRIES)
        await self._refresh(uuid)
        after = self._book.gpu(uuid)
        if after is not None and after.mig is MigMode.PENDING:
            raise NvmlError("MIG mode is still not in force", hint="stop what uses the GPU, or reboot the node")
        log.info("mig.enabled", extra={"gpu": uuid})

    async def _reach(self, step: Step, *, tries: int) -> None:
        """Make it, or what is left of it when somebody was in the way for a moment; then commit. Raises NvmlError."""
        whole = iter([step])

        async def once() -> None:
            now = next(whole, None) or self._rest(step.gpu)
            if now.destroy or now.create:
                try:
                    await self._drive(self._gpus.apply, now)
                finally:
                    await self._look(step.gpu)

        await self._patiently(once, tries=tries)
        await self._commit(step.gpu)

    async def _patiently(self, do: Callable[[], Awaitable[object]], *, tries: int) -> None:
        pause_s = self.first_pause_s
        for left in reversed(range(tries)):
            try:
                await do()
            except GpuBusy:
                if not left:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                return

    async def _drive(self, call: Callable[[T], object], what: T) -> None:
        self._at(f"nvml {call.__name__}: before")
        await self._threads.driver(call, what)
        self._at(f"nvml {call.__name__}: after")

    async def _give_up(self, gpu: str, error: NvmlError, *, counts: bool) -> None:
        """The step stays wanted where the GPU goes into quarantine; else the GPU is as it is."""
        if counts and self._quarantine.failed(gpu, error, time.monotonic()):
            log.error("gpu.quarantined", extra={"gpu": gpu, "error": str(error), "hint": error.hint})
        else:
            await self._look(gpu)
            await self._make_whole(gpu)
        await self._refresh(gpu)

    async def _make_whole(self, uuid: str) -> None:
        """Destroy what is half made of ours, which takes room for nothing, and take the rest as it is."""
        gpu, record = self._book.gpu(uuid), self._journal.get(uuid)
        for one in gpu.instances if gpu and record else ():
            if one.ci < 0 and not one.foreign:
                try:
                    await self._drive(self._gpus.apply, Step(gpu=uuid, destroy=(layout.shape(one),)))
                except NvmlError as error:
                    log.warning("repair.failed", extra={"gpu": uuid, "start": one.start, "error": str(error)})
                await self._look(uuid)
        await self._commit(uuid)

    async def _look(self, gpu: str) -> None:
        """After a change there. What can't be seen now is not known to have changed, and not known to have not."""
        if not await self._refresh(gpu):
            self._unread.add(gpu)

    def _rest(self, uuid: str) -> Step:
        """What is still to do there. What is only not yet known to be left by everybody may go: the driver knows."""
        gpu, record = self._book.gpu(uuid), self._journal.get(uuid)
        if gpu is None or record is None:
            return Step(gpu=uuid)
        return layout.rest(gpu, record, self._book.busy() - self._book.unseen)

    async def _write(self, record: layout.Record) -> None:
        try:
            await self._threads.disk(self._journal.put, record)
        except OSError as error:
            raise NvmlError(f"can't write the journal: {error}", hint="nothing was changed on the GPU") from error

    async def _commit(self, uuid: str) -> None:
        """Crash, a blind eye, or no room on disk: the step is taken up again, and finds nothing to do.

        A GPU that is out of MIG mode shows nothing, and its layout is wanted as before.
        """
        gpu, record = self._book.gpu(uuid), self._journal.get(uuid)
        if gpu is None or record is None or gpu.mig is not MigMode.ENABLED or uuid in self._unread:
            return
        try:
            await self._threads.disk(self._journal.put, layout.outcome(gpu, record))
        except OSError:
            log.exception("journal.not_written", extra={"gpu": uuid})

    def _lock(self, gpu: str) -> asyncio.Lock:
        return self._locks.setdefault(gpu, asyncio.Lock())
