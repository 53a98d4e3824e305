"""Between the wire and the agent's own words."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from slurm_plugin.agent.binding import Waiting
from slurm_plugin.agent.terms import Offer, Terms
from slurm_plugin.model import Gpu, Grant, Step
from slurm_plugin.proto.vgpu.v1 import pool_pb2

NOBODY: Mapping[str, str] = MappingProxyType({})
NEVER: Mapping[str, float] = MappingProxyType({})


def gpu_to_wire(gpu: Gpu, haunted: Mapping[str, str] = NOBODY, unused: Mapping[str, float] = NEVER) -> pool_pb2.Gpu:
    """`haunted`: who uses a slice without a grant. To the pool it is then as foreign as others' instances.

    `unused`: since when a slice is held and not used.
    """
    return pool_pb2.Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor,
        name=gpu.name,
        mig=gpu.mig,
        memory_mib=gpu.memory_mib,
        profiles=[
            pool_pb2.GpuProfile(
                name=one.name,
                gi_profile_id=one.gi_profile_id,
                compute_slices=one.compute_slices,
                memory_mib=one.memory_mib,
                starts=one.starts,
                size=one.size,
                engines=one.engines,
            )
            for one in gpu.profiles
        ],
        instances=[
            pool_pb2.Instance(
                profile=one.profile,
                start=one.start,
                size=one.size,
                gi=one.gi,
                ci=one.ci,
                uuid=one.uuid,
                foreign=one.foreign or one.uuid in haunted,
                held_by=haunted.get(one.uuid, ""),
                unused_since=unused.get(one.uuid, 0.0),
            )
            for one in gpu.instances
        ],
        fault=gpu.fault,
    )


def grant_to_wire(grant: Grant, isolation: str = "mig") -> pool_pb2.Grant:
    return pool_pb2.Grant(
        job_id=grant.run.job_id,
        started_at=grant.run.started_at,
        uid=grant.run.uid,
        gres_class=grant.gres_class,
        count=grant.count,
        slices=grant.slices,
        made_at=grant.made_at,
        isolation=isolation,
    )


def waiting_to_wire(waiting: Iterable[Waiting]) -> list[pool_pb2.Waiting]:
    return [
        pool_pb2.Waiting(
            job_id=one.run.key.job_id, gres_class=one.want.gres_class, count=one.want.count, since=one.since
        )
        for one in waiting
    ]


def terms_from_wire(offers: pool_pb2.Offers) -> Terms:
    return Terms(
        offers={one.slice: Offer(gres_class=one.gres_class, ask=one.ask) for one in offers.offers},
        classes={one.gres_class: tuple(one.profiles) for one in offers.classes},
        gpus=frozenset(offers.gpus),
        observe=offers.observe,
    )


def step_from_wire(step: pool_pb2.Step) -> Step:
    return Step(
        gpu=step.gpu,
        destroy=tuple((shape.profile, shape.start) for shape in step.destroy),
        create=tuple((shape.profile, shape.start) for shape in step.create),
    )
