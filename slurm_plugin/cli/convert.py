"""The border between the wire and what the commands show: protobuf in, views out."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from slurm_plugin.cli.users import with_names
from slurm_plugin.cli.view import (
    ISOLATION,
    GpuPlanView,
    GpuView,
    GrantView,
    NodeView,
    PauseState,
    PauseView,
    PendingView,
    PlanView,
    PoolView,
    ShapeView,
    SliceState,
    SliceView,
    WaitingView,
)
from slurm_plugin.mig.compare import differences
from slurm_plugin.mig.products import product_of
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from slurm_plugin.wire import MODELS, profiles_from_wire, serialized


def pool_view(status: pool_pb2.PoolStatus) -> PoolView:
    return PoolView(
        pool=status.pool,
        controller_version=status.controller_version,
        started_at=status.started_at,
        passes=status.passes,
        last_pass_s=status.last_pass_s,
        nodes=tuple(_node(node) for node in status.nodes),
        pending=tuple(
            PendingView(
                job_id=job.job_id,
                uid=job.uid,
                priority=job.priority,
                gres_class=job.gres_class,
                count=job.count,
                nodes=job.nodes,
                reason=job.reason,
                back_at=job.back_at,
            )
            for job in status.pending
        ),
        problems=tuple(status.problems),
        mode=status.mode,
        catalogue_sha256=status.catalogue_sha256,
        pause=pause_view(status.pause) if status.HasField("pause") else None,
        plan=status.plan,
        others=status.others,
    )


def plan_view(reply: pool_pb2.PlanReply) -> PlanView:
    return PlanView(
        gpus=tuple(
            GpuPlanView(
                node=gpu.node,
                gpu=gpu.gpu,
                index=gpu.index,
                action=gpu.action,
                keep=_shapes(gpu.keep),
                destroy=_shapes(gpu.destroy),
                create=_shapes(gpu.create),
                why=gpu.why,
            )
            for gpu in reply.gpus
        ),
        problems=tuple(reply.problems),
        why=reply.why,
        waiting=tuple(reply.waiting),
    )


def pause_state(reply: pool_pb2.PauseReply) -> PauseState:
    return PauseState(pause=pause_view(reply.pause) if reply.HasField("pause") else None, changed=reply.changed)


def pause_view(pause: pool_pb2.Pause) -> PauseView:
    return PauseView(since=pause.since, uid=pause.uid, reason=pause.reason)


def _shapes(shapes: Iterable[pool_pb2.SliceShape]) -> tuple[ShapeView, ...]:
    return tuple(ShapeView(profile=shape.profile, start=shape.start) for shape in shapes)


def _node(node: pool_pb2.NodeStatus) -> NodeView:
    inventory = node.inventory
    holders: dict[str, list[int]] = defaultdict(list)
    for grant in inventory.grants:
        for uuid in grant.slices:
            holders[uuid].append(grant.job_id)
    offers = {offer.slice: offer.gres_class for offer in node.offers}
    return NodeView(
        name=node.node,
        slurm_state=node.slurm_state,
        gres=node.slurm_gres,
        gres_used=node.slurm_gres_used,
        agent_connected=node.agent_connected,
        agent_version=inventory.agent_version,
        unconfined=inventory.unconfined,
        unseen=inventory.unseen,
        gpus=tuple(
            _seen(_gpu(gpu, offers, holders), connected=node.agent_connected)
            for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.index)
        ),
        grants=tuple(_grant(one) for one in sorted(inventory.grants, key=lambda one: one.job_id) if one.job_id),
        waiting=tuple(
            WaitingView(job_id=w.job_id, gres_class=w.gres_class, count=w.count, since=w.since)
            for w in inventory.waiting
        ),
        garbled=tuple(inventory.garbled),
        wait_s=inventory.wait_s,
        problems=tuple(_with_index(text, inventory.gpus) for text in node.problems),
        clock_ahead_s=node.clock_ahead_s,
    )


def _with_index(text: str, gpus: Iterable[pool_pb2.Gpu]) -> str:
    """A GPU that is named by its UUID is found by its index."""
    known = next((gpu for gpu in gpus if gpu.uuid and text.startswith(f"GPU {gpu.uuid}:")), None)
    return text.replace(f"GPU {known.uuid}:", f"GPU {known.index} ({known.uuid}):", 1) if known else text


def _grant(grant: pool_pb2.Grant) -> GrantView:
    return GrantView(
        job_id=grant.job_id,
        started_at=grant.started_at,
        uid=grant.uid,
        gres_class=grant.gres_class,
        count=grant.count,
        slices=tuple(grant.slices),
        made_at=grant.made_at,
        isolation=grant.isolation or ISOLATION,
    )


def _gpu(gpu: pool_pb2.Gpu, offers: Mapping[str, str], holders: Mapping[str, list[int]]) -> GpuView:
    slices = tuple(_slice(i, offers, holders) for i in sorted(gpu.instances, key=lambda i: (i.start, i.size)))
    ends = [start + profile.size for profile in gpu.profiles for start in profile.starts]
    return GpuView(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        mig=gpu.mig,
        memory_mib=gpu.memory_mib,
        memory_slices=max([*ends, *(piece.start + piece.size for piece in slices)], default=0),
        fault=with_names(gpu.fault),
        slices=slices,
        differs=_differences(gpu.name, serialized(gpu)),
    )


@lru_cache(maxsize=MODELS)
def _differences(name: str, profiles: tuple[bytes, ...]) -> tuple[str, ...]:
    """Once for all GPUs of a model. A GPU that told no profile, or is in no table, differs in nothing."""
    product = product_of(name) if profiles else None
    return differences(product, profiles_from_wire(profiles)) if product else ()


def _seen(gpu: GpuView, *, connected: bool) -> GpuView:
    """As its agent last told it. Who has a slice since, nobody can tell: a new controller knows of no grant before."""
    idle = (SliceState.IDLE, SliceState.WITHHELD)
    if connected or not any(piece.state in idle for piece in gpu.slices):
        return gpu
    slices = (replace(p, state=SliceState.UNKNOWN) if p.state in idle else p for p in gpu.slices)
    return replace(gpu, slices=tuple(slices))


def _slice(i: pool_pb2.Instance, offers: Mapping[str, str], holders: Mapping[str, list[int]]) -> SliceView:
    held_by = holders.get(i.uuid, ()) if i.uuid else ()
    jobs = tuple(sorted(job for job in held_by if job))  # one of another user may have no number
    offered_as = offers.get(i.uuid, "") if i.uuid else ""
    return SliceView(
        uuid=i.uuid,
        profile=i.profile,
        start=i.start,
        size=i.size,
        gi=i.gi,
        ci=i.ci,
        state=_state(i, busy=bool(held_by), offered=bool(offered_as)),
        offered_as="" if held_by else offered_as,
        held_by=with_names(i.held_by),
        unused_since=i.unused_since if jobs else 0.0,
        jobs=jobs,
    )


def _state(i: pool_pb2.Instance, *, busy: bool, offered: bool) -> SliceState:
    if busy:
        return SliceState.BUSY
    if i.held_by:
        return SliceState.HELD
    if i.foreign:
        return SliceState.FOREIGN
    if i.ci < 0:
        return SliceState.HALF_MADE
    return SliceState.IDLE if offered else SliceState.WITHHELD
