"""How far apart the clocks of a node and of the controller are is known from what its agent says, and from nothing old."""

import pytest

from slurm_plugin.controller.roster import Member
from slurm_plugin.pool import NodeGroup
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb


@pytest.mark.parametrize(("clock", "ahead"), [(1000.0, 0.0), (969.0, -31.0), (1031.0, 31.0), (0.0, 0.0)])
def test_a_clock_is_compared_when_its_agent_speaks(clock: float, ahead: float) -> None:
    member = Member(name="n1", group=NodeGroup(hosts=("n1",)), lost_at=0.0)
    member.heard(pb.Inventory(node="n1", clock=clock), 1000.0)
    assert member.clock_ahead_s == ahead


def test_an_inventory_from_disk_says_nothing_of_a_clock() -> None:
    member = Member(name="n1", group=NodeGroup(hosts=("n1",)), lost_at=0.0)
    member.take(pb.Inventory(node="n1", clock=5.0))
    assert member.clock_ahead_s == 0.0
