"""What the pool offers as a whole, when its GPUs are known and when they are not."""

from dataclasses import replace

from slurm_plugin import catalogue
from slurm_plugin.classes import NamedClass
from slurm_plugin.controller.offered import geometry, offered
from slurm_plugin.pool import NodeGroup, Share
from tests.unit.controller.pools import SEVEN, config, gpu, group, slurm_node

TWO = (gpu("a", SEVEN), gpu("b", SEVEN, index=1))


def test_catalogue_reads_back_with_what_nodes_can_hold() -> None:
    facts = {"n1": (geometry(TWO, group("n1")), slurm_node("n1")), "n2": (geometry(TWO, group("n2")), slurm_node("n2"))}
    made = offered(replace(config("n1", "n2"), aliases={"tiny": "1g.10gb"}), facts, (64, 0))
    assert made is not None
    book = catalogue.parse(catalogue.render(made.catalogue))
    assert book == made.catalogue
    assert book.default == "1g.10gb"
    assert book.aliases == {"tiny": "1g.10gb"}
    assert book.operators == (0, 64)
    assert book.partitions == (("gpu", "vgpu-wait"),)
    assert len(book.shapes) == 1
    assert book.shapes[0].most["1g.10gb"] == 14
    assert made.serving.home["1g.10gb"] == "1g.10gb"


def test_the_catalogue_tells_what_the_layouts_make() -> None:
    groups = (
        replace(group("n1"), shares=(Share(layout={"3g.40gb": 1, "1g.10gb": 4}),)),
        replace(group("n2"), shares=(Share(layout={"1g.10gb": 7}, share=2), Share(layout={"7g.80gb": 1}))),
        replace(group("n3"), shares=()),
        replace(group("n4"), shares=(Share(layout={"1g.5gb": 7}),)),  # for another model: it stays as it is found
    )
    facts = {f"n{nth}": (geometry(TWO, one), slurm_node(f"n{nth}")) for nth, one in enumerate(groups, 1)}
    made = offered(replace(config("n1"), groups=groups), facts, ())
    assert made is not None
    book = made.catalogue
    n1, n2, n3, n4 = (book.by_shape[book.nodes[name]] for name in sorted(facts))
    assert [n1.makes(name) for name in ("1g.10gb", "3g.40gb", "m20", "m10", "2g.20gb", "7g.80gb")] == [
        8,
        2,
        2,
        10,
        0,
        0,
    ]
    assert (n2.makes("1g.10gb"), n2.makes("7g.80gb"), n2.makes("3g.40gb")) == (14, 2, 0)
    assert n3.made is None
    assert n4.makes("2g.20gb") == n4.most["2g.20gb"]


def test_geometry_is_of_the_pools_gpus_only_and_of_the_product_before_an_agent_was_there() -> None:
    assert len(geometry(TWO, group("n1", gpus=(1,)))) == 1
    told = NodeGroup(hosts=("n1",), product="h100-80gb", count=4)
    assert geometry(None, told) == ("h100-80gb",) * 4
    assert geometry(None, replace(told, gpus=(1, 3))) == ("h100-80gb",) * 2
    assert geometry(None, group("n1")) == ()
    made = offered(config("n1"), {"n1": (geometry(None, told), slurm_node("n1"))}, ())
    assert made is not None
    assert made.catalogue.shapes[0].most["7g.80gb"] == 4


def test_nothing_is_offered_while_no_gpu_is_known() -> None:
    assert offered(config("n1"), {"n1": ((), slurm_node("n1"))}, ()) is None


def test_what_no_gpu_can_serve_is_told_and_the_rest_is_offered() -> None:
    asked = replace(
        config("n1"),
        classes={"huge": NamedClass(memory_gb=500), "small": NamedClass(memory_gb=10)},
        aliases={"good": "small", "bad": "9g.99gb"},
        default_class="2g.10gb",
    )
    made = offered(asked, {"n1": (geometry(TWO, group("n1")), slurm_node("n1"))}, ())
    assert made is not None
    names = {one.name for one in made.catalogue.classes}
    assert "small" in names
    assert "huge" not in names
    assert made.catalogue.aliases == {"good": "small"}
    assert made.catalogue.default == "1g.10gb"
    assert [any(word in line for line in made.problems) for word in ("huge", "aliases.bad", "default_class")] == [
        True
    ] * 3
