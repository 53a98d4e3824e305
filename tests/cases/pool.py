"""The pool that requests.yaml speaks of: two kinds of H100 nodes, an admin's two classes and an alias."""

from dataclasses import replace

from slurm_plugin import classes
from slurm_plugin.catalogue import Catalogue, NodeFacts, Shape, shapes
from slurm_plugin.mig.products import product_named


def laid_out() -> Catalogue:
    """The same, where all GPUs but those of n2 and n3 are cut in {3g.40gb: 1, 1g.10gb: 4}; n2's are whole, n3's layout
    is not known."""
    made = pool()
    h100 = product_named("h100-80gb").profiles
    mixed = classes.made(made.classes, [h100] * 4, [{"3g.40gb": 1, "1g.10gb": 4}])
    whole = classes.made(made.classes, [h100] * 4, [{"7g.80gb": 1}])
    large, small = (made.by_shape[made.nodes[name]] for name in ("n1", "n3"))

    def facts(shape: Shape, layout: dict[str, int] | None) -> NodeFacts:
        return NodeFacts(cpus=shape.cpus, memory_mib=shape.memory_mib, most=shape.most, made=layout)

    seen, nodes = shapes({"n1": facts(large, mixed), "n2": facts(large, whole), "n3": facts(small, None)})
    return replace(made, shapes=seen, nodes=nodes)


def pool() -> Catalogue:
    h100 = product_named("h100-80gb").profiles
    named = {"small": classes.named_class("small", memory="10gb"), "half": classes.named_class("half", fraction="1/2")}
    made = classes.build({"h100": h100}, named)
    small = NodeFacts(cpus=32, memory_mib=256_000, most=classes.most(made, [h100] * 2))
    large = NodeFacts(cpus=64, memory_mib=512_000, most=classes.most(made, [h100] * 4))
    seen, nodes = shapes({"n1": large, "n2": large, "n3": small})
    return Catalogue(
        pool="hpc",
        default="1g.10gb",
        partitions=(("gpu", "vgpu-wait"), ("gpu-long", "vgpu-wait")),
        operators=(0, 64030, 4294967294),
        classes=made,
        aliases={"tiny": "1g.10gb"},
        shapes=seen,
        nodes=nodes,
    )
