"""What one part says of GPUs, grants and steps, another reads as it was meant."""

import pytest

from slurm_plugin.model import Gpu, MigMode, Step
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from slurm_plugin.wire import (
    MAX_GPUS,
    gpu_to_wire,
    gpus_from_wire,
    grant_to_wire,
    grants_from_wire,
    step_from_wire,
    step_to_wire,
)
from tests.unit.agent.world import gpu, grant, instance

THERE = gpu("A", instances=(instance("A", "1g.20gb", 2, foreign=True), instance("A", "2g.20gb", 4, ci=-1, uuid="")))
LOST = Gpu(uuid="", index=1, minor=-1, name="", mig=MigMode.UNSUPPORTED, memory_mib=0, fault="GPU is lost")


def read(*gpus: pool_pb2.Gpu) -> tuple[Gpu, ...]:
    return gpus_from_wire(pool_pb2.Inventory.FromString(pool_pb2.Inventory(gpus=gpus).SerializeToString()))


def test_a_gpu_comes_over_whole_and_so_does_one_that_could_never_be_read() -> None:
    there, lost = read(gpu_to_wire(THERE), gpu_to_wire(LOST))
    # the minors of a slice's devices are the node's own affair
    assert lost == LOST
    assert (there.uuid, there.mig, there.memory_mib, there.profiles) == ("A", MigMode.ENABLED, 81920, THERE.profiles)
    assert [(one.profile, one.start, one.ci, one.foreign, one.uuid) for one in there.instances] == [
        (one.profile, one.start, one.ci, one.foreign, one.uuid) for one in THERE.instances
    ]


def test_a_slice_somebody_uses_without_a_grant_is_foreign_to_the_pool() -> None:
    slices = gpu("A", ("1g.20gb", 0), ("1g.20gb", 2))
    haunted = slices.instances[1].uuid
    [there] = read(gpu_to_wire(slices, {haunted: "pid 7 (python)"}))
    assert [one.foreign for one in there.instances] == [False, True]


def test_a_grant_and_a_step_come_over_whole() -> None:
    one = grant(7, "a", "b", uid=5, started_at=9)
    assert grants_from_wire(pool_pb2.Inventory(grants=[grant_to_wire(one)])) == (one,)
    step = Step(gpu="A", destroy=(("1g.20gb", 2),), create=(("1g.10gb", 2), ("1g.10gb", 3)))
    sent = step_to_wire(4, step)
    assert (sent.id, step_from_wire(sent)) == (4, step)


def test_more_gpus_than_a_node_can_have_are_refused() -> None:
    with pytest.raises(ValueError, match="larger than any node"):
        read(*[gpu_to_wire(THERE)] * (MAX_GPUS + 1))
