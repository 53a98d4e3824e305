"""Which slices a Slurm cluster offers to other sites, with its catalogue and without."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from federation.executors.slices import Slices
from federation.executors.slurm_commands import Where
from federation.executors.slurm_slices import MOST_SHAPES, Offer, offered, parse_nodes, query
from slurm_plugin.catalogue import Catalogue, NodeFacts, parse, shapes
from slurm_plugin.classes import build, most
from slurm_plugin.mig.products import product_named

H100 = product_named("h100-80gb").profiles
CLASSES = build({"h100": H100})
FACTS = NodeFacts(cpus=64, memory_mib=512_000, most=most(CLASSES, [H100] * 4))
SHAPES, NODES = shapes({"secret1": FACTS, "secret2": FACTS})
KNOWN = Catalogue(
    pool="hpc", partitions=(("gpu", "vgpu-wait"),), classes=CLASSES, operators=(0, 5), shapes=SHAPES, nodes=NODES
)
IDLE = "vgpu:pad:984,vgpu:1g.10gb:8,vgpu:2g.20gb:4,vgpu:3g.40gb:4,vgpu_mem:32"
BUSY = "vgpu:pad:984,vgpu:1g.10gb:5,vgpu:2g.20gb:1,vgpu:3g.40gb:4,vgpu:m10:3,vgpu:m20:3,vgpu_mem:32"
USED = "vgpu:pad:0,vgpu:1g.10gb:0,vgpu:2g.20gb:1,vgpu:3g.40gb:0,vgpu:m10:3,vgpu:m20:1,vgpu_mem:9"


def line(gres: str, used: str = "vgpu:0", state: str = "idle", partition: str = "gpu*", nodes: int = 1) -> str:
    """As sinfo prints it: columns of the width that was asked for."""
    columns = query(Where())[-1].split(",")
    cells = (partition, state, str(nodes), "64", "512000", gres, used)
    widths = [int(one.partition(":")[2]) for one in columns]
    return "".join(cell[:width].ljust(width) for cell, width in zip(cells, widths, strict=True)) + "\n"


def slices(offer: Offer) -> Mapping[str, int]:
    return dict(offer.slices)


@pytest.mark.parametrize("known", [KNOWN, None])
def test_a_slice_counts_for_every_class_that_it_serves(known: Catalogue | None) -> None:
    free = slices(offered(known, line(IDLE, nodes=2), Where()))
    assert {name: free[name] for name in ("1g.10gb", "m10", "m20", "m40", "q7")} == {
        "1g.10gb": 16,
        "m10": 32,
        "m20": 16,
        "m40": 8,
        "q7": 32,
    }
    assert "m80" not in free


def test_what_jobs_hold_is_not_free_and_what_is_published_as_a_class_may_be_its_smallest() -> None:
    free = slices(offered(KNOWN, line(BUSY, USED, "mixed"), Where()))
    assert (free["m10"], free["m20"], free["m40"], free.get("2g.20gb", 0)) == (5 + 4 + 2, 4 + 2, 4, 0)


@pytest.mark.parametrize("state", ["down", "drained", "draining", "allocated", "idle*", "reserved"])
def test_a_node_that_takes_no_job_now_has_no_free_slice(state: str) -> None:
    assert offered(KNOWN, line(IDLE, state=state), Where()).slices == ()


def test_other_sites_learn_no_node_s_name_and_one_node_of_each_build() -> None:
    told = parse(offered(KNOWN, line(IDLE), Where()).catalogue)
    assert (told.classes, told.shapes) == (KNOWN.classes, KNOWN.shapes)
    assert (dict(told.nodes), told.operators) == ({"n1": 1}, (0,))
    many = {f"x{n}": replace(FACTS, memory_mib=n) for n in range(1, 200)}
    found, nodes = shapes(many)
    told = parse(offered(replace(KNOWN, shapes=found, nodes=nodes), line(IDLE), Where()).catalogue)
    assert len(told.nodes) == MOST_SHAPES


def test_without_a_catalogue_what_slurm_publishes_is_all_that_is_offered() -> None:
    told = parse(offered(None, line(BUSY, USED, "mixed") + line("(null)"), Where()).catalogue)
    (shape,) = told.shapes
    assert (shape.most["m20"], shape.most["3g.40gb"], shape.most.get("7g.80gb", 0)) == (1 + 4 + 3, 4, 0)
    assert told.partitions[0][0] == "gpu"
    for gres in ("(null)", "gpu:h100:4", "vgpu:1000", "vgpu:m20:3", "vgpu:strange:4", "vgpu:pad:1000"):
        assert offered(None, line(gres), Where()) == Offer()


class Host:
    """Whose sinfo says this."""

    def __init__(self, said: str) -> None:
        self.said = said

    async def text(self, path: Path) -> str:
        return ""

    async def run(self, argv: Sequence[str], user: str = "") -> str:
        return self.said


async def test_a_name_that_no_catalogue_can_tell_costs_the_pool_its_slices_only() -> None:
    strange = Slices(cast("Any", Host(line(IDLE, partition="gpu@2*"))), Path("/none"), Where())
    assert await strange.offer({"vgpu"}) == Offer()
    plain = Slices(cast("Any", Host(line(IDLE))), Path("/none"), Where())
    assert slices(await plain.offer({"vgpu"}))


def test_only_the_partition_counts_that_the_pool_s_jobs_go_to() -> None:
    both = line(IDLE) + line(IDLE, partition="vgpu-wait") + line(IDLE, partition="other")
    assert slices(offered(KNOWN, both, Where()))["m40"] == 4
    assert offered(KNOWN, line(IDLE, partition="other"), Where()) == Offer()
    assert offered(KNOWN, line(IDLE, partition="other"), Where(partition="other")) == Offer(complete=True)
    assert offered(None, line(IDLE, partition="other"), Where(partition="other")).slices


def test_what_is_no_row_makes_the_answer_unknown_and_one_that_is_cut_short_is_left_out() -> None:
    for wrong in ("slurm_load_node error\n", line("vgpu:a:b:c")):
        with pytest.raises(ValueError):
            parse_nodes(wrong)
    assert parse_nodes(line("vgpu:m20:1," * 200)) == []
