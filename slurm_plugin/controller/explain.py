"""PURE: why a job waits, from what the controller knew and decided."""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from slurm_plugin.controller.blockers import Ground, Way, placeable, room, shapes_of
from slurm_plugin.controller.demand import demands, wants
from slurm_plugin.controller.state import WITHHELD, Action, Decision, GpuPlan, State
from slurm_plugin.explanation import Change, Explanation, Instead, Serves, Why
from slurm_plugin.mig.geometry import show
from slurm_plugin.pool import Mode
from slurm_plugin.ports import QueuedJob

_LIMITS = (  # how Slurm's reasons begin, and what they mean
    ("JobHeld", "it is held, and `scontrol release` lets it go"),
    ("Dependency", "it depends on another job"),
    ("BeginTime", "its begin time has not come"),
    ("JobArrayTaskLimit", "as many elements of its array run as its % limit lets"),
    ("QOS", "a limit of its QOS is reached"),
    ("MaxGRESPerAccount", "a limit of its QOS is reached"),
    ("Assoc", "a limit of its account or user is reached"),
    ("Account", "its account may not run there"),
    ("Reservation", "its reservation is not usable now"),
    ("Licenses", "it waits for a licence"),
    ("PartitionTimeLimit", "its time limit is longer than its partition's"),
    ("PartitionNodeLimit", "it asks for more nodes than its partition has or lets"),
    ("PartitionInactive", "its partition is inactive"),
    ("PartitionDown", "its partition is down"),
    ("BadConstraints", "no node meets what it asks for"),
)


def explain(state: State, decision: Decision | None, job: QueuedJob, planned: Sequence[Change] = ()) -> Explanation:
    """`planned`: changes that are decided beyond those of the decision, the next one first."""
    found = tuple(wants(job, state.config))
    if not found or job.on_nodes:
        item = next((item for item in job.gres if item.name == state.config.gres.name), None)
        why = Why.RUNS if job.on_nodes else Why.NOWHERE
        return _base(job, item.type if item else "", item.count if item else 0, why)
    demand = state.loans.ranked(found[0], state.now)
    ground = Ground.of(state, demand)
    ways = tuple(ground.ways(state))
    idle, withheld = _idle(state, ground, decision)
    known = replace(
        _base(job, demand.gres_class, demand.count, Why.BUSY),
        limit=_limit(job),
        idle=len(idle),
        withheld=len(withheld),
        kept=len(withheld & state.recuts.kept),
        gathered=_gathered(decision, job, withheld - state.recuts.kept),
        placeable=sum(placeable(gpu, node, ground.profiles) for node, gpu in ground.gpus()),
        ahead=_ahead(state, ground),
        strikes=demand.strikes,
        back_at=state.loans.passed_over_until(demand, state.now),
        change=_change(decision, ground, [*planned, *_kept(state, ground)]),
        planner=_planner(state, ground),
        again_at=_again_at(state, ground, ways),
        instead=tuple(_instead(state, decision, ground)),
        serves=tuple(_serves(state, ground)),
        profiles=ground.profiles,
        closed=tuple(node.name for node in ground.closed),
        blockers=room(state, ground, ways),
        holders=len({job_id for way in ways for job_id in way.jobs}),
    )
    ends = [one.ends_at for one in known.blockers]
    known = replace(known, free_at=max(ends) if ends and all(ends) else 0)
    return replace(known, why=_why(job, known, ground, decision, free=any(not way.jobs for way in ways)))


def _base(job: QueuedJob, gres_class: str, count: int, why: Why) -> Explanation:
    return Explanation(
        job_id=job.job_id,
        uid=job.uid,
        gres_class=gres_class,
        count=count,
        nodes=max(1, job.nodes),
        tasks=job.tasks,
        priority=job.priority,
        submitted_at=job.submitted_at,
        why=why,
        reason=job.reason,
    )


def _limit(job: QueuedJob) -> str:
    if job.eligible:
        return ""
    words = next((words for start, words in _LIMITS if job.reason.startswith(start)), "")
    return f"{words} ({job.reason})" if words else job.reason


def _why(job: QueuedJob, known: Explanation, ground: Ground, decision: Decision | None, *, free: bool) -> Why:
    if not job.eligible:
        return Why.SLURM
    if not ground.profiles:
        return Why.NOWHERE
    if ground.demand.behind:
        return Why.PASSED_OVER
    if decision is not None and job.job_id not in decision.waiting:
        return Why.STARTING
    if not ground.open:
        return Why.NO_NODE if ground.closed else Why.NOWHERE
    if sum(len(ground.idle[node.name]) >= ground.demand.count for node in ground.open) >= ground.demand.nodes:
        return Why.BEHIND
    if known.change is not None:
        return Why.CHANGE
    if free and not known.blockers:
        return Why.ROOM
    return Why.BUSY if known.blockers or known.holders else Why.NOWHERE


def _change(decision: Decision | None, ground: Ground, planned: Sequence[Change]) -> Change | None:
    """The next change that gives the job something: one that may go now, else what was planned, else one that waits."""
    names = {node.name for node in ground.open}
    given = [(plan, made) for plan in (decision.plan if decision else ()) if (made := _gives(plan, names, ground))]
    now = next((one for one in given if one[0].action is Action.CHANGE), None)
    own = next((one for one in planned if one.node in names and not set(one.creates).isdisjoint(ground.profiles)), None)
    later = next((one for one in given if one[0].action is Action.WAIT), None)
    if now is None and own is not None:
        return own
    chosen = now or later
    if chosen is None:
        return None
    plan, made = chosen
    return Change(node=plan.node, gpu=plan.index, creates=made, why=plan.why)


def _kept(state: State, ground: Ground) -> Iterator[Change]:
    """Room that is kept for this very job."""
    for node, gpu in ground.gpus():
        room = state.recuts.rooms.get(gpu.uuid)
        if room is not None and room.job_id == ground.demand.job_id:
            ends = f" until {_listed(room.behind)} {'ends' if len(room.behind) == 1 else 'end'}" if room.behind else ""
            yield Change(
                node=node.name,
                gpu=gpu.index,
                creates=(room.profile,) * (1 + len(room.more)),
                why=f"room is kept for it{ends}",
                at=room.until,
            )


def _listed(jobs: Sequence[int]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + ", ".join(map(str, jobs))


def _planner(state: State, ground: Ground) -> str:
    if state.config.mode is Mode.OBSERVE:
        return "the pool is only observed: nothing of this is done (mode: observe)"
    if state.paused:
        return "it is paused (vgpu resume)"
    if not ground.recut:
        return ""
    if state.quiet_min:
        return f"quiet hours, for another {state.quiet_min} min"
    own = (one.why for one in state.recuts.waiting if ground.demand.job_id in one.jobs)
    return next(own, state.recuts.why)


def _ahead(state: State, ground: Ground) -> int:
    """Waiting jobs that come first and could take what is idle for it, or, where nothing is, what may become so."""
    idle = {uuid for node in ground.idle.values() for uuid in node}
    there = {one.profile for node in ground.open for one in node.view.slices if one.uuid in idle} or {*ground.profiles}
    ranked = (other for other in demands(state) if other.rank < ground.demand.rank)
    return sum(1 for other in ranked if not there.isdisjoint(state.serving.profiles.get(other.gres_class, ())))


def _idle(state: State, ground: Ground, decision: Decision | None) -> tuple[frozenset[str], frozenset[str]]:
    """Idle slices that serve it: those that it may have, and those that are held back.

    What a guarantee keeps is held back from all classes but the one it is offered as.
    """
    all_ = frozenset(uuid for node in ground.idle.values() for uuid in node)
    offers = [offer for node in ground.idle for offer in (decision.offers.get(node, ()) if decision else ())]
    others = {offer.slice for offer in offers if offer.gres_class != ground.demand.gres_class}
    withheld = (
        all_ & {offer.slice for offer in offers if offer.gres_class == WITHHELD} | all_ & others & state.recuts.kept
    )
    return all_ - withheld, withheld


def _gathered(decision: Decision | None, job: QueuedJob, withheld: Set[str]) -> int:
    loan = decision.loans.jobs.get(job.job_id) if decision else None
    return min(loan.gathered, len(withheld)) if loan else 0


def _again_at(state: State, ground: Ground, ways: Sequence[Way]) -> float:
    """When the first of the GPUs with room for it may be re-cut once more; 0 when one may be now, or none has room."""
    uuids = {way.gpu.uuid for way in ways if not way.jobs and way.node in ground.recut}
    rest_s = state.config.planning.hysteresis_s
    changed = [state.recuts.changed_at.get(uuid, 0.0) for uuid in uuids]
    return min((at + rest_s if abs(state.now - at) < rest_s else 0.0 for at in changed), default=0.0)


def _gives(plan: GpuPlan, names: Set[str], ground: Ground) -> tuple[str, ...]:
    return tuple(name for name, _ in plan.create if name in ground.profiles) if plan.node in names else ()


def _instead(state: State, decision: Decision | None, ground: Ground) -> Iterator[Instead]:
    """Classes of which more is offered than waiting jobs will take, those most like what was asked first."""
    if decision is None:
        return
    offered: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    for node in ground.open:
        classes = {offer.slice: offer.gres_class for offer in decision.offers.get(node.name, ())}
        for _, one in ((g, i) for g in node.view.gpus for i in g.instances if i.uuid not in node.view.holder):
            if (name := classes.get(one.uuid, WITHHELD)) not in (WITHHELD, ground.demand.gres_class):
                offered[name] += 1
                sizes[name] = one.size
    for other in demands(state):
        if other.job_id not in decision.waiting:
            offered[other.gres_class] -= other.count * other.nodes * other.tasks
    wanted = _size(ground)
    for name in sorted(sizes, key=lambda one: (abs(sizes[one] - wanted), one)):
        if offered[name] > 0:
            yield Instead(gres_class=name, idle=offered[name])


def _size(ground: Ground) -> int:
    """Memory slices of the best profile for the job."""
    shapes = (shapes_of(gpu.profiles) for _, gpu in ground.gpus())
    return next((known[name].size for known in shapes for name in ground.profiles if name in known), 0)


def _serves(state: State, ground: Ground) -> Iterator[Serves]:
    """The layouts of pool.yaml that have slices for it, on nodes where it may run."""
    hosts = {node.name for node in (*ground.open, *ground.closed)}
    for group in state.config.groups:
        here = tuple(host for host in group.hosts if host in hosts)
        for share in group.shares if here else ():
            if not share.layout.keys().isdisjoint(ground.profiles):
                yield Serves(layout=show(share.layout), hosts=here)
