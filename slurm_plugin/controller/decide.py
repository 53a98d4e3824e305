"""PURE: one whole decision: from what is, to what to publish, offer and change.

    reserve for jobs that run and have not bound yet  ->  layout (what must go)  ->  offers (by what waits)
      ->  counts (what Slurm is to hold)  ->  steps (where nothing stands in the way any more)

Asking again after everything was carried out gives nothing to do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_plugin.choice import Slice
from slurm_plugin.controller import counts
from slurm_plugin.controller.changing import in_turn
from slurm_plugin.controller.demand import (
    asked,
    forgotten,
    held,
    is_open,
    offer_node,
    over,
    takes_jobs,
    unbound,
)
from slurm_plugin.controller.layout import NodeLayout, plan_node, spread
from slurm_plugin.controller.loans import Loans
from slurm_plugin.controller.look import Here, follows
from slurm_plugin.controller.offers import Offering, assign, reserve
from slurm_plugin.controller.opened import settled, taken
from slurm_plugin.controller.prologs import IN_PROLOG, lost_prologs
from slurm_plugin.controller.promised import margins
from slurm_plugin.controller.question import guarantees, within
from slurm_plugin.controller.recut import follow, settle
from slurm_plugin.controller.recuts import Recuts
from slurm_plugin.controller.state import (
    WITHHELD,
    Action,
    Agent,
    Decision,
    GpuPlan,
    LostProlog,
    NodeState,
    OfferOut,
    Serving,
    State,
)
from slurm_plugin.controller.wants import Demand, Key, OfferNode
from slurm_plugin.guarantees import Margin
from slurm_plugin.model import Grant, Step
from slurm_plugin.pool import Mode, StuckProlog
from slurm_plugin.ports import GresItem, QueuedJob, SlurmNode

FORGOTTEN = "a job runs on it that Slurm has forgotten to have started"
STUCK_S = 60.0  # a job that has run for so long without a grant, and is past its prolog, takes no slice any more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """One node while a decision is made."""

    state: NodeState
    unbound: Mapping[str, int]  # class -> slices that running jobs still have to take
    stuck: Mapping[str, int]  # class -> slices that Slurm counts as used by jobs that have none here, and take none
    starting: bool  # one of those jobs is young: its prolog may be taking a slice at this moment
    reserved: Mapping[str, str]
    layout: NodeLayout
    problems: list[str]


def decide(state: State) -> Decision:
    """Decide everything at once. Equal states give equal decisions. Bound: 1 s for 1,000 nodes of 8 GPUs."""
    part = state.part
    state = _wary(state)
    assigned = spread(state.nodes, state.assigned) if part is None else state.assigned
    waiting_to_bind = unbound(state)
    lost = lost_prologs(state) if part is None else ()
    before = replace(state.recuts, events=())
    state = replace(state, assigned=assigned, recuts=before, held=held(state) if part is None else None)
    nodes: Mapping[str, _Node] = {
        name: _node(state, state.nodes[name], waiting_to_bind.get(name, ())) for name in sorted(state.nodes)
    }
    if not state.paused:
        turns = in_turn(state, {name: node.layout for name, node in nodes.items()})
        nodes = {**nodes, **{name: replace(nodes[name], layout=layout) for name, layout in turns.items()}}
    if part is None and state.promises:
        state = replace(state, loans=state.loans.taken(taken(state), state.now))
    wanted, knows = asked(state)
    if part is None and state.promises:
        wanted = list(settled(wanted, {uuid for node in nodes.values() for uuid in node.reserved}))
    wanted.sort(key=lambda demand: demand.rank)
    if part is None and (before.targets or any(follows(state, node.state) for node in nodes.values())):
        state, nodes, offering = _follow_queue(state, nodes, wanted)
    else:
        if part is None:  # no layout follows the queue any more: nothing that was planned for it is so
            state = replace(state, recuts=Recuts(changed_at=before.changed_at))
        offering = _offering(state, nodes, wanted)
    classes = _classes(state, nodes, offering)
    _tell_lost(state, lost, nodes)
    ended = over(state)
    soon = {name: _soon(node, ended, offering.asked) for name, node in nodes.items()}
    gres = {
        name: items
        for name, node in nodes.items()
        if (items := _gres(state, node, classes, soon[name], ended)) is not None
    }
    return Decision(
        gres=gres,
        offers={name: _offers(node, classes, offering.asked) for name, node in nodes.items()},
        steps={
            name: steps for name, node in nodes.items() if not part and (steps := _steps(state, node, name in gres))
        },
        plan=tuple(plan for node in nodes.values() for plan in node.layout.plans),
        assigned=assigned,
        problems={name: tuple(node.problems) for name, node in nodes.items() if node.problems},
        waiting=frozenset(demand.job_id for demand in offering.waiting),
        lost=lost if _sends_back(state) else (),
        forgotten=state.forgotten,
        first={} if state.begins else offering.first,
        loans=_loans(state, wanted, offering),
        asked=knows,
        recuts=before if state.config.mode is Mode.OBSERVE else replace(state.recuts, kept=offering.kept),
        margins=_margins(state, nodes) if part is None else (),
    )


def _wary(state: State) -> State:
    """Where a job that Slurm says waits still has its slices, slurmctld forgot that it started it.

    Nothing starts there until the node is rid of it: slurmd would refuse that job, and Slurm drain the node for it.
    """
    found = forgotten(state) if state.part is None else state.forgotten
    nodes = {name: replace(node, fault=node.fault or FORGOTTEN) for name in found if (node := state.nodes.get(name))}
    return replace(state, forgotten=found, nodes={**state.nodes, **nodes})


def _follow_queue(
    state: State, nodes: Mapping[str, _Node], wanted: Sequence[Demand]
) -> tuple[State, Mapping[str, _Node], Offering]:
    """Let the layouts follow: what was decided and still holds, what is offered so, and what is re-cut for the rest."""
    state = replace(state, recuts=settle(state, _here(state, nodes), wanted))
    nodes = _laid_out(state, nodes)
    offering = _offering(state, nodes, wanted)
    state = replace(state, recuts=replace(state.recuts, kept=offering.kept))
    # Who was passed over, since it did not start on what it had claimed, has nothing cut while others lack something.
    first = any(not demand.behind for demand in offering.waiting)
    heard = [demand for demand in wanted if not (first and demand.behind)]
    lacking = bool(offering.waiting)
    settled, state = state.recuts, replace(state, recuts=follow(state, _here(state, nodes), heard, lacking=lacking))
    if (state.recuts.targets, state.recuts.rooms) != (settled.targets, settled.rooms):
        nodes = _laid_out(state, nodes)
        offering = _offering(state, nodes, wanted)
    return state, nodes, offering


def _margins(state: State, nodes: Mapping[str, _Node]) -> tuple[Margin, ...]:
    """What is kept back for a re-cut keeps no guarantee any more."""
    away = {uuid for node in nodes.values() for uuid in node.layout.away} if state.promises else ()
    return margins(state, [name for name, node in nodes.items() if is_open(node.state)], away)


def _here(state: State, nodes: Mapping[str, _Node]) -> dict[str, Here]:
    return {
        name: Here(
            state=node.state,
            offer=_offer_node(state, node) if is_open(node.state) else None,
            reserved=node.reserved,
        )
        for name, node in nodes.items()
    }


def _laid_out(state: State, nodes: Mapping[str, _Node]) -> dict[str, _Node]:
    return {
        name: replace(node, layout=_layout(state, node.state, node.reserved)) if follows(state, node.state) else node
        for name, node in nodes.items()
    }


def _offering(state: State, nodes: Mapping[str, _Node], wanted: Sequence[Demand]) -> Offering:
    """Every node is a place of its own here."""
    here = _here(state, nodes) if state.promises and state.reaches else {}
    reaches = state.reaches if here else {}
    wheres: dict[Key, frozenset[str]] = {("reach", name): within(here, reach) for name, reach in reaches.items()}
    return assign(
        [_offer_node(state, node) for node in nodes.values() if is_open(node.state)],
        wanted,
        state.present,
        state.serving,
        promises=guarantees(state, wheres) if state.part is None else (),
        part=state.part is not None,
    )


def _sends_back(state: State) -> bool:
    return state.config.mode is Mode.MANAGE and state.config.stuck_prolog is StuckProlog.REQUEUE


def _tell_lost(state: State, lost: Iterable[LostProlog], nodes: Mapping[str, _Node]) -> None:
    todo = "it is sent back" if _sends_back(state) else "scontrol requeue it"
    for one in lost:
        for name in () if one.ended else one.nodes:  # of those, only who asks slurmctld when it was started is sure
            nodes[name].problems.append(f"job {one.job_id} will never start, its prolog was lost here: {todo}")


def _loans(state: State, wanted: Iterable[Demand], offering: Offering) -> Loans:
    """Nothing is lent while the pool is only observed; and a part of it does not tell what a job has elsewhere."""
    if state.part or state.config.mode is Mode.OBSERVE:
        return state.loans
    return state.loans.follow(wanted, offering.lent, state.jobs, state.now)


def _node(state: State, node: NodeState, jobs: Iterable[QueuedJob]) -> _Node:
    unbound: dict[str, int] = {}
    stuck: dict[str, int] = {}
    problems = _slurm_problems(state, node)
    starting = False
    for job in jobs:
        starting = starting or state.now - job.started_at < STUCK_S
        garbled = job.job_id in node.view.garbled
        lost = not garbled and _has_lost_its_prolog(state, node, job)
        takes = stuck if lost or garbled else unbound
        for item in job.gres:
            if item.name == state.config.gres.name and item.type:
                takes[item.type] = takes.get(item.type, 0) + item.count
        if lost:
            problems.append(f"job {job.job_id} runs here and has no slice: scontrol requeue it")
    idle = [piece for piece in node.view.slices if piece.uuid not in node.view.holder] if unbound else []
    reserved = reserve(idle, unbound, state.present, state.serving) if unbound else {}
    layout = _layout(state, node, reserved)
    problems.extend(layout.problems)
    return _Node(
        state=node,
        unbound=unbound,
        stuck=stuck,
        starting=starting,
        reserved=reserved,
        layout=layout,
        problems=problems,
    )


def _has_lost_its_prolog(state: State, node: NodeState, job: QueuedJob) -> bool:
    """Its prolog is over, and it has no slice: an idle one that was kept for it would be nobody's until it ends."""
    past = job.reason != IN_PROLOG and job.state != "CONFIGURING" and job.job_id not in node.view.waiting
    return past and node.agent is Agent.CONNECTED and state.now - job.started_at >= STUCK_S


def _layout(state: State, node: NodeState, reserved: Mapping[str, str]) -> NodeLayout:
    """While re-cutting is paused only what a step under way may destroy is kept from jobs."""
    layout = plan_node(node, state.assigned, reserved, state.recuts if follows(state, node) else None)
    if not state.paused or not layout.away:
        return layout
    under_way = state.held_gpus - state.failed_gpus
    going = {one.uuid for gpu in node.view.gpus if gpu.uuid in under_way for one in gpu.instances}
    return replace(layout, away=layout.away & going)


def _slurm_problems(state: State, node: NodeState) -> list[str]:
    problems = []
    if node.agent is Agent.AWAY:
        problems.append("its agent is away: it takes no new vgpu job")
    elif node.fault:
        problems.append(f"it takes no new vgpu job: {node.fault}")
    if node.slurm is None:
        problems.append("Slurm does not know this node")
        return problems
    if not takes_jobs(node.slurm):
        problems.append(f"Slurm has it {node.slurm.state}" + (f": {node.slurm.reason}" if node.slurm.reason else ""))
    count, seen = node.group.count, len(node.view.gpus)
    if count and count != seen and node.agent is Agent.CONNECTED:
        unsure = "" if node.group.gpus is None else ": numbers may mean other GPUs, so it takes in none that is new"
        problems.append(f"it has {seen} GPUs and should have {count}{unsure} (count and gpus in pool.yaml)")
    names = state.config.gres
    total = counts.total_of(names, node.slurm.gres, node.total)
    if not total:
        lacks = f"it has no Gres={names.name}:{names.total}"
        problems.append(f"{lacks}: slurm.conf lacks it, or somebody took it away live (scontrol reconfigure)")
    elif total != names.total:
        problems.append(f"its {names.name} total is {total} and pool.yaml says {names.total}")
    weight = node.weight or counts.weight_of(names, node.slurm.gres)
    lost = node.gone - {names.name, names.memory} | (set() if weight else {names.memory})
    if lost and total:
        problems.append(f"Slurm has no {', '.join(sorted(lost))} on it (any more): scontrol reconfigure")
    return problems


def _offer_node(state: State, node: _Node) -> OfferNode:
    """What may be offered freely: neither taken, nor about to be, nor to be destroyed."""
    view, holder, away, reserved = node.state.view, node.state.view.holder, node.layout.away, node.reserved
    idle = tuple(
        s
        for s in view.slices
        if s.uuid not in holder
        and s.uuid not in reserved
        and s.uuid not in away
        and _open(state, s.uuid)
        and not _spared(state, s)
    )
    busy = tuple((s, holder[s.uuid].gres_class) for s in view.slices if s.uuid in holder and s.uuid not in away)
    return offer_node(node.state, idle, busy)


def _open(state: State, uuid: str) -> bool:
    """In a part of the pool what is offered already stays so: a job that is not looked at may have claimed it."""
    return state.part is None or uuid in state.part.freed or not state.present.get(uuid)


def _spared(state: State, piece: Slice) -> bool:
    """In a part of the pool, what may be promised to an account: only the whole pool tells."""
    if state.part is None or not state.promises:
        return False
    promised = any(p.guarantee.account and piece.profile in p.served.profiles for p in state.promises)
    return piece.uuid in state.recuts.kept or (promised and piece.uuid in state.part.freed)


def _classes(state: State, nodes: Mapping[str, _Node], offering: Offering) -> dict[str, str]:
    """What every slice is offered as. A busy one has its job's class: that is what Slurm takes it for when it ends."""
    classes = dict(offering.classes)
    for node in nodes.values():
        takes = is_open(node.state)
        for piece in node.state.view.slices:
            uuid = piece.uuid
            if uuid in classes:
                continue
            if grant := node.state.view.holder.get(uuid):
                classes[uuid] = grant.gres_class
            elif uuid in node.reserved:
                classes[uuid] = node.reserved[uuid]
            elif uuid in node.layout.away or node.state.fault or (takes and _open(state, uuid)):
                classes[uuid] = WITHHELD
            else:  # such as on a node that takes no jobs: its offers are right when it comes back
                classes[uuid] = _kept(state, uuid, piece.profile)
    return classes


def _kept(state: State, uuid: str, profile: str) -> str:
    serving: Serving = state.serving
    now = state.present.get(uuid, WITHHELD)
    return now if now and serving.serves(now, profile) else serving.home.get(profile, WITHHELD)


def _soon(node: _Node, ended: frozenset[tuple[int, int]], asked: frozenset[str]) -> set[str]:
    """Slices of jobs whose epilogs run, and which nobody else waits for: as good as idle.

    Slurm does not count them as used any more, and starts nothing on the node before its epilog has ended.
    """
    if not ended:
        return set()
    return {
        uuid
        for uuid, grant in node.state.view.holder.items()
        if _run(grant) in ended and uuid not in asked and uuid not in node.layout.away
    }


def _run(grant: Grant) -> tuple[int, int]:
    return (grant.run.job_id, grant.run.started_at)


def _gres(
    state: State, node: _Node, classes: Mapping[str, str], soon: set[str], over: frozenset[tuple[int, int]]
) -> tuple[GresItem, ...] | None:
    """The Gres this node must have, when it has another one.

    A node whose agent may be back soon is left as it is; so is one of another controller, which has its agent.
    """
    slurm, view, agent = node.state.slurm, node.state.view, node.state.agent
    if slurm is None or agent is Agent.EXPECTED or (node.state.contested and agent is Agent.AWAY):
        return None
    if state.part and counts.is_base(state.config.gres, slurm.gres):
        return None  # whom Slurm counts without a type, only a new look at its queue tells
    idle: dict[str, int] = {}
    if agent is Agent.CONNECTED:
        for piece in view.slices:
            offered = classes[piece.uuid]
            if offered and (piece.uuid not in view.holder or piece.uuid in soon):
                idle[offered] = idle.get(offered, 0) + 1
    unbound = _with_unseen(node, slurm, over)
    wanted = counts.publish(
        state.config.gres, slurm.gres, slurm.gres_used, idle, unbound, node.state.total, node.state.weight
    )
    if wanted is None:
        return None
    if wanted.cut:
        node.problems.append(f"{wanted.cut} idle slices can't be offered: the total of {wanted.total} is used up")
    return None if counts.same(wanted.items, slurm.gres) else wanted.items


def _with_unseen(node: _Node, slurm: SlurmNode, over: frozenset[tuple[int, int]]) -> dict[str, int]:
    """Jobs were read before nodes: what is used and neither granted nor known to run was started in between."""
    unbound, known = node.unbound, dict(node.stuck)
    for grant in node.state.view.holder.values():
        if _run(grant) not in over:  # those are granted still, and used no more
            known[grant.gres_class] = known.get(grant.gres_class, 0) + 1
    unseen = {item.type: item.count - known.get(item.type, 0) for item in slurm.gres_used if item.type}
    return {c: max(unbound.get(c, 0), unseen.get(c, 0)) for c in unbound.keys() | unseen.keys()}


def _offers(node: _Node, classes: Mapping[str, str], asked: frozenset[str]) -> tuple[OfferOut, ...]:
    holder, away = node.state.view.holder, node.layout.away
    return tuple(
        OfferOut(
            slice=piece.uuid,
            gres_class=classes[piece.uuid],
            ask=piece.uuid in holder and (piece.uuid in asked or piece.uuid in away),
        )
        for piece in node.state.view.slices
    )


def _steps(state: State, node: _Node, unpublished: bool) -> tuple[Step, ...]:
    """The changes that nothing stands in the way of any more."""
    if state.paused or node.state.agent is not Agent.CONNECTED or node.state.fault or node.state.slurm is None:
        return ()
    held, later = state.held_gpus, node.layout.later
    plans = (p for p in node.layout.plans if p.action is Action.CHANGE and p.gpu not in held and p.gpu not in later)
    ready = (p for p in plans if not p.destroy or _may_destroy(state, node, p, unpublished))
    return tuple(Step(gpu=p.gpu, destroy=p.destroy, create=p.create) for p in ready)


def _may_destroy(state: State, node: _Node, plan: GpuPlan, unpublished: bool) -> bool:
    """Withheld and told so in an earlier pass, counted out in Slurm, and no prolog that could be taking it now."""
    if unpublished or node.starting:
        return False
    gpu = next(gpu for gpu in node.state.view.gpus if gpu.uuid == plan.gpu)
    going = {i.uuid for i in gpu.instances if i.uuid and (i.profile, i.start) in plan.destroy}
    return all(state.present.get(uuid) == WITHHELD for uuid in going)
