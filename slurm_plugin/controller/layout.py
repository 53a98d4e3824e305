"""PURE: what each GPU is to be cut into, and what can be done about it now.

A slice that must go is first withheld, then the counts without it are published, and only a later pass, which finds
both done and no job on its way to the node's slices, sends the step. Instances that jobs have, and foreign ones, stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from slurm_plugin.controller.recuts import Recuts, Room
from slurm_plugin.controller.state import Action, GpuPlan, NodeState
from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.change import Change, Existing, converge
from slurm_plugin.mig.geometry import Layout, mask
from slurm_plugin.model import Gpu, GpuProfile, MigMode

_MEMO = 20_000  # states of a GPU remembered; GPUs in the same state share one

Wanted = tuple[tuple[str, int], ...]
_Held = tuple[str, int, int, bool, bool, bool]  # an Existing, as a tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    """What becomes of one node's GPUs."""

    plans: tuple[GpuPlan, ...] = ()
    away: frozenset[str] = frozenset()  # slices the layout has no place for, idle or busy
    later: frozenset[str] = frozenset()  # GPUs whose turn to change has not come
    problems: tuple[str, ...] = ()


def spread(nodes: Mapping[str, NodeState], assigned: Mapping[str, int]) -> dict[str, int]:
    """Give every GPU of a mix its share: GPU -> index of the share. What was given before stays.

    The others go where the mix lacks most; among equals to the layout they are nearest to. Groups are apart.
    """
    given: dict[str, int] = {}
    groups: dict[int, list[tuple[NodeState, Gpu]]] = {}
    for name in sorted(nodes):
        node = nodes[name]
        if node.group.shares:
            gpus = [(node, gpu) for gpu in node.view.gpus if node.group.takes(gpu.index)]
            groups.setdefault(id(node.group.hosts), []).extend(gpus)  # its entry's own, whatever its GPUs' numbers
    for members in groups.values():
        shares = members[0][0].group.shares if members else ()
        if len(shares) == 1:
            given |= {gpu.uuid: 0 for _, gpu in members}
            continue
        given |= _spread_group(members, assigned)
    return given


def _spread_group(members: list[tuple[NodeState, Gpu]], assigned: Mapping[str, int]) -> dict[str, int]:
    shares = members[0][0].group.shares if members else ()
    kept = {gpu.uuid: assigned[gpu.uuid] for _, gpu in members if assigned.get(gpu.uuid, len(shares)) < len(shares)}
    counts = [sum(which == nth for which in kept.values()) for nth in range(len(shares))]
    quota = _quotas([share.share for share in shares], len(members))
    fresh = [(node, gpu) for node, gpu in members if gpu.uuid not in kept]
    wishes = sorted(
        (_cost(node, gpu, tuple(shares[nth].layout.items())), place, nth)
        for place, (node, gpu) in enumerate(fresh)
        for nth in range(len(shares))
    )
    for _, place, nth in wishes:
        uuid = fresh[place][1].uuid
        if uuid not in kept and counts[nth] < quota[nth]:
            kept[uuid] = nth
            counts[nth] += 1
    for _, gpu in fresh:  # when earlier ones hold more than their quota now
        if gpu.uuid not in kept:
            nth = max(range(len(shares)), key=lambda n: quota[n] - counts[n])
            kept[gpu.uuid] = nth
            counts[nth] += 1
    return kept


def _quotas(shares: list[int], members: int) -> list[int]:
    """Whole numbers in the proportion of the shares, largest remainder first."""
    whole = sum(shares)
    quota = [members * share // whole for share in shares]
    order = sorted(range(len(shares)), key=lambda nth: (-(members * shares[nth] % whole), nth))
    for nth in order[: members - sum(quota)]:
        quota[nth] += 1
    return quota


def _cost(node: NodeState, gpu: Gpu, wanted: Wanted) -> tuple[int, int]:
    """How far a GPU is from a layout: what busy slices hold up, then how many instances come and go."""
    try:
        change = _converge(gpu.profiles, _existing(gpu, node.view.holder), wanted)
    except ConfigError:
        return (1 << 20, 0)
    return (len(change.blocked_by) + len(change.leaving), len(change.destroy) + len(change.create))


def plan_node(
    node: NodeState, assigned: Mapping[str, int], reserved: Mapping[str, str], recuts: Recuts | None = None
) -> NodeLayout:
    """`reserved`: idle slices that running jobs are about to take; they count as busy.

    `recuts`: what was decided for nodes that follow the queue; None: this one does not.
    """
    busy = {**node.view.holder, **reserved}
    built = _Built()
    for gpu in node.view.gpus:
        if recuts is not None and not _left(node, gpu):
            _follow_queue(node, gpu, recuts, busy, built)
        else:
            _plan_gpu(node, gpu, assigned.get(gpu.uuid), busy, built)
    return NodeLayout(plans=tuple(built.plans), away=frozenset(built.away), problems=tuple(built.problems))


@dataclass(slots=True)
class _Built:
    plans: list[GpuPlan] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def _plan_gpu(node: NodeState, gpu: Gpu, share: int | None, busy: Mapping[str, object], built: _Built) -> None:
    change = None
    why = _left(node, gpu)
    if not why and share is not None:
        wanted = tuple(node.group.shares[share].layout.items())
        try:
            change = _converge(gpu.profiles, _existing(gpu, busy), wanted)
        except ConfigError as error:
            why = str(error)
            built.problems.append(f"GPU {gpu.index} ({gpu.name}): {error}")
    if change is None:
        action, why = Action.LEAVE, why or "no layout is given for this node"
        keep = tuple(sorted(((i.profile, i.start) for i in gpu.instances), key=lambda placed: placed[1]))
        built.plans.append(GpuPlan(node=node.name, gpu=gpu.uuid, index=gpu.index, action=action, why=why, keep=keep))
        return
    gone = {*change.destroy, *change.leaving}
    built.away.update(i.uuid for i in gpu.instances if i.uuid and (i.profile, i.start) in gone)
    built.plans.append(
        GpuPlan(
            node=node.name,
            gpu=gpu.uuid,
            index=gpu.index,
            action=Action.KEEP if change.reached else Action.WAIT if change.settled else Action.CHANGE,
            why=_why(gpu, change, busy),
            keep=change.keep,
            destroy=change.destroy,
            create=change.create,
        )
    )


def _follow_queue(node: NodeState, gpu: Gpu, recuts: Recuts, busy: Mapping[str, object], built: _Built) -> None:
    """A target is carried out, unless a job has just taken what was to go; room that is kept for a job is kept."""
    here = tuple(sorted(((i.profile, i.start) for i in gpu.instances), key=lambda placed: placed[1]))
    taken = {(i.profile, i.start) for i in gpu.instances if i.uuid in busy or i.foreign}
    target, room = recuts.targets.get(gpu.uuid), recuts.rooms.get(gpu.uuid)
    action, why = Action.KEEP, "follows the queue"
    destroy: Layout = ()
    create: Layout = ()
    if target is not None and not target.reached(gpu) and taken.isdisjoint(target.destroy):
        action, why = Action.CHANGE, target.why
        destroy = tuple(placed for placed in target.destroy if placed in here)
        create = tuple(placed for placed in target.create if placed not in here)
        built.away.update(i.uuid for i in gpu.instances if i.uuid and (i.profile, i.start) in destroy)
    elif target is None and room is not None:
        action, why = Action.WAIT, _room_text(room)
        built.away.update(i.uuid for i in gpu.instances if i.uuid and mask(i.start, i.size) & room.bits)
    keep = tuple(placed for placed in here if placed not in destroy)
    plan = GpuPlan(node=node.name, gpu=gpu.uuid, index=gpu.index, action=action, why=why)
    built.plans.append(replace(plan, keep=keep, destroy=destroy, create=create))


def _room_text(room: Room) -> str:
    behind = ", ".join(f"job {job_id}" for job_id in room.behind)
    waits = f", and waits for {behind}" if behind else ""
    return f"keeps room for {room.text} of job {room.job_id}{waits}"


def _left(node: NodeState, gpu: Gpu) -> str:
    """Why a GPU is left alone, or nothing."""
    if not node.group.takes(gpu.index):
        return "not in the pool (gpus in pool.yaml)"
    if gpu.fault:
        return f"not used: {gpu.fault}"
    if gpu.mig is MigMode.DISABLED:
        return f"MIG is disabled; when nothing uses the GPU: nvidia-smi -i {gpu.index} -mig 1"
    if gpu.mig is MigMode.PENDING:
        return "its MIG mode is about to change: reset the GPU or reboot the node"
    if gpu.mig is MigMode.UNSUPPORTED:
        return "this GPU has no MIG"
    return ""


def _why(gpu: Gpu, change: Change, busy: Mapping[str, object]) -> str:
    if change.reached:
        return "as wanted"
    parts = []
    if change.destroy:
        parts.append(f"{_list(change.destroy)} idle and not wanted")
    if change.create:
        parts.append(f"room for {_list(change.create)}")
    waits = sorted({placed for blocked in change.blocked_by for placed in blocked.by} | set(change.leaving))
    if waits:
        names = {(i.profile, i.start): _holder(i.uuid, busy, foreign=i.foreign) for i in gpu.instances}
        parts.append("waits for " + ", ".join(f"{p}@{start} ({names.get((p, start), 'busy')})" for p, start in waits))
    return "; ".join(parts)


def _holder(uuid: str, busy: Mapping[str, object], *, foreign: bool) -> str:
    job = getattr(getattr(busy.get(uuid), "run", None), "job_id", None)
    return f"job {job}" if job else "foreign" if foreign else "a job about to start"


def _list(placed: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{profile}@{start}" for profile, start in placed)


def _existing(gpu: Gpu, busy: Mapping[str, object]) -> tuple[_Held, ...]:
    return tuple((i.profile, i.start, i.size, i.uuid in busy, i.foreign, i.ci >= 0) for i in gpu.instances)


@lru_cache(maxsize=_MEMO)
def _converge(profiles: tuple[GpuProfile, ...], existing: tuple[_Held, ...], wanted: Wanted) -> Change:
    current = (
        Existing(profile=profile, start=start, size=size, busy=busy, foreign=foreign, whole=whole)
        for profile, start, size, busy, foreign, whole in existing
    )
    return converge({profile.name: profile for profile in profiles}, current, dict(wanted))
