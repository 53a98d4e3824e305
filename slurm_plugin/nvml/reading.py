"""One GPU as it is now, by NVML's word alone. Raises pynvml.NVMLError; writes nothing.

Two number spaces: only the profile query takes NVML's constants, every other call takes the driver's id. A GPU instance
without a compute instance has no MIG device, so instances are listed by profile and MIG devices put beside them.
"""

from collections.abc import Iterator, Mapping
from ctypes import byref, c_uint
from typing import Any

import pynvml

from slurm_plugin.model import Gpu, GpuProfile, Instance, MigMode
from slurm_plugin.nvml.caps import CapMinors

MOST_CONSTANTS = 64  # profile constants asked for; a driver says where its own end
MOST_PLACEMENTS = 64
MOST_INSTANCES = 32  # of one profile; more than any GPU holds, since NVML's own count is wrong on some boards

_PREFIX = "MIG "
_MIB = 1 << 20


def read_gpu(device: Any, index: int, caps: CapMinors) -> Gpu:
    minor = pynvml.nvmlDeviceGetMinorNumber(device)
    mig, instances_can_be = mig_mode(device)
    profiles = read_profiles(device) if mig is not MigMode.UNSUPPORTED else ()
    return Gpu(
        uuid=pynvml.nvmlDeviceGetUUID(device),
        index=index,
        minor=minor,
        name=pynvml.nvmlDeviceGetName(device),
        mig=mig,
        memory_mib=pynvml.nvmlDeviceGetMemoryInfo(device).total // _MIB,
        profiles=profiles,
        instances=_instances(device, profiles, minor, caps) if instances_can_be else (),
    )


def mig_mode(device: Any) -> tuple[MigMode, bool]:
    """The mode, and whether instances can exist right now."""
    try:
        current, pending = pynvml.nvmlDeviceGetMigMode(device)
    except pynvml.NVMLError_NotSupported:
        return MigMode.UNSUPPORTED, False
    if current != pending:
        return MigMode.PENDING, bool(current)
    return (MigMode.ENABLED, True) if current else (MigMode.DISABLED, False)


def read_profiles(device: Any) -> tuple[GpuProfile, ...]:
    """What this GPU offers. Drivers before R580 answer nothing while MIG is off: ()."""
    return tuple(_profile(device, info) for info in _offered(device))


def _offered(device: Any) -> Iterator[Any]:
    for constant in range(MOST_CONSTANTS):
        try:
            yield pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, constant)
        except pynvml.NVMLError_NotSupported:
            continue
        except pynvml.NVMLError_InvalidArgument:
            return


def _profile(device: Any, info: Any) -> GpuProfile:
    count = c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, info.id, None, byref(count))
    room = (pynvml.c_nvmlGpuInstancePlacement_t * max(1, min(count.value, MOST_PLACEMENTS)))()
    count.value = len(room)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, info.id, room, byref(count))
    places = room[: count.value]
    return GpuProfile(
        name=_text(info.name).removeprefix(_PREFIX),
        gi_profile_id=info.id,
        compute_slices=info.sliceCount,
        memory_mib=info.memorySizeMB,
        starts=tuple(sorted(place.start for place in places)),
        size=places[0].size,
        engines=(info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount),
    )


def _text(field: str | bytes) -> str:
    return field.decode() if isinstance(field, bytes) else field  # pynvml's releases differ


def _instances(device: Any, profiles: tuple[GpuProfile, ...], minor: int, caps: CapMinors) -> tuple[Instance, ...]:
    devices = mig_devices(device)
    found = [
        _instance(instance, profile, devices, (minor, caps))
        for profile in profiles
        for instance in _gpu_instances(device, profile.gi_profile_id)
    ]
    return tuple(sorted(found, key=lambda instance: instance.start))


def _gpu_instances(device: Any, profile_id: int) -> list[Any]:
    room = (pynvml.c_nvmlGpuInstance_t * MOST_INSTANCES)()
    count = c_uint(MOST_INSTANCES)
    pynvml.nvmlDeviceGetGpuInstances(device, profile_id, room, byref(count))
    return list(room[: count.value])


def _instance(
    handle: Any, profile: GpuProfile, devices: Mapping[int, Mapping[int, str]], where: tuple[int, CapMinors]
) -> Instance:
    info = pynvml.nvmlGpuInstanceGetInfo(handle)
    compute = devices.get(info.id, {})
    ci, uuid = next(iter(compute.items())) if len(compute) == 1 else (-1, "")
    minor, caps = where
    return Instance(
        profile=profile.name,
        start=info.placement.start,
        size=info.placement.size,
        gi=info.id,
        ci=ci,
        uuid=uuid,
        caps=caps.of(minor, info.id, ci),
        foreign=len(compute) > 1 or (ci >= 0 and not _is_whole(handle, ci, profile)),
    )


def mig_devices(device: Any) -> dict[int, dict[int, str]]:
    """UUIDs of MIG devices by GPU instance and compute instance. Indexes may have gaps."""
    found: dict[int, dict[int, str]] = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except pynvml.NVMLError_NotFound:
            continue
        gi, ci = pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig)
        found.setdefault(gi, {})[ci] = pynvml.nvmlDeviceGetUUID(mig)
    return found


def _is_whole(instance: Any, ci: int, profile: GpuProfile) -> bool:
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, ci)
    made_of: int = pynvml.nvmlComputeInstanceGetInfo(compute).profileId
    return made_of == whole_compute_profile(instance, profile.compute_slices)


def whole_compute_profile(instance: Any, compute_slices: int) -> int:
    """The compute-instance profile that covers a GPU instance: all its slices, and of those the most multiprocessors.

    It is not the profile of that many slices by number: the double-memory 1g has one of its own.
    """
    best = (0, -1)
    for constant in range(MOST_CONSTANTS):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, constant, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except pynvml.NVMLError_NotSupported:
            continue
        except pynvml.NVMLError_InvalidArgument:
            break
        if info.sliceCount == compute_slices:
            best = max(best, (info.multiprocessorCount, info.id))
    return best[1]
