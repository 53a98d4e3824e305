"""The pool that requests.yaml speaks of: two kinds of H100 nodes, an admin's two classes and an alias."""

from slurm_plugin import classes
from slurm_plugin.catalogue import Catalogue, NodeFacts, shapes
from slurm_plugin.mig.products import product_named


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
        operators=(0, 64030),
        classes=made,
        aliases={"tiny": "1g.10gb"},
        shapes=seen,
        nodes=nodes,
    )
