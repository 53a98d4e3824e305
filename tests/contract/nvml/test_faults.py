"""The adapter when GPUs misbehave. Each of these was met by somebody on real hardware."""

import subprocess
import sys
from ctypes import byref, c_uint
from pathlib import Path
from threading import Thread

import pynvml
import pytest

from slurm_plugin.errors import GpuBusy, NvmlError
from slurm_plugin.lab import simgpu
from slurm_plugin.lab.nvml.boards import SimGpu
from slurm_plugin.model import Gpu, MigMode, Step
from slurm_plugin.nvml import NvmlGpus
from tests.contract.nvml import rig

CREATE_GI = "nvmlDeviceCreateGpuInstanceWithPlacement"
CREATE_CI = "nvmlGpuInstanceCreateComputeInstance"
DESTROY_GI = "nvmlGpuInstanceDestroy"
DESTROY_CI = "nvmlComputeInstanceDestroy"
UNKNOWN = 999


def cut(gpus: NvmlGpus, *create: tuple[str, int]) -> Gpu:
    return gpus.apply(Step(gpu=gpus.inventory()[0].uuid, create=create))


def clear_out(gpus: NvmlGpus, *destroy: tuple[str, int]) -> Gpu:
    return gpus.apply(Step(gpu=gpus.inventory()[0].uuid, destroy=destroy))


def test_a_failed_compute_instance_takes_its_gpu_instance_along(h100: Path, gpus: NvmlGpus) -> None:
    simgpu.inject(h100, call=CREATE_CI, code=UNKNOWN)
    with pytest.raises(NvmlError, match=r"creating 2g\.20gb at 0"):
        cut(gpus, ("2g.20gb", 0))
    assert simgpu.snapshot(h100).instances == ()
    assert [i.ci for i in cut(gpus, ("2g.20gb", 0)).instances] == [0]


def test_a_half_made_instance_that_cannot_be_removed_is_told_and_cleaned_later(h100: Path, gpus: NvmlGpus) -> None:
    simgpu.inject(h100, call=CREATE_CI, code=UNKNOWN)
    simgpu.inject(h100, call=DESTROY_GI, code=19)
    with pytest.raises(NvmlError) as failed:
        cut(gpus, ("2g.20gb", 0))
    assert "could not be removed" in " ".join(failed.value.__notes__)
    (half,) = gpus.inventory()[0].instances
    assert (half.profile, half.ci, half.uuid) == ("2g.20gb", -1, "")
    assert clear_out(gpus, ("2g.20gb", 0)).instances == ()


def test_a_failure_in_the_middle_keeps_what_was_made_before_it(h100: Path, gpus: NvmlGpus) -> None:
    simgpu.inject(h100, call=CREATE_GI, code=0, times=2)  # two go through, counted down without a fault
    simgpu.inject(h100, call=CREATE_GI, code=UNKNOWN)
    with pytest.raises(NvmlError, match=r"creating 1g\.10gb at 2"):
        cut(gpus, ("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2), ("1g.10gb", 3))
    assert [(i.start, i.ci) for i in gpus.inventory()[0].instances] == [(0, 0), (1, 0)]


def test_a_stuck_instance_is_busy_names_who_holds_it_and_stays_whole(h100: Path, gpus: NvmlGpus) -> None:
    (before,) = cut(gpus, ("3g.40gb", 4)).instances
    simgpu.stick(h100, before.uuid)
    cap = h100.parent / f"dev/nvidia-caps/nvidia-cap{before.caps[0]}"
    with rig.holder(cap) as process, pytest.raises(GpuBusy) as busy:
        clear_out(gpus, ("3g.40gb", 4))
    assert f"pid {process.pid} (python" in busy.value.hint
    assert gpus.inventory()[0].instances == (before,)
    simgpu.clear(h100)
    assert clear_out(gpus, ("3g.40gb", 4)).instances == ()


def test_a_refused_gpu_instance_gets_its_compute_instance_back(h100: Path, gpus: NvmlGpus) -> None:
    (before,) = cut(gpus, ("3g.40gb", 4)).instances
    simgpu.inject(h100, call=DESTROY_GI, code=19)
    with pytest.raises(GpuBusy):
        clear_out(gpus, ("3g.40gb", 4))
    assert gpus.inventory()[0].instances == (before,)


def test_a_slice_with_a_process_is_busy_and_shows_it(h100: Path, gpus: NvmlGpus) -> None:
    (used, _) = cut(gpus, ("1g.10gb", 0), ("1g.10gb", 1)).instances
    with rig.holder(h100.parent / f"dev/nvidia-caps/nvidia-cap{used.caps[1]}") as process:
        simgpu.add_process(h100, used.uuid, process.pid)
        assert gpus.processes(used.uuid) == (process.pid,)
        with pytest.raises(GpuBusy) as busy:
            clear_out(gpus, ("1g.10gb", 0))
        assert str(process.pid) in busy.value.hint
        assert [i.start for i in clear_out(gpus, ("1g.10gb", 1)).instances] == [0]
        simgpu.remove_process(h100, process.pid)
    assert clear_out(gpus, ("1g.10gb", 0)).instances == ()


def test_a_gpu_another_client_works_on_is_busy_for_creation_too(h100: Path, gpus: NvmlGpus) -> None:
    simgpu.inject(h100, call=CREATE_GI, code=19)
    with rig.holder(h100.parent / "dev/nvidia0") as process, pytest.raises(GpuBusy) as busy:
        cut(gpus, ("1g.10gb", 0))
    assert busy.value.transient
    assert f"pid {process.pid}" in busy.value.hint


def test_a_session_that_remembers_what_is_gone_does_not_fool_us(state: Path, gpus: NvmlGpus) -> None:
    simgpu.create(state, product="h100-80gb", stale_sessions=True)
    cut(gpus, ("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2))
    assert [i.start for i in clear_out(gpus, ("1g.10gb", 1)).instances] == [0, 2]
    assert [i.start for i in gpus.inventory()[0].instances] == [0, 2]


def test_the_simulated_session_does_remember_what_is_gone(state: Path) -> None:
    """Without this, the test above would prove nothing."""
    simgpu.create(state, product="h100-80gb", stale_sessions=True)
    listed = (pynvml.c_nvmlGpuInstance_t * 8)()
    count = c_uint()
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlGpuInstanceDestroy(pynvml.nvmlDeviceCreateGpuInstance(device, 19))
        pynvml.nvmlDeviceGetGpuInstances(device, 19, listed, byref(count))
        assert count.value == 1
        assert pynvml.nvmlGpuInstanceGetInfo(listed[0]).profileId == 19
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlGpuInstanceDestroy(listed[0])
    with rig.session():
        pynvml.nvmlDeviceGetGpuInstances(device, 19, listed, byref(count))
        assert count.value == 0


@pytest.mark.parametrize("call", ["nvmlGpuInstanceGetInfo", "nvmlDeviceGetUUID"])
@pytest.mark.parametrize("code", [1, 2, 6])
def test_what_another_client_destroys_while_we_look_is_looked_at_again(
    h100: Path, gpus: NvmlGpus, call: str, code: int
) -> None:
    """A handle listed a moment ago is dead when it is asked: uninitialised, invalid, or not found."""
    before = cut(gpus, ("1g.10gb", 0), ("1g.10gb", 1))
    simgpu.inject(h100, call=call, code=code)
    assert gpus.inventory() == (before,)


def test_one_lost_gpu_leaves_the_other_usable_and_is_shown_as_last_seen(state: Path, gpus: NvmlGpus) -> None:
    simgpu.create(state, product="h100-80gb", count=2)
    cut(gpus, ("7g.80gb", 0))
    first, second = gpus.inventory()
    simgpu.lose(state, 0)
    lost, fine = gpus.inventory()
    assert "GPU is lost" in lost.fault
    assert (lost.uuid, lost.instances) == (first.uuid, first.instances)
    assert fine == second
    assert gpus.apply(Step(gpu=second.uuid, create=(("1g.10gb", 0),))).fault == ""
    with pytest.raises(NvmlError, match="lost"):
        gpus.apply(Step(gpu=first.uuid, destroy=(("7g.80gb", 0),)))
    simgpu.clear(state)
    assert gpus.inventory()[0] == first


def test_a_gpu_lost_from_the_start_has_no_uuid_to_be_planned_on(state: Path, gpus: NvmlGpus) -> None:
    simgpu.create(state, product="h100-80gb", count=2)
    simgpu.lose(state, 1)
    fine, lost = gpus.inventory()
    assert (fine.fault, lost.uuid, lost.index) == ("", "", 1)
    assert lost.fault


def test_with_a_gpu_gone_from_the_bus_no_other_is_taken_for_it(state: Path, gpus: NvmlGpus) -> None:
    simgpu.create(state, product="h100-80gb", count=3)
    gpus.inventory()
    gpus.close()
    simgpu.create(state, product="h100-80gb", count=2)
    simgpu.lose(state, 0)
    assert [(gpu.uuid == "", bool(gpu.fault)) for gpu in gpus.inventory()] == [(True, True), (False, False)]


@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMinorNumber"],
)
def test_any_failing_query_is_one_gpus_fault_and_passes(state: Path, gpus: NvmlGpus, call: str) -> None:
    simgpu.create(state, product="h100-80gb", count=3)
    before = gpus.inventory()
    simgpu.inject(state, call=call, code=UNKNOWN, gpu=1)
    faulty = gpus.inventory()
    assert [bool(gpu.fault) for gpu in faulty] == [False, True, False]
    assert gpus.inventory() == before


def test_gpus_without_mig_or_with_mig_off_are_told_as_such(state: Path, gpus: NvmlGpus) -> None:
    simgpu.create(state, product=[SimGpu(product="l40s-48gb"), SimGpu(product="h100-80gb", mig=False)])
    plain, off = gpus.inventory()
    assert (plain.mig, plain.profiles, plain.fault) == (MigMode.UNSUPPORTED, (), "")
    assert (off.mig, off.fault, off.instances) == (MigMode.DISABLED, "", ())
    assert "1g.10gb" in [profile.name for profile in off.profiles]
    with pytest.raises(NvmlError, match="MIG is disabled"):
        gpus.apply(Step(gpu=off.uuid, create=(("1g.10gb", 0),)))
    with pytest.raises(NvmlError, match="has no MIG"):
        gpus.enable_mig(plain.uuid)


def test_an_older_driver_that_hides_profiles_while_mig_is_off_is_no_fault(state: Path, gpus: NvmlGpus) -> None:
    simgpu.create(state, product=[SimGpu(mig=False)], profiles_when_disabled=False)
    (gpu,) = gpus.inventory()
    assert (gpu.mig, gpu.profiles, gpu.fault) == (MigMode.DISABLED, (), "")
    assert gpus.enable_mig(gpu.uuid).profiles


def test_an_answer_that_nvml_does_not_raise_is_not_taken_for_success(state: Path, gpus: NvmlGpus) -> None:
    simgpu.create(state, product=[SimGpu(mig=False)])
    simgpu.inject(state, call="activation", code=UNKNOWN)
    with pytest.raises(NvmlError, match="switching GPU 0 to MIG"):
        gpus.enable_mig(gpus.inventory()[0].uuid)


@pytest.mark.parametrize(("product", "after"), [("h100-80gb", MigMode.DISABLED), ("a100-40gb", MigMode.ENABLED)])
def test_after_a_reboot_instances_are_gone_and_the_mode_is_the_architectures(
    state: Path, gpus: NvmlGpus, product: str, after: MigMode
) -> None:
    simgpu.create(state, product=product)
    whole = max(gpus.inventory()[0].profiles, key=lambda profile: profile.size)
    cut(gpus, (whole.name, 0))
    gpus.close()
    simgpu.reboot(state)
    (gpu,) = gpus.inventory()
    assert (gpu.mig, gpu.instances, gpu.fault) == (after, (), "")


def test_without_a_driver_the_error_says_what_to_do(state: Path, gpus: NvmlGpus) -> None:
    with pytest.raises(NvmlError, match="Driver Not Loaded") as failed:
        gpus.inventory()
    assert "modprobe" in failed.value.hint
    simgpu.create(state)
    assert len(gpus.inventory()) == 1


def test_library_and_driver_that_differ_are_an_error_that_passes(h100: Path, gpus: NvmlGpus) -> None:
    simgpu.inject(h100, call="nvmlInit", code=18)
    with pytest.raises(NvmlError) as failed:
        gpus.inventory()
    assert "reboot" in failed.value.hint
    assert len(gpus.inventory()) == 1


def test_two_products_and_crossed_minor_numbers_on_one_node(state: Path, gpus: NvmlGpus) -> None:
    simgpu.create(state, product=[SimGpu(product="h100-80gb", minor=1), SimGpu(product="a30", minor=0)])
    first, second = gpus.inventory()
    (h100,) = gpus.apply(Step(gpu=first.uuid, create=(("1g.10gb", 6),))).instances
    (a30,) = gpus.apply(Step(gpu=second.uuid, create=(("1g.6gb", 3),))).instances
    assert (h100.gi, h100.caps) == (13, (3 + 135 + 9 * 13, 3 + 135 + 9 * 13 + 1))
    assert (a30.gi, a30.caps) == (6, (3 + 9 * 6, 3 + 9 * 6 + 1))


def test_without_the_drivers_list_capabilities_are_unknown_and_not_guessed(h100: Path, gpus: NvmlGpus) -> None:
    listed = h100.parent / "proc/driver/nvidia-caps/mig-minors"
    text = listed.read_text()
    listed.unlink()
    (instance,) = cut(gpus, ("1g.10gb", 0)).instances
    assert instance.caps == (-1, -1)
    listed.write_text(text)
    assert gpus.inventory()[0].instances[0].caps == (66, 67)


def test_an_extra_use_of_nvml_in_the_process_is_left_open(h100: Path, gpus: NvmlGpus) -> None:
    with rig.session():
        cut(gpus, ("1g.10gb", 0))
        clear_out(gpus, ("1g.10gb", 0))
        gpus.close()
        gpus.close()
        assert pynvml.nvmlDeviceGetCount() == 1


def test_a_slow_call_is_slow_for_its_caller_only(h100: Path, gpus: NvmlGpus) -> None:
    gpus.inventory()
    simgpu.inject(h100, call="nvmlDeviceGetSerial", delay_ms=1500)
    slow = Thread(target=lambda: pynvml.nvmlDeviceGetSerial(pynvml.nvmlDeviceGetHandleByIndex(0)))
    slow.start()
    while simgpu.snapshot(h100).calls.get("nvmlDeviceGetSerial", 0) == 0:
        pass
    gpus.inventory()
    assert slow.is_alive()
    slow.join()


def step_in_a_client(state: Path, *, destroy: str, create: str) -> subprocess.CompletedProcess[str]:
    code = (
        "from pathlib import Path\n"
        "from slurm_plugin.model import Step\n"
        "from slurm_plugin.nvml import NvmlGpus\n"
        f"folder = Path({str(state.parent)!r})\n"
        "gpus = NvmlGpus(proc_root=folder / 'proc', dev_root=folder / 'dev')\n"
        f"gpus.apply(Step(gpu=gpus.inventory()[0].uuid, destroy=({destroy}), create=({create})))\n"
    )
    env = {"LD_LIBRARY_PATH": str(simgpu.LIBRARY_FOLDER), "VGPU_SIM_STATE": str(state), "PYTHONPATH": str(Path.cwd())}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("call", [DESTROY_CI, DESTROY_GI, CREATE_GI, CREATE_CI])
@pytest.mark.parametrize("point", ["before", "inside", "after"])
def test_killed_anywhere_in_a_step_the_next_inventory_is_true_and_one_step_repairs(
    h100: Path, gpus: NvmlGpus, call: str, point: str
) -> None:
    cut(gpus, ("2g.20gb", 0), ("3g.40gb", 4))
    simgpu.inject(h100, call=call, crash=point)
    died = step_in_a_client(h100, destroy="('2g.20gb', 0),", create="('1g.10gb', 0), ('1g.10gb', 1)")
    assert died.returncode == -9, died.stderr
    gpus.inventory()  # whoever calls first brings the files in line
    there = {(i.profile, i.start): i for i in gpus.inventory()[0].instances}
    listed = {(i.profile, i.start): len(i.compute) for i in simgpu.snapshot(h100).instances}
    assert {place: int(i.ci >= 0) for place, i in there.items()} == listed
    assert there["3g.40gb", 4].ci == 0
    assert files_of(h100) == expected_files(h100)
    wanted = {("1g.10gb", 0), ("1g.10gb", 1)}
    rest = {place for place, i in there.items() if place != ("3g.40gb", 4) and (place not in wanted or i.ci < 0)}
    whole = {place for place, i in there.items() if i.ci >= 0}
    step = Step(gpu=gpus.inventory()[0].uuid, destroy=tuple(rest), create=tuple(sorted(wanted - (whole - rest))))
    assert {(i.profile, i.start) for i in gpus.apply(step).instances} == {*wanted, ("3g.40gb", 4)}
    assert files_of(h100) == expected_files(h100)


def files_of(state: Path) -> set[str]:
    capabilities = state.parent / "proc/driver/nvidia/capabilities"
    return {str(path.parent.relative_to(capabilities)) for path in capabilities.glob("gpu*/mig/**/access")}


def expected_files(state: Path) -> set[str]:
    instances = simgpu.snapshot(state).instances
    return {f"gpu{i.gpu}/mig/gi{i.gi}" for i in instances} | {
        f"gpu{i.gpu}/mig/gi{i.gi}/ci{compute.id}" for i in instances for compute in i.compute
    }
