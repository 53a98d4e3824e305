"""The node's instances as the driver has them: read, made, destroyed, and their devices in the right hands."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.changes import Changes
from slurm_plugin.agent.claims import Claims, Place
from slurm_plugin.agent.devices import Devices
from slurm_plugin.agent.durable import At, nowhere
from slurm_plugin.agent.journal import Journal
from slurm_plugin.agent.threads import Threads
from slurm_plugin.agent.vacancy import Vacancy, Watch
from slurm_plugin.agent.visitors import Visitors
from slurm_plugin.errors import NvmlError
from slurm_plugin.model import Gpu, Grant, Instance, Step
from slurm_plugin.ports import Gpus

log = logging.getLogger(__name__)

SOUND_S = 0.2  # longest that a run waits for a word of its GPUs before it gets slices of them


async def _nobody_told(_grants: tuple[Grant, ...]) -> None:
    """An agent without runs has none that could lose a slice."""


class Slices:
    """`moved` is called whenever something may have become possible or the inventory differs from what was told.

    `lost` is awaited with grants of which a slice is no more, before anything else is made on its GPU.
    """

    def __init__(
        self,
        book: Book,
        *,
        gpus: Gpus,
        devices: Devices,
        threads: Threads,
        journal: Journal,
        visitors: Visitors,
        at: At = nowhere,
    ) -> None:
        self._book = book
        self._gpus = gpus
        self._devices = devices
        self._threads = threads
        self._visitors = visitors
        self._reading = asyncio.Lock()
        self._changes = Changes(book, gpus=gpus, journal=journal, threads=threads, refresh=self.refresh, at=at)
        self._settled: set[Place] = set()  # whose devices are in the right hands
        self.claims = Claims(book, devices, visitors)
        self.watch = Watch()
        self._vacancy = Vacancy(
            book,
            gpus=gpus,
            devices=devices,
            threads=threads,
            visitors=visitors,
            moved=lambda: self.moved(),
            watch=lambda: self.watch,
        )
        self.moved: Callable[[], None] = lambda: None
        self.lost: Callable[[tuple[Grant, ...]], Awaitable[None]] = _nobody_told

    async def open(self) -> None:
        """Raises OSError when the journal's folder can't be used."""
        await self._changes.open()
        await self._threads.disk(self._visitors.open)

    async def refresh(self, renewed: str = "") -> bool:
        """Read the inventory anew. A driver that does not answer changes nothing: False.

        `renewed`: a GPU whose devices can't be taken for settled, since an instance may be another under an old number.
        """
        async with self._reading:
            self._unsettle(renewed)
            try:
                changed = await self._read()
                if self._gone():  # seen twice, or it is not believed
                    changed |= await self._read()
            except NvmlError as error:
                log.warning("inventory.failed", extra={"error": str(error)})
                return False
            if gone := self._gone():
                await self.lost(gone)
                changed = True
        if changed:
            self.moved()
        await self.settle_devices(renewed)
        return True

    def _gone(self) -> tuple[Grant, ...]:
        return tuple(grant for grant in self._book.vanished() if grant.run not in self._book.lost)

    async def _read(self) -> bool:
        gpus = await self._threads.driver(self._gpus.inventory)
        await self._changes.follow(gpus)
        changed = self._book.see(self._changes.seen(gpus))
        self.note_new()  # at once: what is new must not be taken for idle before it was looked at
        return changed

    async def make(self, step: Step, *, cut: bool = False) -> None:
        """See Changes.make."""
        try:
            await self._changes.make(step, cut=cut)
        finally:
            self.moved()

    async def tend(self) -> None:
        """Look for what changed without us, and mend what the pool's GPUs lack."""
        await self._changes.tend()

    async def repair(self) -> None:
        """Every GPU of the pool to the layout it is known to have had: after a crash, a boot, or new in the pool."""
        await self._changes.tend(all_=True)

    async def retry(self) -> None:
        """Somebody says that what kept a GPU in quarantine may be over."""
        await self._changes.retry()

    async def sound(self, slices: Iterable[str]) -> bool:
        """Do the GPUs of these slices still answer? One that does not is read anew at once.

        A driver that is busy with something else for SOUND_S has not said no.
        """
        slices = tuple(slices)
        one_a_gpu = {found[0].uuid: slice_ for slice_ in slices if (found := self._book.instance(slice_))}
        try:
            async with asyncio.timeout(SOUND_S):
                for slice_ in one_a_gpu.values():
                    await self._threads.driver(self._gpus.processes, slice_)
        except TimeoutError:
            log.info("gpu.busy", extra={"slices": slices})
        except NvmlError as error:
            log.warning("gpu.unsound", extra={"slices": slices, "error": str(error)})
            await self.refresh()
        now = [self._book.instance(slice_) for slice_ in slices]
        return all(one is not None and not one[0].fault for one in now)

    def freed(self, slices: Iterable[str]) -> None:
        """Look whether everybody has left these slices before they are given out again. Does not wait for it."""
        self._vacancy.look(slices)

    def close(self) -> None:
        self._vacancy.close()

    def hand_over(self, grant: Grant) -> None:
        """The devices of a grant's slices to its user. On the disk thread, like `take_back`. Raises OSError: they are
        not given.
        """
        there = self._book.slices(grant)
        self._visitors.note([minor for _, one in there for minor in one.caps], grant.run)
        for gpu, instance in there:
            if not self._devices.give(gpu, instance, grant.run.uid):
                self._book.unguarded.add(grant.run.job_id)

    def take_back(self, grant: Grant) -> None:
        for gpu, instance in self._book.slices(grant):
            self._devices.give(gpu, instance, 0)

    async def settle_devices(self, renewed: str = "") -> None:
        """Give the devices of slices that are new to us to whom they belong: root, or the run that has them.

        Somebody may have opened them before, so those that nobody has are looked at. Those that are claimed stay as
        they are.
        """
        self._unsettle(renewed)
        new = self.note_new()
        await self._threads.disk(self._settle)
        claims = self.claims
        kept = {one.uuid for at, (_, one) in self._pools().items() if one.uuid in claims or not claims.judged(at)}
        self._book.unseen -= self._book.haunted.keys()
        self._vacancy.look({*new, *self._vacancy.forgotten()} - kept - self._book.held())

    def _unsettle(self, gpu_uuid: str) -> None:
        self._settled = {key for key in self._settled if key[0] != gpu_uuid}

    def note_new(self) -> list[str]:
        """The slices that nobody has and whose devices have not been settled: from here on unseen."""
        held, settles = self._book.held(), self._there().keys() - self._settled
        new = [
            one.uuid
            for at, (_, one) in self._pools().items()
            if one.uuid not in held and (at in settles or not self.claims.judged(at))
        ]
        self._book.unseen.update(slice_ for slice_ in new if slice_ not in self._book.haunted)
        return new

    def _there(self) -> dict[Place, tuple[Gpu, Instance]]:
        """Those whose devices are ours to give."""
        return {at: found for at, found in self._pools().items() if at[0] in self._book.terms.changeable}

    def _pools(self) -> dict[Place, tuple[Gpu, Instance]]:
        return {
            (gpu.uuid, one.gi, one.ci): (gpu, one)
            for gpu in self._book.gpus
            if gpu.uuid in self._book.terms.gpus
            for one in gpu.instances
            if one.ci >= 0 and not one.foreign
        }

    def _settle(self) -> None:
        self.claims.judge(self._pools())
        owners = {slice_: grant.run for grant in tuple(self._book.grants.values()) for slice_ in grant.slices}
        there = self._there()
        self._settled &= there.keys()
        for key in there.keys() - self._settled:
            gpu, one = there[key]
            owner = owners.get(one.uuid)
            if one.uuid in self.claims or not self.claims.judged(key):
                continue
            try:
                if owner:
                    self._visitors.note(one.caps, owner)
            except OSError as error:
                log.warning("visitor.not_noted", extra={"slice": one.uuid, "error": str(error)})
                continue
            if self._devices.give(gpu, one, owner.uid if owner else 0):
                self._settled.add(key)
            elif owner:
                self._book.unguarded.add(owner.job_id)
