"""The simulated driver against what real drivers did: creation traces, free counts, order of MIG devices."""

import random
from ctypes import byref, c_uint
from itertools import pairwise
from pathlib import Path

import pynvml
import pytest

from slurm_plugin.lab import simgpu
from slurm_plugin.lab.nvml.boards import SimGpu
from slurm_plugin.mig.layouts import auto_placement, remaining
from slurm_plugin.mig.products import load_products
from tests.contract.nvml import rig

TRACES = [  # (product, variant, driver profile ids in order of creation, GPU-instance ids that a real driver chose)
    ("a100-40gb", "identity", [19, 19, 14, 9], [13, 11, 3, None]),
    ("a100-40gb", "identity", [9, 19, 14, 19], [2, 7, 4, 8]),
    ("a100-40gb", "swapped", [9, 19, 14, 19], [1, 11, 6, 12]),
    ("a100-40gb", "identity", [14, 19, 19, 19, 19, 19], [5, 13, 7, 8, 9, 10]),
    ("h100-80gb", "identity", [19] * 7, [13, 11, 12, 7, 8, 9, 10]),
    ("h100-pcie-80gb", "swapped", [19] * 7, [9, 7, 8, 11, 12, 13, 14]),
    ("a100-40gb", "identity", [9, 9], [2, 1]),
    ("a100-40gb", "swapped", [9, 14, 19], [1, 5, 13]),
    ("h100-nvl", "swapped", [9, 15, 19], [1, 5, 13]),
    ("gh200-96gb", "identity", [15, 15, 15], [5, 3, 4]),
    ("h200-141gb", "identity", [19, 19], [13, 11]),
    ("rtx-pro-6000", "identity", [14, 14, 14, 14], [3, 4, 5, 6]),
    ("rtx-pro-6000", "identity", [5, 14, 14], [1, 5, 6]),
]

FREE = [  # (product, [(profile id, start)], how many more of each profile a real driver says)
    ("h200-141gb", [(19, 4), (19, 6)], {19: 5, 20: 1, 15: 2, 14: 2, 9: 1, 5: 1, 0: 0}),
    ("h100-80gb", [(19, 4), (19, 6)], {19: 5, 20: 1, 15: 2, 14: 2, 9: 1, 5: 1, 0: 0}),
    ("h100-80gb", [(9, 0), (20, 4), (19, 6)], {19: 1, 20: 0, 15: 0, 14: 0, 9: 0, 5: 0, 0: 0}),
]


def place(device: object, profile: int, start: int) -> pynvml.c_nvmlGpuInstance_t:
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(device, profile)
    count = c_uint(16)
    places = (pynvml.c_nvmlGpuInstancePlacement_t * 16)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, info.id, places, byref(count))
    wanted = next(spot for spot in places[: count.value] if spot.start == start)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, byref(wanted))


@pytest.mark.parametrize(("product", "variant", "create", "ids"), TRACES)
def test_placement_left_to_the_driver_goes_where_a_real_one_put_it(
    state: Path, product: str, variant: str, create: list[int], ids: list[int | None]
) -> None:
    simgpu.create(state, product=product, variant=variant)
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        for profile, expected in zip(create, ids, strict=True):
            if expected is None:
                with pytest.raises(pynvml.NVMLError_InsufficientResources):
                    pynvml.nvmlDeviceCreateGpuInstance(device, profile)
            else:
                made = pynvml.nvmlDeviceCreateGpuInstance(device, profile)
                assert pynvml.nvmlGpuInstanceGetInfo(made).id == expected


@pytest.mark.parametrize(("product", "existing", "free"), FREE)
def test_free_counts_are_those_of_a_real_driver(
    state: Path, product: str, existing: list[tuple[int, int]], free: dict[int, int]
) -> None:
    simgpu.create(state, product=product)
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        for profile, start in existing:
            place(device, profile, start)
        assert {id_: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, id_) for id_ in free} == free


def test_mig_devices_come_in_order_of_gpu_instance_id(h100: Path) -> None:
    """As captured: neither the order of creation nor that of placements."""
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        for profile, start in ((19, 6), (20, 4), (9, 0)):
            pynvml.nvmlGpuInstanceCreateComputeInstance(place(device, profile, start), 0)
        devices = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index) for index in range(3)]
        assert [pynvml.nvmlDeviceGetGpuInstanceId(mig) for mig in devices] == [1, 11, 13]
        names = [pynvml.nvmlDeviceGetName(mig).partition(" MIG ")[2] for mig in devices]
        assert names == ["1c.3g.40gb", "1g.10gb", "1g.10gb"]
        assert [pynvml.nvmlDeviceGetIndex(mig) for mig in devices] == [0, 1, 2]


def test_the_first_one_slice_compute_instance_of_a_3g_goes_to_its_last_slice(h100: Path) -> None:
    with rig.session():
        instance = place(pynvml.nvmlDeviceGetHandleByIndex(0), 9, 0)
        made = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        assert pynvml.nvmlComputeInstanceGetInfo(made).placement.start == 2


@pytest.mark.parametrize("key", load_products())
def test_library_and_geometry_agree_in_any_state(state: Path, key: str) -> None:
    """Written apart, in C and in Python: a random walk of creations and destructions, seeded by the product's name."""
    product = load_products()[key]
    simgpu.create(state, product=key)
    chance = random.Random(key)
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        there: dict[tuple[str, int], pynvml.c_nvmlGpuInstance_t] = {}
        for _ in range(40):
            profile = chance.choice(list(product.profiles.values()))
            layout = tuple(there)
            room = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile.gi_profile_id)
            assert room == remaining(product.profiles, layout, profile.name), layout
            if room:
                made = pynvml.nvmlDeviceCreateGpuInstance(device, profile.gi_profile_id)
                start = pynvml.nvmlGpuInstanceGetInfo(made).placement.start
                assert start == auto_placement(product, layout, profile.name), layout
                there[profile.name, start] = made
            elif there:
                pynvml.nvmlGpuInstanceDestroy(there.pop(chance.choice(layout)))
        ends = sorted((start, start + product.profiles[name].size) for name, start in there)
        assert all(before[1] <= after[0] for before, after in pairwise(ends))


def test_media_engines_limit_what_a_board_can_hold(state: Path) -> None:
    """Once one instance has all media engines, only profiles without any are left."""
    simgpu.create(state, product=[SimGpu(product="rtx-pro-6000")])
    with rig.session():
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceCreateGpuInstance(device, 65)
        free = {id_: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, id_) for id_ in (14, 21, 47, 67, 66, 5)}
        assert free == {14: 0, 21: 0, 47: 0, 67: 3, 66: 1, 5: 0}
