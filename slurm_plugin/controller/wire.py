"""Between the wire's messages and the words of the controller. Protobuf stays in here and at the daemon's edge."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from slurm_plugin.controller.state import GpuPlan, OfferOut, Serving
from slurm_plugin.model import Gpu, GpuProfile, Grant, Instance, MigMode, RunKey, Step
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

MAX_GPUS = 64  # of one node
MAX_INSTANCES = 64  # of one GPU
_MODELS = 256  # kinds of GPU remembered


def gpus_of(inventory: pb.Inventory) -> tuple[Gpu, ...]:
    """Raises ValueError for a message no agent of ours would send."""
    if len(inventory.gpus) > MAX_GPUS or any(len(gpu.instances) > MAX_INSTANCES for gpu in inventory.gpus):
        raise ValueError("inventory is larger than any node can be")
    return tuple(
        Gpu(
            uuid=gpu.uuid,
            index=gpu.index,
            minor=gpu.minor,
            name=gpu.name,
            mig=MigMode(gpu.mig),
            memory_mib=gpu.memory_mib,
            profiles=_profiles(tuple(profile.SerializeToString(deterministic=True) for profile in gpu.profiles)),
            instances=tuple(_instance(instance) for instance in gpu.instances),
            fault=gpu.fault,
        )
        for gpu in inventory.gpus
    )


@lru_cache(maxsize=_MODELS)
def _profiles(serialized: tuple[bytes, ...]) -> tuple[GpuProfile, ...]:
    """One object for all GPUs of a model: thousands of GPUs say the same."""
    return tuple(
        GpuProfile(
            name=profile.name,
            gi_profile_id=profile.gi_profile_id,
            compute_slices=profile.compute_slices,
            memory_mib=profile.memory_mib,
            starts=tuple(profile.starts),
            size=profile.size,
            engines=tuple(profile.engines),
        )
        for profile in map(pb.GpuProfile.FromString, serialized)
    )


def _instance(instance: pb.Instance) -> Instance:
    return Instance(
        profile=instance.profile,
        start=instance.start,
        size=instance.size,
        gi=instance.gi,
        ci=instance.ci,
        uuid=instance.uuid,
        foreign=instance.foreign,
    )


def grants_of(inventory: pb.Inventory) -> tuple[Grant, ...]:
    return tuple(
        Grant(
            run=RunKey(job_id=grant.job_id, started_at=grant.started_at, uid=grant.uid),
            gres_class=grant.gres_class,
            count=grant.count,
            slices=tuple(grant.slices),
            made_at=grant.made_at,
        )
        for grant in inventory.grants
    )


def offers_message(
    offers: Iterable[OfferOut], serving: Serving, gpus: Iterable[str], *, observe: bool = False
) -> pb.Offers:
    return pb.Offers(
        offers=[pb.Offer(slice=o.slice, gres_class=o.gres_class, ask=o.ask) for o in offers],
        classes=[pb.ClassProfiles(gres_class=name, profiles=served) for name, served in serving.profiles.items()],
        gpus=list(gpus),
        observe=observe,
    )


def step_message(step_id: int, step: Step) -> pb.Step:
    return pb.Step(id=step_id, gpu=step.gpu, destroy=_shapes(step.destroy), create=_shapes(step.create))


def plan_message(plans: Iterable[GpuPlan], problems: Mapping[str, Iterable[str]]) -> pb.PlanReply:
    return pb.PlanReply(
        gpus=[
            pb.GpuPlan(
                node=p.node,
                gpu=p.gpu,
                index=p.index,
                action=p.action,
                keep=_shapes(p.keep),
                destroy=_shapes(p.destroy),
                create=_shapes(p.create),
                why=p.why,
            )
            for p in plans
        ],
        problems=[f"{node}: {line}" if node else line for node, lines in problems.items() for line in lines],
    )


def _shapes(placed: Iterable[tuple[str, int]]) -> list[pb.SliceShape]:
    return [pb.SliceShape(profile=profile, start=start) for profile, start in placed]
