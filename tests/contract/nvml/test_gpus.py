"""The contract of slurm_plugin.ports.Gpus. The same on every simulated product and, if one is named, on a real GPU."""

from collections.abc import Iterator
from ctypes import byref
from pathlib import Path

import pynvml
import pytest

from slurm_plugin.errors import NoRoom, NvmlError, ReadBackError
from slurm_plugin.lab import simgpu
from slurm_plugin.lab.nvml.boards import SimGpu
from slurm_plugin.model import GpuProfile, MigMode, Step
from slurm_plugin.nvml import NvmlGpus
from tests.contract.nvml import rig
from tests.contract.nvml.rig import Node

BOARDS = [
    SimGpu(product="h100-80gb"),
    SimGpu(product="h100-pcie-80gb", variant="swapped", minor=3),
    SimGpu(product="h200-141gb"),
    SimGpu(product="a100-40gb"),
    SimGpu(product="a30"),
    SimGpu(product="rtx-pro-6000"),
]


def real_node() -> Iterator[Node]:
    gpus = NvmlGpus()
    node = Node(gpus=gpus, uuid=rig.REAL_GPU)
    assert not node.gpu().instances, "the GPU under test must be empty"
    yield node
    gpus.apply(Step(gpu=node.uuid, destroy=tuple(node.layout())))
    gpus.close()


@pytest.fixture(params=["real"] if rig.REAL_GPU else BOARDS, ids=lambda board: getattr(board, "product", board))
def node(request: pytest.FixtureRequest, state: Path) -> Iterator[Node]:
    if rig.REAL_GPU:
        yield from real_node()
        return
    simgpu.create(state, product=[request.param, SimGpu(product="a100-40gb", minor=9)], seed=1)
    gpus = NvmlGpus(proc_root=state.parent / "proc", dev_root=state.parent / "dev")
    yield Node(gpus=gpus, uuid=gpus.inventory()[0].uuid)
    gpus.close()


def smallest(node: Node) -> GpuProfile:
    return min(node.gpu().profiles, key=lambda profile: (profile.size, profile.name))


def fill(node: Node) -> GpuProfile:
    """All places of the smallest profile taken."""
    small = smallest(node)
    node.gpus.apply(Step(gpu=node.uuid, create=tuple((small.name, start) for start in small.starts)))
    return small


def test_inventory_tells_profiles_and_their_placements(node: Node) -> None:
    gpu = node.gpu()
    assert (gpu.mig, gpu.fault) == (MigMode.ENABLED, "")
    whole = max(gpu.profiles, key=lambda profile: profile.size)
    assert whole.starts == (0,)
    for profile in gpu.profiles:
        assert profile.starts == tuple(sorted(set(profile.starts)))
        assert max(profile.starts) + profile.size <= whole.size
        assert 0 < profile.memory_mib <= gpu.memory_mib
        assert len(profile.engines) == 5
    assert len({profile.name for profile in gpu.profiles}) == len(gpu.profiles)
    assert len({profile.gi_profile_id for profile in gpu.profiles}) == len(gpu.profiles)


def test_every_profile_is_made_at_every_placement_and_taken_away_again(node: Node) -> None:
    for profile in node.gpu().profiles:
        for start in profile.starts:
            made = node.gpus.apply(Step(gpu=node.uuid, create=((profile.name, start),)))
            (instance,) = made.instances
            assert (instance.profile, instance.start, instance.size) == (profile.name, start, profile.size)
            assert instance.uuid.startswith("MIG-")
            assert not instance.foreign
            gone = node.gpus.apply(Step(gpu=node.uuid, destroy=((profile.name, start),)))
            assert gone.instances == ()


def test_slices_differ_in_uuid_and_capabilities(node: Node) -> None:
    small = fill(node)
    instances = node.gpu().instances
    assert [instance.start for instance in instances] == list(small.starts)
    assert len({instance.uuid for instance in instances}) == len(instances)
    minors = [minor for instance in instances for minor in instance.caps]
    assert len(set(minors)) == 2 * len(instances)
    assert min(minors) > 2


def test_destroying_one_slice_leaves_the_others_as_they_are(node: Node) -> None:
    small = fill(node)
    before = node.gpu().instances
    after = node.gpus.apply(Step(gpu=node.uuid, destroy=((small.name, small.starts[1]),)))
    assert after.instances == tuple(i for i in before if i.start != small.starts[1])


def test_a_slice_made_again_at_its_place_is_the_same_device(node: Node) -> None:
    small = fill(node)
    before = node.gpu().instances
    there = (small.name, small.starts[0])
    assert node.gpus.apply(Step(gpu=node.uuid, destroy=(there,), create=(there,))).instances == before


def test_one_step_exchanges_small_slices_for_a_large_one(node: Node) -> None:
    small = fill(node)
    gpu = node.gpu()
    whole = max(gpu.profiles, key=lambda profile: (profile.size, -profile.gi_profile_id))
    everything = tuple((small.name, start) for start in small.starts)
    node.gpus.apply(Step(gpu=node.uuid, destroy=everything, create=((whole.name, 0),)))
    assert node.layout() == {(whole.name, 0)}


def test_what_does_not_fit_is_refused_and_changes_nothing(node: Node) -> None:
    small = fill(node)
    before = node.gpu().instances
    with pytest.raises(NoRoom) as refused:
        node.gpus.apply(Step(gpu=node.uuid, create=((small.name, small.starts[0]),)))
    assert f"creating {small.name} at {small.starts[0]}" in str(refused.value)
    assert node.gpu().instances == before


def test_a_profile_the_gpu_does_not_offer_is_refused_with_those_it_does(node: Node) -> None:
    with pytest.raises(NvmlError, match=r"has no profile 9g\.99gb") as refused:
        node.gpus.apply(Step(gpu=node.uuid, create=((smallest(node).name, 0), ("9g.99gb", 0))))
    assert smallest(node).name in refused.value.hint
    assert node.layout() == set()


def test_an_impossible_start_is_refused_before_anything_is_destroyed(node: Node) -> None:
    small = fill(node)
    with pytest.raises(NvmlError, match="can't start at 63"):
        node.gpus.apply(Step(gpu=node.uuid, destroy=((small.name, small.starts[0]),), create=((small.name, 63),)))
    assert len(node.gpu().instances) == len(small.starts)


def test_a_step_from_an_old_inventory_is_refused_before_anything_is_destroyed(node: Node) -> None:
    small = fill(node)
    node.gpus.apply(Step(gpu=node.uuid, destroy=((small.name, small.starts[1]),)))
    with pytest.raises(ReadBackError, match=f"no {small.name}"):
        node.gpus.apply(Step(gpu=node.uuid, destroy=tuple((small.name, start) for start in small.starts)))
    assert len(node.gpu().instances) == len(small.starts) - 1


def test_an_instance_without_compute_instance_is_seen_and_can_be_destroyed(node: Node) -> None:
    small = smallest(node)
    make_gpu_instance(node, small)
    (half,) = node.gpu().instances
    assert (half.profile, half.ci, half.uuid, half.caps[1], half.foreign) == (small.name, -1, "", -1, False)
    assert node.gpus.apply(Step(gpu=node.uuid, destroy=((small.name, half.start),))).instances == ()


def test_somebody_elses_partial_compute_instance_makes_the_instance_foreign(node: Node) -> None:
    """Seen, so that nothing is planned over it; never destroyed, so that nobody loses work."""
    profile = next((p for p in node.gpu().profiles if has_part(node, p)), None)
    if profile is None:  # some boards have no profile that can be divided: then nobody can have divided one
        assert node.gpu().name.startswith("NVIDIA RTX PRO 6000")
        return
    instance = make_gpu_instance(node, profile)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    (seen,) = node.gpu().instances
    assert seen.foreign
    with pytest.raises(NvmlError, match="somebody else's"):
        node.gpus.apply(Step(gpu=node.uuid, destroy=((profile.name, seen.start),)))
    assert node.layout() == {(profile.name, seen.start)}
    pynvml.nvmlComputeInstanceDestroy(compute)
    node.gpus.apply(Step(gpu=node.uuid, destroy=((profile.name, seen.start),)))


def test_several_compute_instances_make_the_instance_foreign(node: Node) -> None:
    profile = next((p for p in node.gpu().profiles if has_part(node, p)), None)
    if profile is None:
        assert node.gpu().name.startswith("NVIDIA RTX PRO 6000")
        return
    instance = make_gpu_instance(node, profile)
    parts = [pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(profile.compute_slices)]
    (seen,) = node.gpu().instances
    assert (seen.foreign, seen.ci, seen.uuid) == (True, -1, "")
    for part in parts:
        pynvml.nvmlComputeInstanceDestroy(part)
    node.gpus.apply(Step(gpu=node.uuid, destroy=((profile.name, seen.start),)))


def test_an_idle_slice_has_no_processes(node: Node) -> None:
    fill(node)
    assert node.gpus.processes(node.gpu().instances[0].uuid) == ()


def test_processes_of_a_slice_that_is_gone_are_an_error_and_not_none(node: Node) -> None:
    small = fill(node)
    uuid = node.gpu().instances[0].uuid
    node.gpus.apply(Step(gpu=node.uuid, destroy=((small.name, small.starts[0]),)))
    with pytest.raises(NvmlError, match=uuid):
        node.gpus.processes(uuid)


def test_a_gpu_that_is_not_here_is_an_error(node: Node) -> None:
    with pytest.raises(NvmlError, match="GPU-0"):
        node.gpus.apply(Step(gpu="GPU-0"))


def test_enabling_mig_where_it_is_on_changes_nothing(node: Node) -> None:
    before = node.gpu()
    assert node.gpus.enable_mig(node.uuid) == before


def make_gpu_instance(node: Node, profile: GpuProfile) -> pynvml.c_nvmlGpuInstance_t:
    device = pynvml.nvmlDeviceGetHandleByUUID(node.uuid)
    placement = pynvml.c_nvmlGpuInstancePlacement_t()
    placement.start, placement.size = profile.starts[0], profile.size
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.gi_profile_id, byref(placement))


def has_part(node: Node, profile: GpuProfile) -> bool:
    """Can a GPU instance of this profile be divided into compute instances of one slice?"""
    if profile.compute_slices < 2:
        return False
    instance = make_gpu_instance(node, profile)
    try:
        return bool(pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) >= 2)
    except pynvml.NVMLError_NotSupported:
        return False
    finally:
        pynvml.nvmlGpuInstanceDestroy(instance)
