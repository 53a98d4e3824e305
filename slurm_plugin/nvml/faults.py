"""What the GPU library's codes mean to us: one table."""

import pynvml

from slurm_plugin.errors import GpuBusy, NoRoom, NvmlError

IN_USE = 19
INSUFFICIENT_RESOURCES = 23
RESET_REQUIRED = 16

_KINDS: dict[int, tuple[type[NvmlError], str]] = {
    3: (NvmlError, "this GPU, or a virtual machine's view of it, can't be cut from here"),
    4: (NvmlError, "run as root: changing instances needs it"),
    9: (NvmlError, "load the driver (modprobe nvidia), or check that this node has GPUs"),
    12: (NvmlError, "install the driver's libnvidia-ml.so.1"),
    13: (NvmlError, "the driver is too old for MIG: R525 or newer is needed"),
    15: (NvmlError, "the GPU fell off the bus: look for Xid errors in the kernel log and reset it or reboot"),
    16: (NvmlError, "reset the GPU, or reboot"),
    18: (NvmlError, "driver and library differ: reload the kernel module, or reboot"),
    IN_USE: (GpuBusy, "stop what holds the GPU (DCGM, monitoring, persistence daemon) and try again"),
    INSUFFICIENT_RESOURCES: (NoRoom, "another instance is in the way, or the media engines are taken"),
}


def told(error: pynvml.NVMLError, doing: str) -> NvmlError:
    """This NVML error as one of ours: what we were doing, what the library said, what to do next."""
    kind, hint = _KINDS.get(error.value, (NvmlError, ""))
    return kind(f"{doing}: {error} (NVML {error.value})", hint=hint)
