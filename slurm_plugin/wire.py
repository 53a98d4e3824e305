"""GPUs, grants and steps on the wire, both ways: what agent, controller and command line say to each other."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from slurm_plugin.model import Gpu, GpuProfile, Grant, Instance, MigMode, RunKey, Step
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

MAX_GPUS = 64  # of one node
MAX_INSTANCES = 64  # of one GPU
MODELS = 256  # kinds of GPU remembered
NOBODY: Mapping[str, str] = MappingProxyType({})
NEVER: Mapping[str, float] = MappingProxyType({})


def gpu_to_wire(gpu: Gpu, haunted: Mapping[str, str] = NOBODY, unused: Mapping[str, float] = NEVER) -> pb.Gpu:
    """`haunted`: who uses a slice without a grant. To the pool it is then as foreign as others' instances.

    `unused`: since when a slice is held and not used.
    """
    return pb.Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        minor=gpu.minor,
        name=gpu.name,
        mig=gpu.mig,
        memory_mib=gpu.memory_mib,
        profiles=[
            pb.GpuProfile(
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
            pb.Instance(
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


def grant_to_wire(grant: Grant, isolation: str = "mig") -> pb.Grant:
    return pb.Grant(
        job_id=grant.run.job_id,
        started_at=grant.run.started_at,
        uid=grant.run.uid,
        gres_class=grant.gres_class,
        count=grant.count,
        slices=grant.slices,
        made_at=grant.made_at,
        isolation=isolation,
    )


def gpus_from_wire(inventory: pb.Inventory) -> tuple[Gpu, ...]:
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
            profiles=profiles_from_wire(serialized(gpu)),
            instances=tuple(_instance(instance) for instance in gpu.instances),
            fault=gpu.fault,
        )
        for gpu in inventory.gpus
    )


def serialized(gpu: pb.Gpu) -> tuple[bytes, ...]:
    """What the GPU told of its profiles, as a key: all GPUs of a model tell the same."""
    return tuple(profile.SerializeToString(deterministic=True) for profile in gpu.profiles)


@lru_cache(maxsize=MODELS)
def profiles_from_wire(told: tuple[bytes, ...]) -> tuple[GpuProfile, ...]:
    """One object for all GPUs of a model: there may be thousands of them."""
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
        for profile in map(pb.GpuProfile.FromString, told)
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


def grants_from_wire(inventory: pb.Inventory) -> tuple[Grant, ...]:
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


def step_to_wire(step_id: int, step: Step) -> pb.Step:
    return pb.Step(id=step_id, gpu=step.gpu, destroy=shapes_to_wire(step.destroy), create=shapes_to_wire(step.create))


def step_from_wire(step: pb.Step) -> Step:
    return Step(
        gpu=step.gpu,
        destroy=tuple((shape.profile, shape.start) for shape in step.destroy),
        create=tuple((shape.profile, shape.start) for shape in step.create),
    )


def shapes_to_wire(placed: Iterable[tuple[str, int]]) -> list[pb.SliceShape]:
    return [pb.SliceShape(profile=profile, start=start) for profile, start in placed]
