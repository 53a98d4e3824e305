"""GPUs that pool.yaml names by number, when one of them is gone and the others have moved up."""

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.keep import Keep
from slurm_plugin.controller.layout import spread
from slurm_plugin.controller.records import Records
from slurm_plugin.controller.roster import Roster
from slurm_plugin.controller.state import NodeState, State
from slurm_plugin.model import Gpu
from slurm_plugin.pool import NodeGroup, PoolConfig, Share
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.wire import gpu_to_wire
from tests.unit.controller import pools
from tests.unit.controller.test_desk import desk_of

GROUP = NodeGroup(hosts=("n1",), gpus=(0, 1), count=3)  # GPU 2 is somebody else's


def gpus(names: str) -> tuple[Gpu, ...]:
    """As the driver numbers them."""
    return tuple(pools.gpu(name, (), index=index) for index, name in enumerate(names))


def told(names: str) -> pb.Inventory:
    return pb.Inventory(node="n1", gpus=[gpu_to_wire(gpu) for gpu in gpus(names)])


def config(group: NodeGroup) -> PoolConfig:
    return replace(pools.config("n1"), groups=(group,))


def roster(group: NodeGroup = GROUP, kept: str = "") -> Roster:
    return Roster(config(group), {"n1": told(kept)} if kept else {}, lambda: 0.0, lambda: 0.0)


def ours(found: Roster, names: str) -> tuple[str, str]:
    """Of the GPUs that the agent tells, the pool's, and those that are known to be others'."""
    member = found["n1"]
    member.take(told(names))
    return short(member.pool_gpus), short(member.other_gpus)


def short(uuids: tuple[str, ...]) -> str:
    return "".join(uuid.removeprefix("GPU-") for uuid in uuids)


@pytest.mark.parametrize("group", [GROUP, replace(GROUP, count=0)], ids=["counted", "not counted"])
def test_a_number_of_the_pools_that_has_come_to_mean_another_gpu_brings_that_one_not_in(group: NodeGroup) -> None:
    there = roster(group)
    assert ours(there, "ABC") == ("AB", "C")
    assert ours(there, "BC") == ("B", "C")
    assert there["n1"].geometry == (pools.profiles(),)
    assert ours(there, "ABC") == ("AB", "C")
    assert ours(roster(group, kept="ABC"), "BC") == ("B", "C"), "after a restart too"


def test_a_gpu_of_the_pools_whose_number_has_come_to_be_another_one_stays_in() -> None:
    there = roster(replace(GROUP, gpus=(2,)), kept="ABC")
    assert ours(there, "AC") == ("C", "A")


def test_a_gpu_that_was_exchanged_is_the_one_of_its_number() -> None:
    there = roster(kept="ABC")
    assert ours(there, "XBC") == ("XB", "C")
    assert ours(there, "BC") == ("B", "C")


def test_where_nobody_knows_whose_they_are_none_comes_in_and_none_is_forgotten() -> None:
    assert ours(roster(), "BC") == ("", "")
    assert ours(roster(kept="BC"), "BC") == ("", "")


def test_a_node_that_is_to_have_fewer_is_believed_again() -> None:
    there = roster(kept="ABC")
    assert ours(there, "BC") == ("B", "C")
    there.follow(config(replace(GROUP, gpus=(0,), count=2)))
    assert ours(there, "BC") == ("B", "C")
    assert there["n1"].is_whole


async def test_what_is_kept_on_disk_is_the_last_time_that_all_were_there(tmp_path: Path) -> None:
    keep, there = Keep(tmp_path, tmp_path / "catalogue"), desk_of(config(GROUP), tmp_path)
    records = Records(there, keep)
    for names in ("ABC", "BC"):
        ours(there.roster, names)
        await records.remember(there.roster["n1"])
        assert keep.load(("n1",)) == {"n1": told("ABC")}
    ours(there.roster, "XBC")
    await records.remember(there.roster["n1"])
    assert keep.load(("n1",)) == {"n1": told("XBC")}


def test_all_gpus_are_the_pools_however_many_there_are() -> None:
    there = roster(replace(GROUP, gpus=None), kept="ABC")
    assert ours(there, "BC") == ("BC", "")


def test_what_is_lacking_is_told() -> None:
    member = (there := roster(kept="ABC"))["n1"]
    ours(there, "BC")
    node = NodeState(name="n1", group=member.entry, view=member.view, slurm=pools.slurm_node("n1"))
    decision = decide(State(config=config(GROUP), serving=pools.serving(), nodes={"n1": node}, now=0.0))
    assert decision.problems["n1"][0].startswith("it has 2 GPUs and should have 3: numbers may mean other GPUs")


def test_a_mix_is_spread_over_all_nodes_of_its_entry_all_the_same() -> None:
    mixed = replace(GROUP, shares=(Share(layout={"1g.10gb": 7}), Share(layout={"7g.80gb": 1})))
    short = replace(mixed, gpus=(0,))
    nodes = {name: pools.node(name, *gpus(name), of=of) for name, of in (("A", mixed), ("B", short))}
    assert sorted(spread(nodes, {}).values()) == [0, 1]
