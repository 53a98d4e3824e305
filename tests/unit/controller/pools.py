"""Small pools to decide about: H100s cut as a test says, jobs, and what Slurm holds."""

from collections.abc import Mapping, Sequence
from functools import cache

from slurm_plugin.classes import build
from slurm_plugin.controller.state import NodeState, NodeView, Serving
from slurm_plugin.mig.products import product_named
from slurm_plugin.model import Gpu, GpuProfile, Grant, Instance, MigMode, RunKey
from slurm_plugin.pool import NodeGroup, PoolConfig, Share
from slurm_plugin.ports import GresItem, QueuedJob, SlurmNode

TOTAL = 1000
SEVEN = tuple(("1g.10gb", start) for start in range(7))
MIXED = (("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2), ("1g.10gb", 3), ("3g.40gb", 4))


@cache
def profiles(product: str = "h100-80gb") -> tuple[GpuProfile, ...]:
    return tuple(
        GpuProfile(
            name=p.name,
            gi_profile_id=p.gi_profile_id,
            compute_slices=p.compute_slices,
            memory_mib=p.memory_mib,
            starts=p.starts,
            size=p.size,
            engines=tuple(p.engines),
        )
        for p in product_named(product).profiles.values()
    )


@cache
def serving(product: str = "h100-80gb", default: str = "1g.10gb") -> Serving:
    classes = build({product: {p.name: p for p in profiles(product)}}, {})
    return Serving.of({one.name: one.profiles for one in classes}, default)


def gpu(name: str, layout: Sequence[tuple[str, int]], *, index: int = 0, product: str = "h100-80gb") -> Gpu:
    sizes = {p.name: p.size for p in profiles(product)}
    return Gpu(
        uuid=f"GPU-{name}",
        index=index,
        minor=index,
        name=product_named(product).nvml_names[0],
        mig=MigMode.ENABLED,
        memory_mib=product_named(product).memory_mib,
        profiles=profiles(product),
        instances=tuple(
            Instance(profile=p, start=start, size=sizes[p], gi=nth, ci=0, uuid=f"MIG-{name}-{p}-{start}")
            for nth, (p, start) in enumerate(layout)
        ),
    )


def grant(job: int, gres_class: str, *slices: str, started_at: int = 100) -> Grant:
    run = RunKey(job_id=job, started_at=started_at, uid=1000)
    return Grant(run=run, gres_class=gres_class, count=len(slices), slices=slices)


def vgpu(gres_class: str, count: int = 1) -> GresItem:
    return GresItem(name="vgpu", type=gres_class, count=count)


def slurm_node(
    name: str, gres: Sequence[GresItem] = (), used: Sequence[GresItem] = (), *, cpus: int = 64, state: str = "IDLE"
) -> SlurmNode:
    base = (GresItem(name="vgpu", count=TOTAL), GresItem(name="vgpu_mem", count=32))
    return SlurmNode(
        name=name,
        state=state,
        reason="",
        gres=tuple(gres) or base,
        gres_used=tuple(used),
        cpus=cpus,
        cpus_used=0,
        memory_mib=512_000,
        partitions=("gpu", "vgpu-wait"),
        slurmd_started_at=1,
    )


def group(*names: str, layout: Mapping[str, int] | None = None, gpus: tuple[int, ...] | None = None) -> NodeGroup:
    return NodeGroup(hosts=names, shares=(Share(layout=layout),) if layout else (), gpus=gpus)


def node(
    name: str,
    *gpus: Gpu,
    grants: Sequence[Grant] = (),
    slurm: SlurmNode | None = None,
    of: NodeGroup | None = None,
) -> NodeState:
    of = of or group(name)
    view = NodeView.of(gpus, tuple(grants), of)
    return NodeState(name=name, group=of, view=view, slurm=slurm or slurm_node(name))


def config(*names: str) -> PoolConfig:
    return PoolConfig(pool="hpc", partitions=("gpu",), groups=(group(*names),))


def pending(
    job: int, gres_class: str, count: int = 1, *, priority: int = 1, nodes: int = 1, tasks: int = 1
) -> QueuedJob:
    return QueuedJob(
        job_id=job,
        uid=1000,
        priority=priority,
        state="PENDING",
        reason="PartitionDown",
        gres=(vgpu(gres_class, count), GresItem(name="vgpu_mem", count=1)),
        nodes=nodes,
        tasks=tasks,
        partitions=("gpu", "vgpu-wait"),
        wanted_nodes=(),
        on_nodes=(),
        cpus=nodes,
        started_at=0,
        eligible=True,
    )


def running(
    job: int, gres_class: str, count: int = 1, *, on: Sequence[str] = ("n1",), started_at: int = 100
) -> QueuedJob:
    return QueuedJob(
        job_id=job,
        uid=1000,
        priority=1,
        state="RUNNING",
        reason="None",
        gres=(vgpu(gres_class, count), GresItem(name="vgpu_mem", count=1)),
        nodes=len(on),
        tasks=1,
        partitions=("gpu",),
        wanted_nodes=(),
        on_nodes=tuple(on),
        cpus=len(on),
        started_at=started_at,
        eligible=False,
    )
