"""GPUs that enter MIG mode: at once, by a reset that is allowed, or not from here."""

from pathlib import Path

import pynvml
import pytest

from slurm_plugin.errors import GpuBusy, NvmlError
from slurm_plugin.lab import simgpu
from slurm_plugin.lab.nvml.boards import SimGpu
from slurm_plugin.model import MigMode
from slurm_plugin.nvml import NvmlGpus
from tests.contract.nvml import rig

IN_USE, NO_FUNCTION = 19, 13


def off(state: Path, product: str = "a100-40gb", *, passthrough: bool = False) -> None:
    simgpu.create(state, product=[SimGpu(product=product, mig=False, passthrough=passthrough)])


def enabled(gpus: NvmlGpus, *, may_reset: bool = True) -> MigMode:
    return gpus.enable_mig(gpus.inventory()[0].uuid, may_reset=may_reset).mig


def test_hopper_enters_it_at_once_and_nobody_has_to_allow_it(state: Path, gpus: NvmlGpus) -> None:
    off(state, "h100-80gb")
    assert enabled(gpus, may_reset=False) is MigMode.ENABLED


def test_ampere_enters_it_by_a_reset_that_is_allowed(state: Path, gpus: NvmlGpus) -> None:
    off(state)
    assert enabled(gpus) is MigMode.ENABLED


@pytest.mark.parametrize("older", [False, True], ids=["", "a driver that does not say who needs a reset"])
@pytest.mark.parametrize("product", ["a100-40gb", "a30-24gb"])
def test_what_is_not_allowed_changes_nothing(state: Path, gpus: NvmlGpus, product: str, older: bool) -> None:
    off(state, product)
    if older:
        simgpu.inject(state, call="nvmlDeviceGetFieldValues", code=NO_FUNCTION, times=9)
    with pytest.raises(NvmlError, match=r"planning\.reset_gpus does not allow it") as refused:
        enabled(gpus, may_reset=False)
    assert "nvidia-smi -i 0 -mig 1" in refused.value.hint
    assert simgpu.snapshot(state).mig == ((False, False),)


def test_an_older_driver_does_not_keep_hopper_from_it(state: Path, gpus: NvmlGpus) -> None:
    off(state, "h100-80gb")
    simgpu.inject(state, call="nvmlDeviceGetFieldValues", code=NO_FUNCTION, times=9)
    assert enabled(gpus, may_reset=False) is MigMode.ENABLED


def test_a_virtual_machine_leaves_it_as_it_is_and_says_what_to_do(state: Path, gpus: NvmlGpus) -> None:
    off(state, passthrough=True)
    with pytest.raises(NvmlError, match="a virtual machine can't reset it") as refused:
        enabled(gpus)
    assert "reboot this virtual machine" in refused.value.hint
    assert simgpu.snapshot(state).mig == ((False, False),)
    (gpu,) = gpus.inventory()
    with rig.session():
        pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid), 1)
    assert gpus.inventory()[0].mig is MigMode.PENDING
    simgpu.reboot(state)
    assert gpus.inventory()[0].mig is MigMode.ENABLED


def test_hopper_in_a_virtual_machine_needs_none(state: Path, gpus: NvmlGpus) -> None:
    off(state, "h100-80gb", passthrough=True)
    assert enabled(gpus) is MigMode.ENABLED


@pytest.mark.parametrize("shows", ["in NVML", "in /proc"])
def test_a_gpu_that_somebody_uses_is_not_reset_and_he_is_named(state: Path, gpus: NvmlGpus, shows: str) -> None:
    off(state)
    uuid = gpus.inventory()[0].uuid
    with rig.holder(state.parent / f"dev/nvidia{0 if shows == 'in /proc' else 'ctl'}") as process:
        if shows == "in NVML":
            simgpu.add_process(state, uuid, process.pid)
        with pytest.raises(GpuBusy) as busy:
            enabled(gpus)
    assert f"pid {process.pid}" in busy.value.hint
    assert simgpu.snapshot(state).mig == ((False, False),)


def test_who_comes_in_the_last_moment_leaves_it_pending_and_a_reset_then_brings_it(state: Path, gpus: NvmlGpus) -> None:
    off(state)
    simgpu.inject(state, call="activation", code=IN_USE)
    with pytest.raises(GpuBusy):
        enabled(gpus)
    assert gpus.inventory()[0].mig is MigMode.PENDING
    assert enabled(gpus) is MigMode.ENABLED


def test_a_gpu_that_somebody_has_leave_it_is_left_to_him(state: Path, gpus: NvmlGpus) -> None:
    simgpu.create(state, product=[SimGpu(product="a100-40gb")])
    (gpu,) = gpus.inventory()
    simgpu.inject(state, call="activation", code=IN_USE)
    with rig.session():
        pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid), 0)
    assert simgpu.snapshot(state).mig == ((True, False),)
    with pytest.raises(NvmlError, match="leave MIG mode"):
        enabled(gpus)
    assert simgpu.snapshot(state).mig == ((True, False),)
