"""PURE: whose turn it is, where more GPUs are not as pool.yaml says than may change at once.

What has to go is kept from jobs until it is gone. So only the GPUs that `changing` has a place for give up idle slices;
the others are offered as they are until it is their turn. Where nothing has to go there is nothing to wait for. Quiet
hours do not matter: who applies a layout then means it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from slurm_plugin.controller.layout import NodeLayout
from slurm_plugin.controller.look import follows
from slurm_plugin.controller.state import WITHHELD, Action, Agent, GpuPlan, NodeState, State
from slurm_plugin.model import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A GPU that has idle slices to give up."""

    plan: GpuPlan
    gpu: Gpu
    begun: bool  # all of them are withheld already, but for what was just freed

    @property
    def order(self) -> tuple[bool, str, int]:
        return (not self.begun, self.plan.node, self.plan.index)


def in_turn(state: State, layouts: Mapping[str, NodeLayout]) -> dict[str, NodeLayout]:
    """The layouts, by node, that differ because some of their GPUs' turn has not come.

    A part of the pool begins no change, and goes on with those that have begun: it is not told how many there are.
    """
    changes = sorted(_changes(state, layouts), key=lambda one: one.order)
    under_way = state.held_gpus - state.failed_gpus
    most_here, most = state.config.planning.changing_of_node, state.config.planning.changing_of_pool
    left = max(0, most - len(under_way | state.recuts.targets.keys()))
    here: Counter[str] = Counter()
    found: dict[str, NodeLayout] = {}
    for one in changes:
        name = one.plan.node
        if name not in here:
            here[name] = sum(gpu.uuid in under_way for gpu in state.nodes[name].view.gpus)
        if state.part is None and left and here[name] < most_here and one.gpu.uuid not in state.failed_gpus:
            left -= 1
            here[name] += 1
        elif state.part is None or not one.begun:
            found[name] = _later(found.get(name, layouts[name]), one)
    return found


def _changes(state: State, layouts: Mapping[str, NodeLayout]) -> Iterator[_Change]:
    freed = state.part.freed if state.part is not None else frozenset[str]()
    under_way = state.held_gpus - state.failed_gpus
    for name, layout in layouts.items():
        plans = [plan for plan in layout.plans if plan.action is Action.CHANGE and plan.destroy]
        node = state.nodes[name]
        if not plans or follows(state, node) or not _takes_steps(node):
            continue
        gpus = {gpu.uuid: gpu for gpu in node.view.gpus}
        for plan in plans:
            gpu = gpus[plan.gpu]
            goes = [one.uuid for one in gpu.instances if one.uuid and (one.profile, one.start) in plan.destroy]
            if goes and plan.gpu not in under_way:
                begun = all(state.present.get(uuid) == WITHHELD for uuid in goes if uuid not in freed)
                yield _Change(plan=plan, gpu=gpu, begun=begun)


def _takes_steps(node: NodeState) -> bool:
    return node.agent is Agent.CONNECTED and not node.fault and node.slurm is not None


def _later(layout: NodeLayout, change: _Change) -> NodeLayout:
    """What has begun stays withheld: it would be a job's again just before its turn."""
    back = frozenset[str]() if change.begun else frozenset(one.uuid for one in change.gpu.instances)
    why = f"{change.plan.why}; in its turn, since not all GPUs change at once (changing)"
    return replace(
        layout,
        plans=tuple(replace(one, why=why) if one is change.plan else one for one in layout.plans),
        away=layout.away - back,
        later=layout.later | {change.gpu.uuid},
    )
