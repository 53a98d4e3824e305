"""Destroying and creating one instance, at the placement it was named by. Raises our errors.

An instance either stays as it was or changes as a whole: what a failure leaves half made is put back or taken away, and
where that fails too the error says so.
"""

from ctypes import byref
from typing import Any

import pynvml

from slurm_plugin.errors import NvmlError, ReadBackError
from slurm_plugin.model import GpuProfile, Instance
from slurm_plugin.nvml.faults import told
from slurm_plugin.nvml.reading import whole_compute_profile


def destroy(device: Any, instance: Instance, profile: GpuProfile) -> None:
    """Compute instance first, then GPU instance. Refused (GpuBusy), it is as before."""
    what = f"destroying {instance.profile} at {instance.start}"
    try:
        handle = pynvml.nvmlDeviceGetGpuInstanceById(device, instance.gi)
        _check(handle, profile, instance.start)
        if instance.ci >= 0:
            pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(handle, instance.ci))
    except pynvml.NVMLError as error:
        raise told(error, what) from error
    try:
        pynvml.nvmlGpuInstanceDestroy(handle)
    except pynvml.NVMLError as error:
        failed = told(error, what)
        if instance.ci >= 0:
            _put_back(handle, profile, failed)
        raise failed from error


def create(device: Any, profile: GpuProfile, start: int) -> None:
    """GPU instance at this start, and one compute instance over the whole of it."""
    what = f"creating {profile.name} at {start}"
    placement = pynvml.c_nvmlGpuInstancePlacement_t()
    placement.start, placement.size = start, profile.size
    try:
        handle = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.gi_profile_id, byref(placement))
    except pynvml.NVMLError as error:
        raise told(error, what) from error
    try:
        _check(handle, profile, start)
        _make_whole(handle, profile)
    except pynvml.NVMLError as error:
        failed = told(error, what)
        _take_away(handle, failed)
        raise failed from error
    except ReadBackError as failed:
        _take_away(handle, failed)
        raise


def _make_whole(handle: Any, profile: GpuProfile) -> None:
    pynvml.nvmlGpuInstanceCreateComputeInstance(handle, whole_compute_profile(handle, profile.compute_slices))


def _check(handle: Any, profile: GpuProfile, start: int) -> None:
    info = pynvml.nvmlGpuInstanceGetInfo(handle)
    seen = (info.profileId, info.placement.start, info.placement.size)
    if seen != (profile.gi_profile_id, start, profile.size):
        raise ReadBackError(
            f"GPU instance {info.id} is profile id {seen[0]} at {seen[1]}:{seen[2]}, not {profile.name} at {start}",
            hint="something else changes this GPU's instances; nothing of it was touched",
        )


def _put_back(handle: Any, profile: GpuProfile, failed: NvmlError) -> None:
    try:
        _make_whole(handle, profile)
    except pynvml.NVMLError as error:
        failed.add_note(f"its compute instance is gone and could not be made again: {error}")


def _take_away(handle: Any, failed: NvmlError) -> None:
    try:
        pynvml.nvmlGpuInstanceDestroy(handle)
    except pynvml.NVMLError as error:
        failed.add_note(f"the half-made instance could not be removed: {error}")
