"""Every call of the simulated library, with arguments good and bad. Run under the sanitizers, by itself."""

import ctypes
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p
from itertools import count

import pynvml

LIBRARY = ctypes.CDLL("libnvidia-ml.so.1")
CALLS = {name: getattr(LIBRARY, name) for name in ("nvmlInit_v2", "nvmlShutdown", "nvmlErrorString")}


def text(call: str, *before: object) -> None:
    """A call that fills a string: with room, without room, without a buffer."""
    for room in (96, 1):
        buffer = (c_char * room)()
        getattr(LIBRARY, call)(*before, buffer, c_uint(room))
    getattr(LIBRARY, call)(*before, None, c_uint(0))


def out(call: str, *before: object, kind: type = c_uint, many: int = 1) -> None:
    """A call that fills `many` numbers or structures: with them, and without."""
    getattr(LIBRARY, call)(*before, *(byref(kind()) for _ in range(many)))
    getattr(LIBRARY, call)(*before, *([None] * many))


def devices(handle: c_void_p) -> None:
    """Every call that takes a device, with any handle at all."""
    for call in ("Name", "UUID", "Serial"):
        text(f"nvmlDeviceGet{call}", handle)
    numbers = (
        "MinorNumber Index PersistenceMode PowerUsage PowerManagementLimit PerformanceState ComputeMode DisplayMode "
        "DisplayActive FanSpeed GpuInstanceId ComputeInstanceId MaxMigDeviceCount VirtualizationMode"
    )
    for call in numbers.split():
        out(f"nvmlDeviceGet{call}", handle)
    for call in ("EncoderUtilization", "DecoderUtilization", "DriverModel", "MigMode"):
        out(f"nvmlDeviceGet{call}", handle, many=2)
    out("nvmlDeviceGetCudaComputeCapability", handle, kind=c_int, many=2)
    out("nvmlDeviceIsMigDeviceHandle", handle)
    out("nvmlDeviceGetTemperature", handle, c_int(0))
    out("nvmlDeviceGetTotalEccErrors", handle, c_int(0), c_int(0), kind=c_ulonglong)
    out("nvmlDeviceGetPciInfo_v3", handle, kind=pynvml.nvmlPciInfo_t)
    out("nvmlDeviceGetMemoryInfo", handle, kind=pynvml.c_nvmlMemory_t)
    out("nvmlDeviceGetMemoryInfo_v2", handle, kind=pynvml.c_nvmlMemory_v2_t)
    out("nvmlDeviceGetBAR1MemoryInfo", handle, kind=pynvml.c_nvmlBAR1Memory_t)
    out("nvmlDeviceGetUtilizationRates", handle, kind=pynvml.c_nvmlUtilization_t)
    out("nvmlDeviceGetAttributes_v2", handle, kind=pynvml.c_nvmlDeviceAttributes)
    out("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, kind=c_void_p)
    out("nvmlDeviceGetMigDeviceHandleByIndex", handle, c_uint(0), kind=c_void_p)
    out("nvmlDeviceGetSupportedEventTypes", handle, kind=c_ulonglong)
    out("nvmlDeviceRegisterEvents", handle, c_ulonglong(0x8), kind=c_ulonglong)
    fields = (pynvml.c_nvmlFieldValue_t * 3)()
    for field, number in zip(fields, (184, 199, 1), strict=True):
        field.fieldId = number
    LIBRARY.nvmlDeviceGetFieldValues(handle, c_int(3), fields)
    LIBRARY.nvmlDeviceGetFieldValues(handle, c_int(0), None)
    for kind in ("Compute", "Graphics", "MPSCompute"):
        processes(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle)


def processes(call: str, handle: c_void_p) -> None:
    for room in (0, 4):
        number = c_uint(room)
        getattr(LIBRARY, call)(handle, byref(number), (pynvml.c_nvmlProcessInfo_v3_t * 4)() if room else None)
    getattr(LIBRARY, call)(handle, None, None)


def gpu_profiles(handle: c_void_p, number: int) -> None:
    old, new = pynvml.c_nvmlGpuInstanceProfileInfo_t(), pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    LIBRARY.nvmlDeviceGetGpuInstanceProfileInfo(handle, c_uint(number), byref(old))
    for call in ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstanceProfileInfoByIdV"):
        getattr(LIBRARY, call)(handle, c_uint(number), byref(new))
    placements("nvmlDeviceGetGpuInstancePossiblePlacements_v2", handle, number)
    out("nvmlDeviceGetGpuInstanceRemainingCapacity", handle, c_uint(number))
    instances = (c_void_p * 8)()
    LIBRARY.nvmlDeviceGetGpuInstances(handle, c_uint(number), instances, byref(c_uint()))
    out("nvmlDeviceGetGpuInstanceById", handle, c_uint(number), kind=c_void_p)


def placements(call: str, handle: c_void_p, number: int) -> None:
    room = (pynvml.c_nvmlGpuInstancePlacement_t * 12)()
    for given, size in ((room, 12), (room, 0), (None, 0)):
        getattr(LIBRARY, call)(handle, c_uint(number), given, byref(c_uint(size)))
    getattr(LIBRARY, call)(handle, c_uint(number), None, None)


def compute_profiles(instance: c_void_p, number: int) -> None:
    old, new = pynvml.c_nvmlComputeInstanceProfileInfo_t(), pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
    LIBRARY.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, c_uint(number), c_uint(0), byref(old))
    LIBRARY.nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, c_uint(number), c_uint(0), byref(new))
    placements("nvmlGpuInstanceGetComputeInstancePossiblePlacements", instance, number)
    out("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", instance, c_uint(number))
    LIBRARY.nvmlGpuInstanceGetComputeInstances(instance, c_uint(number), (c_void_p * 8)(), byref(c_uint()))
    out("nvmlGpuInstanceGetComputeInstanceById", instance, c_uint(number), kind=c_void_p)


def live_through(device: c_void_p) -> None:
    """Every profile made, looked at and destroyed, with each compute profile it has."""
    placement = pynvml.c_nvmlGpuInstancePlacement_t()
    for profile, placement.size in ((19, 1), (20, 1), (15, 2), (14, 2), (9, 4), (5, 4), (0, 8)):
        instance, compute = c_void_p(), c_void_p()
        create = LIBRARY.nvmlDeviceCreateGpuInstanceWithPlacement
        assert create(device, c_uint(profile), byref(placement), byref(instance)) == 0
        out("nvmlGpuInstanceGetInfo", instance, kind=pynvml.c_nvmlGpuInstanceInfo_t)
        for number in range(10):
            compute_profiles(instance, number)
            spot = pynvml.c_nvmlComputeInstancePlacement_t()
            spot.size = max(1, number)
            LIBRARY.nvmlGpuInstanceCreateComputeInstanceWithPlacement(
                instance, c_uint(number), byref(spot), byref(compute)
            )
            while LIBRARY.nvmlGpuInstanceCreateComputeInstance(instance, c_uint(number), byref(compute)) == 0:
                out("nvmlComputeInstanceGetInfo_v2", compute, kind=pynvml.c_nvmlComputeInstanceInfo_t)
            mig = c_void_p()
            if LIBRARY.nvmlDeviceGetMigDeviceHandleByIndex(device, c_uint(0), byref(mig)) == 0:
                devices(mig)
            empty(device, instance)
        assert LIBRARY.nvmlGpuInstanceDestroy(instance) == 0


def empty(device: c_void_p, instance: c_void_p) -> None:
    for number in range(8):
        compute = c_void_p()
        if LIBRARY.nvmlGpuInstanceGetComputeInstanceById(instance, c_uint(number), byref(compute)) == 0:
            assert LIBRARY.nvmlComputeInstanceDestroy(compute) == 0


def strings() -> None:
    for call in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"):
        text(call)
    text("nvmlSystemGetProcessName", c_uint(1))
    text("nvmlSystemGetProcessName", c_uint(0))
    for call in ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        out(call, kind=c_int)
    out("nvmlDeviceGetCount_v2")
    for call in ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2"):
        for name in (b"", b"x" * 4000, b"0000:0A:00.0"):
            out(call, name, kind=c_void_p)
    assert all(pynvml.nvmlErrorString(code) for code in range(1000))


def events(device: c_void_p) -> None:
    out("nvmlEventSetCreate", kind=c_void_p)
    held = c_void_p()
    assert LIBRARY.nvmlEventSetCreate(byref(held)) == 0
    for types in (0x8, 1 << 40):
        LIBRARY.nvmlDeviceRegisterEvents(device, c_ulonglong(types), held)
    LIBRARY.nvmlEventSetWait_v2(held, byref(pynvml.c_nvmlEventData_t()), c_uint(1))
    LIBRARY.nvmlEventSetWait_v2(held, None, c_uint(1))
    LIBRARY.nvmlEventSetFree(held)


def main() -> None:
    assert LIBRARY.nvmlInit_v2() == 0
    pynvml.nvmlInit()
    strings()
    device = c_void_p()
    assert LIBRARY.nvmlDeviceGetHandleByIndex_v2(c_uint(0), byref(device)) == 0
    LIBRARY.nvmlDeviceGetHandleByIndex_v2(c_uint(4_000_000_000), byref(c_void_p()))
    wild = [c_void_p(), c_void_p(1), c_void_p((1 << 64) - 1), *(c_void_p(kind << 24 | 0xFFFF) for kind in range(16))]
    for handle in (device, *wild):
        devices(handle)
        for call in ("nvmlGpuInstanceGetInfo", "nvmlComputeInstanceGetInfo_v2"):
            out(call, handle, kind=pynvml.c_nvmlComputeInstanceInfo_t)
        for number in (*range(20), 65, 4_000_000_000):
            gpu_profiles(handle, number)
            compute_profiles(handle, number)
        for call in ("nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"):
            getattr(LIBRARY, call)(handle)
    live_through(device)
    made = c_void_p()
    turns = next(turn for turn in count() if LIBRARY.nvmlDeviceCreateGpuInstance(device, c_uint(19), byref(made)) != 0)
    assert turns == 7
    events(device)
    for mode in (0, 1, 2):
        out("nvmlDeviceSetMigMode", device, c_uint(mode), kind=c_int)
    assert LIBRARY.nvmlShutdown() == 0
    pynvml.nvmlShutdown()


if __name__ == "__main__":
    main()
