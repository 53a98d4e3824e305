"""What the simulated library promises any NVML client, beyond what the port's suite sees."""

import ctypes
import re
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any

import pynvml
import pytest

from slurm_plugin.errors import ConfigError, LabError
from slurm_plugin.lab import simgpu
from slurm_plugin.lab.nvml.boards import SimGpu
from tests.contract.nvml import rig
from tests.contract.nvml.test_oracles import place


def whole(instance: pynvml.c_nvmlGpuInstance_t, profile: int) -> pynvml.c_nvmlComputeInstance_t:
    return pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)


def test_profile_numbers_are_two_spaces_and_mixing_them_gives_a_real_but_wrong_profile(h100: Path) -> None:
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        by_constant = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, 9)
        by_id = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(device, 9)
        assert ("1g.20gb" in str(by_constant.name), by_constant.id) == (True, 15)
        assert ("3g.40gb" in str(by_id.name), by_id.id) == (True, 9)


def test_constants_end_where_the_driver_says(h100: Path) -> None:
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, 17)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, 18)


def test_both_versions_of_profile_info_say_the_same(h100: Path) -> None:
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        old, new = (pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, 4, version=version) for version in (1, 2))
        fields = [name for name, _ in type(old)._fields_]
        assert {name: getattr(old, name) for name in fields} == {name: getattr(new, name) for name in fields}
        assert (new.sliceCount, new.memorySizeMB, new.copyEngineCount) == (7, 81152, 8)


def test_a_wrong_version_word_is_told(h100: Path) -> None:
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
        info.version = 2
        library = ctypes.CDLL(str(simgpu.LIBRARY))
        assert library.nvmlDeviceGetGpuInstanceProfileInfoV(device, 0, byref(info)) == 25
        with pytest.raises(pynvml.NVMLError) as refused:
            pynvml.nvmlDeviceGetMemoryInfo(device, version=2)
        assert refused.value.value == 25


def test_without_a_session_nothing_answers(h100: Path) -> None:
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()


def test_a_handle_dies_with_its_instance_even_when_the_same_is_made_again(h100: Path) -> None:
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        instance = place(device, 19, 0)
        compute = whole(instance, 0)
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)
        uuid = pynvml.nvmlDeviceGetUUID(mig)
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
        whole(place(device, 19, 0), 0)
        for ask, dead in (
            (pynvml.nvmlDeviceGetUUID, mig),
            (pynvml.nvmlGpuInstanceGetInfo, instance),
            (pynvml.nvmlComputeInstanceGetInfo, compute),
        ):
            with pytest.raises(pynvml.NVMLError_InvalidArgument):
                ask(dead)
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid


def test_order_of_destruction_is_enforced(h100: Path) -> None:
    with rig.session():
        instance = place(pynvml.nvmlDeviceGetHandleByIndex(0), 19, 0)
        compute = whole(instance, 0)
        with pytest.raises(pynvml.NVMLError_InUse):
            pynvml.nvmlGpuInstanceDestroy(instance)
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)


def test_a_placement_the_profile_does_not_have_is_an_invalid_argument(h100: Path) -> None:
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        wrong = pynvml.c_nvmlGpuInstancePlacement_t()
        for wrong.start, wrong.size in ((1, 4), (0, 3), (7, 1)):
            with pytest.raises(pynvml.NVMLError_InvalidArgument):
                pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, 9 if wrong.size > 1 else 19, byref(wrong))


def test_the_double_memory_1g_needs_a_compute_profile_of_its_own(h100: Path) -> None:
    with rig.session():
        instance = place(pynvml.nvmlDeviceGetHandleByIndex(0), 15, 0)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            whole(instance, 0)
        whole(instance, 7)


def test_mig_off_means_no_devices_and_no_instances_but_known_profiles(state: Path) -> None:
    simgpu.create(state, product=[SimGpu(mig=False)])
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(device) == 0
        for refused, more in (
            (pynvml.nvmlDeviceCreateGpuInstance, ()),
            (pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, ()),
            (pynvml.nvmlDeviceGetGpuInstances, ((pynvml.c_nvmlGpuInstance_t * 8)(), byref(c_uint()))),
        ):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                refused(device, 19, *more)
        assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, 0).id == 19
        count = c_uint()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, 19, None, byref(count))
        assert count.value == 7


def test_mig_mode_goes_off_only_when_empty(h100: Path) -> None:
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        instance = place(device, 19, 0)
        assert pynvml.nvmlDeviceSetMigMode(device, 0) == 19
        assert pynvml.nvmlDeviceGetMigMode(device) == [1, 1]
        pynvml.nvmlGpuInstanceDestroy(instance)
        assert pynvml.nvmlDeviceSetMigMode(device, 0) == 0
        assert pynvml.nvmlDeviceGetMigMode(device) == [0, 0]


def test_memory_of_gpu_and_slice_in_both_versions(h100: Path) -> None:
    mib = 1 << 20
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        old = pynvml.nvmlDeviceGetMemoryInfo(device)
        new = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
        assert old.total == new.total == 81559 * mib
        assert old.used == new.used + new.reserved
        assert old.used + old.free == old.total
        whole(place(device, 19, 0), 0)
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)
        idle = pynvml.nvmlDeviceGetMemoryInfo(mig, version=pynvml.nvmlMemory_v2)
        assert (idle.total, idle.used) == (9984 * mib, 15 * mib)
        assert pynvml.nvmlDeviceGetAttributes(mig).memorySizeMB == 9984


def test_a_gpu_tells_who_and_where_it_is(state: Path) -> None:
    simgpu.create(state, product=[SimGpu(minor=4), SimGpu(product="a30", minor=2)], seed="s")
    with rig.session():
        for index, (name, minor, device_id) in enumerate(
            [("NVIDIA H100 80GB HBM3", 4, 0x2330), ("NVIDIA A30", 2, 0x20B7)]
        ):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            assert (pynvml.nvmlDeviceGetName(device), pynvml.nvmlDeviceGetMinorNumber(device)) == (name, minor)
            pci = pynvml.nvmlDeviceGetPciInfo(device)
            assert pci.pciDeviceId == device_id << 16 | 0x10DE
            for text in (pci.busId, pci.busIdLegacy):
                again = pynvml.nvmlDeviceGetHandleByPciBusId(text)
                assert pynvml.nvmlDeviceGetIndex(again) == index
            uuid = pynvml.nvmlDeviceGetUUID(device)
            assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid)
            assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == index
            assert not pynvml.nvmlDeviceIsMigDeviceHandle(device)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetHandleByIndex(2)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByUUID("MIG-none")


def test_resetless_mig_is_told_by_field_and_other_fields_are_refused_one_by_one(state: Path) -> None:
    simgpu.create(state, product=[SimGpu(), SimGpu(product="a30")])
    with rig.session():
        for index, resetless in ((0, 1), (1, 0)):
            known, unknown = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(index), [184, 1])
            assert (known.nvmlReturn, known.value.uiVal, unknown.nvmlReturn) == (0, resetless, 3)


def test_waiting_for_events_times_out(h100: Path) -> None:
    with rig.session():
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), 0x8, events)
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait(events, 1)
        pynvml.nvmlEventSetFree(events)


def test_uuids_hang_on_seed_board_and_slot_alone(state: Path) -> None:
    def uuids(seed: int) -> list[str]:
        simgpu.create(state, seed=seed)
        with rig.session():
            device = pynvml.nvmlDeviceGetHandleByIndex(0)
            for profile, start in ((14, 0), (19, 2)):
                whole(place(device, profile, start), 1 if profile == 14 else 0)
            found = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index) for index in range(2)]
            return [pynvml.nvmlDeviceGetUUID(mig) for mig in found]

    first = uuids(1)
    assert uuids(1) == first
    assert len({*first, *uuids(2)}) == 4
    assert all(
        re.fullmatch(r"MIG-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", uuid) for uuid in first
    )


def test_capability_files_are_the_drivers_and_a_node_of_a_past_instance_is_made_anew(h100: Path) -> None:
    folder = h100.parent
    entry = folder / "proc/driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access"
    node = folder / "dev/nvidia-caps/nvidia-cap67"
    with rig.session():
        instance = place(pynvml.nvmlDeviceGetHandleByIndex(0), 19, 0)
        compute = whole(instance, 0)
        assert entry.read_text() == "DeviceFileMinor: 67\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        assert node.stat().st_mode & 0o777 == 0o444
        node.chmod(0o400)
        pynvml.nvmlComputeInstanceDestroy(compute)
        assert not entry.parent.exists()
        assert node.exists()
        whole(instance, 0)
        assert node.stat().st_mode & 0o777 == 0o444
    minors = dict(line.split() for line in (folder / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines())
    assert (minors["config"], minors["gpu1/gi2/access"], minors["gpu1/gi2/ci0/access"]) == ("1", "156", "157")
    assert max(map(int, minors.values())) == 4322


def test_modprobe_opens_a_closed_node_again_unless_it_was_told_not_to(h100: Path) -> None:
    with rig.session():
        whole(place(pynvml.nvmlDeviceGetHandleByIndex(0), 19, 0), 0)
    open_again, kept = (h100.parent / f"dev/nvidia-caps/nvidia-cap{minor}" for minor in (66, 67))
    for node in (open_again, kept):
        node.chmod(0o400)
    (h100.parent / "proc/driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access").write_text("DeviceFileModify: 0\n")
    simgpu.modprobe(h100)
    assert [node.stat().st_mode & 0o777 for node in (open_again, kept)] == [0o444, 0o400]


def test_a_reboot_takes_the_device_nodes_too(h100: Path) -> None:
    with rig.session():
        place(pynvml.nvmlDeviceGetHandleByIndex(0), 19, 0)
    simgpu.reboot(h100)
    dev = h100.parent / "dev"
    assert {str(path.relative_to(dev)) for path in dev.rglob("*") if path.is_file()} == {
        "nvidia0",
        "nvidiactl",
        "nvidia-caps/nvidia-cap1",
        "nvidia-caps/nvidia-cap2",
    }
    assert not list((h100.parent / "proc").rglob("gi*"))
    assert simgpu.snapshot(h100).boots == 2


def test_calls_are_counted_and_faults_used_up(h100: Path) -> None:
    simgpu.inject(h100, call="nvmlDeviceGetName", code=999, times=2)
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(2):
            with pytest.raises(pynvml.NVMLError_Unknown):
                pynvml.nvmlDeviceGetName(device)
        assert pynvml.nvmlDeviceGetName(device)
    assert simgpu.snapshot(h100).calls["nvmlDeviceGetName"] == 3


def test_a_fault_that_can_never_happen_is_refused(h100: Path) -> None:
    with pytest.raises(LabError, match="no call 'nvmlDeviceGetNam'"):
        simgpu.inject(h100, call="nvmlDeviceGetNam", code=1)


def test_more_faults_than_there_is_room_for_are_refused_and_clear_makes_room(h100: Path) -> None:
    for _ in range(32):
        simgpu.inject(h100, call="nvmlDeviceGetName", code=1)
    with pytest.raises(LabError, match="32 faults"):
        simgpu.inject(h100, call="nvmlDeviceGetName", code=1)
    simgpu.clear(h100)
    simgpu.inject(h100, call="nvmlDeviceGetName", code=1)


@pytest.mark.parametrize(
    ("node", "error"),
    [
        ({"product": "h1000"}, ConfigError),
        ({"count": 0}, LabError),
        ({"count": 17}, LabError),
        ({"product": "a30", "variant": "swapped"}, LabError),
    ],
)
def test_a_node_that_cannot_be_is_refused(state: Path, node: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        simgpu.create(state, **node)
    assert not state.exists()


def test_a_file_of_another_layout_is_refused_by_both_sides(h100: Path) -> None:
    h100.write_bytes(h100.read_bytes()[:-8])
    with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
        pynvml.nvmlInit()
    with pytest.raises(LabError, match="no state file of this version"):
        simgpu.snapshot(h100)
