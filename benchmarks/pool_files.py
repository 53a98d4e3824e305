"""A pool for the benchmarks: 1,000 nodes of eight H100s and twenty classes, as the controller would write it down."""

import shutil
from pathlib import Path

from slurm_plugin.catalogue import Catalogue, NodeFacts, render, shapes
from slurm_plugin.classes import NamedClass, build, most
from slurm_plugin.mig.products import product_named

NODES = 1_000
GPUS = 8
CLASSES = 20
LUA = Path(__file__).parents[1] / "slurm_plugin" / "hooks" / "lua"


def catalogue() -> Catalogue:
    profiles = product_named("h100-80gb").profiles
    named = {"small": NamedClass(memory_gb=10), "big": NamedClass(profiles=("3g.40gb", "4g.40gb"))}
    classes = build({"h100": profiles}, named)
    holds = most(classes, [profiles] * GPUS)
    facts = {f"n{nth}": NodeFacts(cpus=64, memory_mib=512_000, most=holds) for nth in range(1, NODES + 1)}
    kinds, nodes = shapes(facts)
    return Catalogue(
        pool="bench",
        default="1g.10gb",
        partitions=(("gpu", "vgpu-wait"),),
        classes=classes[:CLASSES],
        shapes=kinds,
        nodes=nodes,
    )


JOB_SUBMIT = """local vgpu = dofile("{folder}/vgpu.lua")
vgpu.catalogue = "{folder}/catalogue"
function slurm_job_submit(job_desc, part_list, uid) return vgpu.submit(job_desc, part_list, uid) end
function slurm_job_modify(job_desc, job_rec, part_list, uid) return vgpu.modify(job_desc, job_rec, part_list, uid) end
return slurm.SUCCESS
"""


def install_job_submit(folder: Path) -> None:
    """Our module, a job_submit.lua that calls it, and the catalogue it reads, in one folder."""
    (folder / "catalogue").write_text(render(catalogue()))
    shutil.copy(LUA / "vgpu.lua", folder)
    (folder / "job_submit.lua").write_text(JOB_SUBMIT.format(folder=folder))
