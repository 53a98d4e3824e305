"""Slurm's books: no more is read than what may be other, and what Slurm refuses is not written on and on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from slurm_plugin.controller import books, refusals
from slurm_plugin.controller.books import Books
from slurm_plugin.errors import SlurmError
from slurm_plugin.pool import GresNames
from slurm_plugin.ports import GresItem, SlurmNode
from tests.integration.controller.site import DictSlurm
from tests.unit.controller import pools

ALL: tuple[str, ...] = ()
GRES = {"n1": (pools.vgpu("1g.10gb", 7), pools.vgpu("pad", 993), GresItem(name="vgpu_mem", count=32))}


@dataclass
class Nodes(DictSlurm):
    """A Slurm that refuses names it does not know, and counts when it is told to."""

    asked: list[tuple[str, ...]] = field(default_factory=list)
    wrote: int = 0
    refuses: bool = False

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]:
        self.asked.append(tuple(names))
        if not set(names) <= self.node_list.keys():
            raise SlurmError("Node not found")
        return await super().nodes(names)

    async def set_gres(self, nodes: Sequence[str], gres: str) -> None:
        self.wrote += 1
        if self.refuses:
            raise SlurmError("Access/permission denied")
        await super().set_gres(nodes, gres)


def slurm_with(*names: str) -> Nodes:
    return Nodes({name: pools.slurm_node(name) for name in names})


@pytest.fixture(autouse=True)
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "POLL_S", 3600.0)
    monkeypatch.setattr(books, "POLL_MOST_S", 3600.0)


async def test_a_host_that_slurm_does_not_know_has_not_all_nodes_read_in_each_pass() -> None:
    slurm = slurm_with("n1", "n2")
    one, pool = Books(slurm, GresNames()), ["n1", "n2", "n9"]
    for changed in ([], ["n1"], ["n9"], ["n2", "n9"]):
        await one.read(changed, pool, ["gpu"])
    assert slurm.asked == [ALL, ("n1",), ("n2",)]
    await one.look({"n1", "n9"})
    assert slurm.asked[3:] == [("n1",)]
    slurm.node_list["n9"] = pools.slurm_node("n9")
    one.read_all_next()
    assert await one.read([], pool, ["gpu"]) == {"n1", "n2", "n9"}
    await one.read(["n9"], pool, ["gpu"])
    assert slurm.asked[4:] == [ALL, ("n9",)]


async def test_a_host_that_is_new_in_the_pool_is_read_at_once() -> None:
    one = Books(slurm_with("n1", "n2"), GresNames())
    assert await one.read([], ["n1", "n9"], ["gpu"]) == {"n1"}
    assert await one.read([], ["n1", "n2", "n9"], ["gpu"]) == {"n1", "n2"}


@pytest.mark.parametrize(("pause_s", "writes"), [(3600.0, 1), (0.0, 3)])
async def test_what_slurm_refuses_is_told_and_rests(
    pause_s: float, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "FIRST_PAUSE_S", pause_s)
    slurm = slurm_with("n1")
    one = Books(slurm, GresNames())
    slurm.refuses = True
    for _ in range(3):
        await one.write(GRES)
    assert slurm.wrote == writes
    assert one.refusals.problem(0.0) == "Slurm refuses what is to be published on n1: Access/permission denied"
    slurm.refuses = False
    await one.write(GRES)
    assert bool(one.refusals.problem(0.0)) is (pause_s > 0)
    assert slurm.free("n1", "1g.10gb") == (0 if pause_s else 7)
