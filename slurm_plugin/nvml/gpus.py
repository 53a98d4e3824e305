"""This node's GPUs: slurm_plugin.ports.Gpus on real NVML calls."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml

from slurm_plugin.errors import GpuBusy, NvmlError, ReadBackError
from slurm_plugin.model import Gpu, GpuProfile, Instance, MigMode, Step
from slurm_plugin.nvml import changing, faults, mode
from slurm_plugin.nvml.caps import CapMinors
from slurm_plugin.nvml.holders import holders
from slurm_plugin.nvml.reading import read_gpu

MOST_GPUS = 64

# What a list that a session remembers too long answers: worth one look in a new session.
_STALE = (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotFound, pynvml.NVMLError_Uninitialized)


class NvmlGpus:
    """Opens NVML with the first call and keeps it open: on GPUs without a persistence daemon, closing costs seconds.

    One session of pynvml is shared by the whole process; this class holds one use of it until close().
    """

    def __init__(self, *, proc_root: Path = Path("/proc"), dev_root: Path = Path("/dev")) -> None:
        self._caps = CapMinors(proc_root)
        self._dev_root = dev_root
        self._open = False
        self._known: dict[int, Gpu] = {}  # by index, as last read without fault

    def close(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def inventory(self) -> tuple[Gpu, ...]:
        """Every GPU, by index. One that can't be read has `fault` set and is as last seen (uuid "" if it never was).

        Raises NvmlError when nothing can be observed at all.
        """
        self._ensure_open()
        try:
            count = min(pynvml.nvmlDeviceGetCount(), MOST_GPUS)
        except pynvml.NVMLError as error:
            self.close()
            raise faults.told(error, "counting the GPUs") from error
        if count < len(self._known):
            self._known.clear()  # one is gone from the bus: an index may mean another GPU now
        return tuple(self._read_or_fault(index) for index in range(count))

    def apply(self, step: Step) -> Gpu:
        """Make one step and read it back. Whatever the step does not name is not touched.

        Everything is checked before anything is changed. A refusal midway leaves each instance whole or absent, those
        already made included: the next inventory() tells.
        Raises GpuBusy, NoRoom; ReadBackError when what is to go is not there, or what was made is not what was asked;
        NvmlError for a profile or start that this GPU does not offer, a foreign instance, MIG off.
        Crash: a GPU instance may be left without compute instance; inventory() shows ci -1, and a step can name it.
        """
        before = self._gpu(step.gpu)
        if before.fault or before.mig in (MigMode.DISABLED, MigMode.UNSUPPORTED):
            raise NvmlError(f"GPU {before.index}: {before.fault or f'MIG is {before.mig}'}", hint="nothing was changed")
        doomed = [_named(before, name, start) for name, start in step.destroy]
        wanted = [(_offered(before, name, start), start) for name, start in step.create]
        for instance in doomed:
            with self._naming_holders(before, instance):
                changing.destroy(_device(step.gpu), instance, _profile(before, instance.profile))
        if doomed:
            self._renew()  # a session may go on listing what is gone
        for profile, start in wanted:
            with self._naming_holders(before):
                changing.create(_device(step.gpu), profile, start)
        return _read_back(self._gpu(step.gpu), step)

    def enable_mig(self, gpu: str, *, may_reset: bool = False) -> Gpu:
        """Switch this GPU to MIG and read it again: its minor number may be another one then. See mode."""
        before = self._gpu(gpu)
        if before.mig is MigMode.UNSUPPORTED:
            raise NvmlError(f"GPU {before.index} ({before.name}) has no MIG", hint="leave it out of the pool")
        with self._naming_holders(before):
            mode.enable(_device(gpu), before, self._dev_root / f"nvidia{before.minor}", may_reset=may_reset)
        self._renew()
        return self._gpu(gpu)

    def processes(self, slice_uuid: str) -> tuple[int, ...]:
        """Pids that compute on this slice, MPS clients included. Raises NvmlError, also for a slice that is gone."""
        self._ensure_open()
        try:
            device = pynvml.nvmlDeviceGetHandleByUUID(slice_uuid)
            running = list(pynvml.nvmlDeviceGetComputeRunningProcesses(device))
            with contextlib.suppress(pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
                running += pynvml.nvmlDeviceGetMPSComputeRunningProcesses(device)
        except pynvml.NVMLError as error:
            raise faults.told(error, f"listing the processes of {slice_uuid}") from error
        return tuple(sorted({process.pid for process in running}))

    def _ensure_open(self) -> None:
        if self._open:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise faults.told(error, "opening NVML") from error
        self._open = True

    def _renew(self) -> None:
        self.close()
        self._ensure_open()

    def _gpu(self, uuid: str) -> Gpu:
        self._ensure_open()
        try:
            index = pynvml.nvmlDeviceGetIndex(_device(uuid))
        except pynvml.NVMLError as error:
            raise faults.told(error, f"finding GPU {uuid}") from error
        return self._read_or_fault(index)

    def _read_or_fault(self, index: int) -> Gpu:
        try:
            self._known[index] = self._read(index)
        except pynvml.NVMLError as error:
            known = self._known.get(index, _never_read(index))
            return replace(known, fault=str(faults.told(error, "reading it")))
        return self._known[index]

    def _read(self, index: int) -> Gpu:
        try:
            return read_gpu(pynvml.nvmlDeviceGetHandleByIndex(index), index, self._caps)
        except _STALE:
            self._renew()
            return read_gpu(pynvml.nvmlDeviceGetHandleByIndex(index), index, self._caps)

    @contextlib.contextmanager
    def _naming_holders(self, gpu: Gpu, instance: Instance | None = None) -> Iterator[None]:
        try:
            yield
        except GpuBusy as busy:
            caps = [minor for minor in (instance.caps if instance else ()) if minor >= 0]
            devices = [self._dev_root / f"nvidia{gpu.minor}"]
            devices += [self._dev_root / "nvidia-caps" / f"nvidia-cap{minor}" for minor in caps]
            if who := holders(devices):
                busy.hint = f"held by {who}; {busy.hint}"
            raise


def _device(uuid: str) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        raise faults.told(error, f"finding GPU {uuid}") from error


def _never_read(index: int) -> Gpu:
    return Gpu(uuid="", index=index, minor=-1, name="", mig=MigMode.UNSUPPORTED, memory_mib=0)


def _profile(gpu: Gpu, name: str) -> GpuProfile:
    found = next((profile for profile in gpu.profiles if profile.name == name), None)
    if found is None:
        offered = ", ".join(profile.name for profile in gpu.profiles)
        raise NvmlError(f"GPU {gpu.index} ({gpu.name}) has no profile {name}", hint=f"it offers: {offered}")
    return found


def _offered(gpu: Gpu, name: str, start: int) -> GpuProfile:
    profile = _profile(gpu, name)
    if start not in profile.starts:
        raise NvmlError(f"{name} can't start at {start} on GPU {gpu.index}", hint=f"it can at: {profile.starts}")
    return profile


def _named(gpu: Gpu, name: str, start: int) -> Instance:
    found = next((i for i in gpu.instances if (i.profile, i.start) == (name, start)), None)
    if found is None:
        raise ReadBackError(f"no {name} at {start} on GPU {gpu.index}", hint="the inventory has changed: read it anew")
    if found.foreign:
        raise NvmlError(
            f"{name} at {start} on GPU {gpu.index} is somebody else's, with compute instances of their own",
            hint=f"remove them by hand: nvidia-smi mig -i {gpu.index} -gi {found.gi} -dci",
        )
    return found


def _read_back(after: Gpu, step: Step) -> Gpu:
    there = {(instance.profile, instance.start): instance for instance in after.instances}
    for name, start in step.destroy:
        if (name, start) in there and (name, start) not in step.create:
            raise ReadBackError(
                f"{name} at {start} on GPU {after.index} is still there", hint="read the inventory anew"
            )
    for name, start in step.create:
        made = there.get((name, start))
        if after.fault or made is None or made.ci < 0 or made.foreign:
            raise ReadBackError(
                f"{name} at {start} on GPU {after.index} was made but does not read back whole", hint=after.fault
            )
    return after
