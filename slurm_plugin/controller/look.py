"""PURE: how the planner sees a node's GPUs: what is fixed, what is idle, what may change."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from slurm_plugin.controller.sights import Sight, Sights
from slurm_plugin.controller.state import NodeState, State
from slurm_plugin.controller.wants import OfferNode
from slurm_plugin.mig.geometry import Layout, Shape, mask
from slurm_plugin.model import Gpu, MigMode
from slurm_plugin.planner.problem import GpuState
from slurm_plugin.planning import Follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A node as this decision sees it."""

    state: NodeState
    offer: OfferNode | None  # None: it takes no jobs, and nothing of it is planned
    reserved: Mapping[str, str]  # idle slices that running jobs are about to take


def look(state: State, here: Mapping[str, Here], *, settled: bool) -> Sights:
    """All nodes that may be planned, those looked at anew of which anything is different from the last look.

    `settled`: GPUs re-cut not long ago stay as they are.
    """
    sights = state.recuts.sights
    sights.begin(state.config, state.assigned)
    recent = _recent(state) if settled else ()
    special = {*state.recuts.targets, *state.recuts.rooms, *state.held_gpus, *recent}
    for name, node in here.items():
        if node.offer is None:
            sights.nodes.pop(name, None)
            continue
        known, now = sights.nodes.get(name), node.state
        same = known is not None and known.plain and known.view is now.view and known.group is now.group
        if not same or node.reserved or known is None or not known.uuids.isdisjoint(special):
            sights.nodes[name] = _looked(state, node, sights, recent, special)
    for name in sights.nodes.keys() - here.keys():
        del sights.nodes[name]
    return sights


def _recent(state: State) -> frozenset[str]:
    rest_s = state.config.planning.hysteresis_s
    return frozenset(uuid for uuid, at in state.recuts.changed_at.items() if abs(state.now - at) < rest_s)


def _looked(state: State, node: Here, sights: Sights, recent: Collection[str], special: Collection[str]) -> Sight:
    uuids = frozenset(gpu.uuid for gpu in node.state.view.gpus)
    return Sight(
        view=node.state.view,
        group=node.state.group,
        plain=not node.reserved and uuids.isdisjoint(special),
        seen=tuple(
            (_gpu(state, node, gpu, sights.model(gpu), stays=gpu.uuid in recent), gpu)
            for gpu in node.state.view.gpus
            if gpu.mig is MigMode.ENABLED and not gpu.fault and node.state.group.takes(gpu.index)
        ),
        uuids=uuids,
    )


def _gpu(state: State, node: Here, gpu: Gpu, model: str, *, stays: bool) -> GpuState:
    profiles = {profile.name: profile for profile in gpu.profiles}
    taken = {*node.state.view.holder, *node.reserved}
    target, room = state.recuts.targets.get(gpu.uuid), state.recuts.rooms.get(gpu.uuid)
    fixed: list[tuple[str, int]] = []
    idle: list[tuple[str, int]] = []
    blocked = 0
    for one in gpu.instances:
        if one.profile not in profiles or one.ci < 0:
            blocked |= mask(one.start, one.size)
        else:
            (fixed if one.foreign or one.uuid in taken else idle).append((one.profile, one.start))
    if target is not None:
        idle = [*(placed for placed in idle if placed not in target.destroy), *target.create]
    elif room is not None and room.waits:
        kept = [placed for placed in idle if mask(placed[1], profiles[placed[0]].size) & room.bits]
        fixed, idle = [*fixed, *kept], [placed for placed in idle if placed not in kept]
        blocked |= room.bits & ~bits_of(profiles, fixed)
    return GpuState(
        model=model,
        fixed=_sorted(fixed),
        idle=_sorted(idle),
        blocked=blocked,
        default=_default(state, node.state, gpu),
        open=target is None and follows(state, node.state) and gpu.uuid not in state.held_gpus and not stays,
    )


def follows(state: State, node: NodeState) -> bool:
    return state.config.follow(node.group) is Follow.QUEUE


def bits_of(profiles: Mapping[str, Shape], layout: Iterable[tuple[str, int]]) -> int:
    bits = 0
    for name, start in layout:
        bits |= mask(start, profiles[name].size)
    return bits


def _sorted(layout: Iterable[tuple[str, int]]) -> Layout:
    return tuple(sorted(layout, key=lambda placed: (placed[1], placed[0])))


def _default(state: State, node: NodeState, gpu: Gpu) -> tuple[tuple[str, int], ...]:
    share = state.assigned.get(gpu.uuid)
    if share is None or share >= len(node.group.shares):
        return ()
    return tuple(sorted(node.group.shares[share].layout.items()))
