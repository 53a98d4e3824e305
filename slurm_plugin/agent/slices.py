"""The node's instances as the driver has them: read, made, destroyed, and their devices in the right hands."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.choose import is_slice
from slurm_plugin.agent.devices import Devices
from slurm_plugin.errors import GpuBusy, NvmlError
from slurm_plugin.model import Gpu, Grant, MigMode, Step
from slurm_plugin.ports import Gpus

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_LOOK_S, LAST_LOOK_S = 0.5, 30.0  # between two looks at a slice that somebody has not left


class Threads:
    """One thread for files, so that what is done and undone stays in order; one for the driver, which can be slow."""

    def __init__(self) -> None:
        self._disk = ThreadPoolExecutor(1, "disk")
        self._driver = ThreadPoolExecutor(1, "driver")

    async def disk(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, call, *args)

    async def driver(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._driver, call, *args)

    def close(self) -> None:
        self._disk.shutdown(wait=False, cancel_futures=True)
        self._driver.shutdown(wait=False, cancel_futures=True)


class Slices:
    """`moved` is called whenever something may have become possible or the inventory differs from what was told."""

    def __init__(
        self, book: Book, *, gpus: Gpus, devices: Devices, threads: Threads, moved: Callable[[], None] = lambda: None
    ) -> None:
        self._book = book
        self._gpus = gpus
        self._devices = devices
        self._threads = threads
        self._locks: dict[str, asyncio.Lock] = {}
        self._settled: set[tuple[str, int, int]] = set()  # (GPU, gi, ci) whose devices are in the right hands
        self._looking: set[asyncio.Task[None]] = set()
        self.moved = moved

    async def refresh(self, renewed: str = "") -> None:
        """Read the inventory anew. A driver that does not answer changes nothing.

        `renewed`: a GPU whose devices can't be taken for settled, since an instance may be another under an old number.
        """
        try:
            gpus = await self._threads.driver(self._gpus.inventory)
        except NvmlError as error:
            log.warning("inventory.failed", extra={"error": str(error)})
            return
        if self._book.see(gpus):
            self.moved()
        await self.settle_devices(renewed)

    async def make(self, step: Step) -> None:
        """Make one step, alone on its GPU. Raises NvmlError; what it left half made is then destroyed.

        Crash: half-made instances are destroyed at the next start.
        """
        async with self._locks.setdefault(step.gpu, asyncio.Lock()):
            if why := self._book.refusal(step):
                raise GpuBusy(why, hint="the next inventory shows what is there")
            self._book.begin(step)
            try:
                await self._threads.driver(self._gpus.apply, step)
            except NvmlError:
                await self.refresh(step.gpu)
                await self._clean(step.gpu)
                raise
            else:
                await self.refresh(step.gpu)
            finally:
                self._book.end(step)
                self.moved()
        log.info("step.made", extra={"gpu": step.gpu, "gone": step.destroy, "made": step.create})

    async def tend(self) -> None:
        """Look for what changed without us, and switch the pool's GPUs to MIG: most forget it with each reboot."""
        await self.refresh()
        for gpu in self._book.gpus:
            if gpu.uuid in self._book.terms.gpus and gpu.mig is MigMode.DISABLED and not gpu.fault:
                async with self._locks.setdefault(gpu.uuid, asyncio.Lock()):
                    await self._switch_on(gpu)

    async def _switch_on(self, gpu: Gpu) -> None:
        try:
            await self._threads.driver(self._gpus.enable_mig, gpu.uuid)
        except NvmlError as error:
            log.warning("mig.not_enabled", extra={"gpu": gpu.uuid, "error": str(error)})
        else:
            log.info("mig.enabled", extra={"gpu": gpu.uuid})
            await self.refresh(gpu.uuid)

    async def repair(self) -> None:
        """Destroy what is half made on the pool's GPUs, which takes room for nothing, and look at what is idle."""
        await self.tend()
        for gpu in self._book.gpus:
            if gpu.uuid in self._book.terms.gpus:
                async with self._locks.setdefault(gpu.uuid, asyncio.Lock()):
                    await self._clean(gpu.uuid)
        busy = self._book.busy()
        pool = (gpu for gpu in self._book.gpus if gpu.uuid in self._book.terms.gpus)
        self.freed(one.uuid for gpu in pool for one in gpu.instances if is_slice(one) and one.uuid not in busy)

    async def _clean(self, gpu_uuid: str) -> None:
        gpu = next((one for one in self._book.gpus if one.uuid == gpu_uuid), None)
        half = [(one.profile, one.start) for one in gpu.instances if one.ci < 0 and not one.foreign] if gpu else []
        for shape in half:
            try:
                await self._threads.driver(self._gpus.apply, Step(gpu=gpu_uuid, destroy=(shape,)))
            except NvmlError as error:
                log.warning("repair.failed", extra={"gpu": gpu_uuid, "instance": shape, "error": str(error)})
        if half:
            await self.refresh(gpu_uuid)

    def freed(self, slices: Iterable[str]) -> None:
        """Look whether everybody has left these slices before they are given out again. Does not wait for it."""
        for slice_ in slices:
            if slice_ not in self._book.unseen | self._book.haunted:
                self._book.unseen.add(slice_)
                task = asyncio.create_task(self._look(slice_))
                self._looking.add(task)
                task.add_done_callback(self._looking.discard)

    async def _look(self, slice_: str) -> None:
        """Until nobody computes there, or it is no more. A driver that says nothing has not said nobody."""
        pause_s = FIRST_LOOK_S
        while self._book.instance(slice_) is not None:
            try:
                pids = await self._threads.driver(self._gpus.processes, slice_)
            except NvmlError as error:
                log.warning("slice.unseen", extra={"slice": slice_, "error": str(error)})
            else:
                if not pids:
                    break
                if slice_ not in self._book.haunted:
                    log.warning("slice.haunted", extra={"slice": slice_, "pids": pids})
                    self._book.haunted.add(slice_)
                    self._book.unseen.discard(slice_)
                    self.moved()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_LOOK_S)
        self._book.unseen.discard(slice_)
        self._book.haunted.discard(slice_)
        self.moved()

    def close(self) -> None:
        for task in self._looking:
            task.cancel()

    def hand_over(self, grant: Grant) -> None:
        """The devices of a grant's slices to its user. On the disk thread, like `take_back`."""
        for gpu, instance in self._book.slices(grant):
            self._devices.give(gpu, instance, grant.run.uid)

    def take_back(self, grant: Grant) -> None:
        for gpu, instance in self._book.slices(grant):
            self._devices.give(gpu, instance, 0)

    async def settle_devices(self, renewed: str = "") -> None:
        """Give the devices of slices that are new to us to whom they belong: root, or the run that has them."""
        self._settled = {key for key in self._settled if key[0] != renewed}
        await self._threads.disk(self._settle)

    def _settle(self) -> None:
        owners = {slice_: grant.run.uid for grant in tuple(self._book.grants.values()) for slice_ in grant.slices}
        there = {
            (gpu.uuid, one.gi, one.ci): (gpu, one)
            for gpu in self._book.gpus
            if gpu.uuid in self._book.terms.gpus
            for one in gpu.instances
            if one.ci >= 0 and not one.foreign
        }
        self._settled &= there.keys()
        for key in there.keys() - self._settled:
            gpu, one = there[key]
            if self._devices.give(gpu, one, owners.get(one.uuid, 0)):
                self._settled.add(key)
