"""What each agent is sent, and when: whatever differs from what it was sent last."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller.books import Books
from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.keep import Keep
from slurm_plugin.controller.roster import Roster
from slurm_plugin.controller.shopfront import Shopfront
from slurm_plugin.model import Gpu, MigMode
from slurm_plugin.pool import PoolConfig
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.wire import gpu_to_wire
from tests.integration.controller.site import DictSlurm
from tests.unit.controller import pools


def desk_of(config: PoolConfig, folder: Path) -> Desk:
    return Desk(
        config=config,
        roster=Roster(config, {}, lambda: 0.0, lambda: 0.0),
        books=Books(DictSlurm({}), config.gres),
        shop=Shopfront(Keep(folder, folder / "catalogue"), ()),
    )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = desk_of(pools.config("n1"), tmp_path)
    desk.roster["n1"].outbox = asyncio.Queue(8)
    return desk


def sent(desk: Desk, *gpus: Gpu) -> list[list[str]]:
    """The GPUs of the pool in each message to an agent that has told these, none of which has a slice."""
    member = desk.roster["n1"]
    member.take(pb.Inventory(node="n1", gpus=[gpu_to_wire(gpu) for gpu in gpus]))
    desk.tell({"n1": ()})
    assert member.outbox is not None
    found = []
    while not member.outbox.empty():
        message = member.outbox.get_nowait()
        assert message is not None
        found.append(list(message.offers.gpus))
    return found


async def test_an_agent_that_saw_no_gpu_when_it_came_is_told_later_which_are_the_pools(desk: Desk) -> None:
    a, b = pools.gpu("a", ()), pools.gpu("b", (), index=1)
    assert sent(desk) == [[]]
    assert sent(desk, a, b) == [["GPU-a", "GPU-b"]]
    assert sent(desk, a, b) == []


async def test_gpus_that_are_not_the_pools_are_named_so_and_none_that_was_not_told_of(desk: Desk) -> None:
    member = desk.roster["n1"]
    member.group = replace(member.group, gpus=(0,))
    sent(desk)
    for gpus, others in (((), []), ((pools.gpu("b", (), index=1),), ["GPU-b"])):
        member.take(pb.Inventory(node="n1", gpus=[gpu_to_wire(gpu) for gpu in gpus]))
        desk.told.clear()
        desk.tell({"n1": ()})
        assert member.outbox is not None
        message = member.outbox.get_nowait()
        assert message is not None
        assert list(message.offers.others) == others


async def test_a_gpu_that_could_never_be_read_has_no_name_to_be_told_by(desk: Desk) -> None:
    unread = Gpu(uuid="", index=1, minor=-1, name="", mig=MigMode.UNSUPPORTED, memory_mib=0, fault="gone")
    assert sent(desk, pools.gpu("a", ()), unread) == [["GPU-a"]]
