"""Switching a whole GPU to MIG. Models before Hopper are reset for it, by the driver and within the same call.

A reset takes everything on the GPU with it. So it is made where it is allowed and nobody is on the GPU, and never from
a virtual machine that the GPU is passed through to: there the mode would stay pending, which some can't get rid of.
"""

import contextlib
from pathlib import Path
from typing import Any

import pynvml

from slurm_plugin.errors import GpuBusy, NvmlError
from slurm_plugin.model import Gpu
from slurm_plugin.nvml import faults
from slurm_plugin.nvml.holders import describe, holders

_HOPPER = 9  # compute capability: from here on no reset is needed
_NOT_ASKED = (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported)  # by an older driver


def enable(device: Any, gpu: Gpu, node: Path, *, may_reset: bool) -> None:
    """`node`: the GPU's device file. Raises GpuBusy, NvmlError.

    Crash: the mode is off, pending or on, and the driver says which.
    """
    what = f"switching GPU {gpu.index} to MIG"
    try:
        if all(pynvml.nvmlDeviceGetMigMode(device)):
            return
        if needs_reset(device):
            _may_be_reset(device, gpu, node, may_reset=may_reset)
        status = pynvml.nvmlDeviceSetMigMode(device, pynvml.NVML_DEVICE_MIG_ENABLE)
    except pynvml.NVMLError as error:
        raise faults.told(error, what) from error
    if status not in (pynvml.NVML_SUCCESS, faults.RESET_REQUIRED):  # answered, never raised
        raise faults.told(pynvml.NVMLError(status), what)


def needs_reset(device: Any) -> bool:
    """Is a change of the mode in force only after a reset?"""
    with contextlib.suppress(*_NOT_ASKED):
        (told,) = pynvml.nvmlDeviceGetFieldValues(device, [pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED])
        if told.nvmlReturn == pynvml.NVML_SUCCESS:
            return not told.value.uiVal
    major: int = pynvml.nvmlDeviceGetCudaComputeCapability(device)[0]
    return major < _HOPPER


def _may_be_reset(device: Any, gpu: Gpu, node: Path, *, may_reset: bool) -> None:
    by_hand = f"nvidia-smi -i {gpu.index} -mig 1"
    current, pending = pynvml.nvmlDeviceGetMigMode(device)
    if current and not pending:
        raise NvmlError(f"somebody has GPU {gpu.index} leave MIG mode", hint=f"if it is to stay: {by_hand}")
    if not may_reset:
        raise NvmlError(
            f"GPU {gpu.index} has to be reset to enter MIG mode, and planning.reset_gpus does not allow it",
            hint=f"allow it, or when nothing uses the GPU: {by_hand}",
        )
    if _virtual(device):
        raise NvmlError(
            f"GPU {gpu.index} has to be reset to enter MIG mode, and a virtual machine can't reset it",
            hint=f"{by_hand}, and reboot this virtual machine",
        )
    if who := holders([node]) or ", ".join(map(describe, _computing(device))):
        raise GpuBusy(f"GPU {gpu.index} has to be reset to enter MIG mode, and is in use", hint=f"held by {who}")


def _virtual(device: Any) -> bool:
    with contextlib.suppress(*_NOT_ASKED):
        mode: int = pynvml.nvmlDeviceGetVirtualizationMode(device)
        return mode in (pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH, pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)
    return False


def _computing(device: Any) -> list[int]:
    return sorted({process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)})
