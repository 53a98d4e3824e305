import pytest

from slurm_plugin.cli.convert import pool_view
from slurm_plugin.cli.users import with_names
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("pid 8 (python3, uid 0), pid 9 (sh, uid 61234)", "pid 8 (python3, root), pid 9 (sh, 61234)"),
        ("a job of uid 0 that no grant tells of", "a job of root that no grant tells of"),
        ("pid 8 (uid 99999999999)", "pid 8 (99999999999)"),
        ("pid 812 (nv-hostengine, nvidia-dcgm.service)", "pid 812 (nv-hostengine, nvidia-dcgm.service)"),
    ],
)
def test_users_that_an_agent_tells_by_number_are_shown_by_name_where_they_have_one(told: str, shown: str) -> None:
    assert with_names(told) == shown


def test_whoever_holds_a_gpu_or_a_slice_is_shown_by_name() -> None:
    held = pb.Gpu(fault="held by pid 8 (x, uid 0)", instances=[pb.Instance(held_by="pid 9 (y, uid 0)")])
    pool = pool_view(pb.PoolStatus(nodes=[pb.NodeStatus(node="n1", inventory=pb.Inventory(gpus=[held]))]))
    gpu = pool.nodes[0].gpus[0]
    assert (gpu.fault, gpu.slices[0].held_by) == ("held by pid 8 (x, root)", "pid 9 (y, root)")
