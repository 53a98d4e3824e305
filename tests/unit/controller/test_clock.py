"""How far apart a node's clock and the controller's are: known from what its agent says now, and from nothing old."""

import pytest

from slurm_plugin.controller.roster import Member
from slurm_plugin.pool import NodeGroup
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

NOW = 1000.0


def member() -> Member:
    return Member(name="n1", group=NodeGroup(hosts=("n1",)), tick=lambda: NOW, lost_at=0.0)


@pytest.mark.parametrize(("clock", "ahead"), [(NOW, 0.0), (NOW - 31, -31.0), (NOW + 31, 31.0), (0.0, 0.0)])
def test_a_clock_is_compared_when_its_agent_speaks(clock: float, ahead: float) -> None:
    speaking = member()
    speaking.heard(pb.Inventory(node="n1", clock=clock), NOW)
    assert speaking.clock_ahead_s == ahead


def test_an_inventory_from_disk_says_nothing_of_a_clock() -> None:
    remembered = member()
    remembered.take(pb.Inventory(node="n1", clock=5.0))
    assert remembered.clock_ahead_s == 0.0
