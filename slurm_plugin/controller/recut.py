"""PURE: which GPUs are re-cut for what waits.

A plan names kinds of GPUs; here it becomes targets of single ones. A target lives until its GPU is so, or a job has
taken what was to go, or the step has failed. What no re-cut can serve while jobs run gets room kept for it: what ends
in a stretch of a GPU that would hold it is not offered again, until the stretch is free and the next plan cuts it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from slurm_plugin.controller import rooms
from slurm_plugin.controller.bundles import bundle, ever_fits, waiting_together
from slurm_plugin.controller.look import Here, follows
from slurm_plugin.controller.promised import harmless, sparing
from slurm_plugin.controller.question import Question, ask
from slurm_plugin.controller.recuts import Event, Recuts, Room, Target, Waiting
from slurm_plugin.controller.state import State
from slurm_plugin.controller.wants import Demand
from slurm_plugin.mig.geometry import mask
from slurm_plugin.model import Gpu
from slurm_plugin.planner.plan import Plan, Step, plan
from slurm_plugin.planner.problem import Limits, Line

TARGET_S = 300.0  # a target that was not reached for so long is given up
RESTORE_S = 5.0  # between two looks for what could go back to its default
SOLVE_S = 0.3  # longest that the solver takes; then the best it has found goes
BUNDLES_TRIED = 4  # jobs that need several slices of a node, and that room is looked for until one of them has it
JOBS_NAMED = 3  # jobs that a GPU's reason names
JOBS_TOLD = 100  # waiting jobs that are told of with a reason


def settle(state: State, here: Mapping[str, Here], demands: Iterable[Demand]) -> Recuts:
    """What is still true of what was decided before. `demands`: of all jobs that more slices would start."""
    gpus = {gpu.uuid: (node, gpu) for node in here.values() for gpu in node.state.view.gpus}
    targets: dict[str, Target] = {}
    changed_at = {uuid: at for uuid, at in state.recuts.changed_at.items() if uuid in gpus}
    events: list[Event] = []
    for uuid, target in state.recuts.targets.items():
        node, gpu = gpus.get(uuid, (None, None))
        if node is None or gpu is None:
            events.append(_event("dropped", uuid, target, state.now, "its node is no longer in the pool"))
        elif target.reached(gpu):
            if not target.ahead:
                changed_at[uuid] = state.now
            events.append(_event("changed", uuid, target, state.now, target.why))
        elif why := _hopeless(state, node, gpu, target):
            events.append(_event("dropped", uuid, target, state.now, why))
        else:
            targets[uuid] = target
    recuts = replace(state.recuts, targets=targets, changed_at=changed_at, events=tuple(events))
    open_nodes = [name for name, node in here.items() if node.offer is not None]
    kept = _still(replace(state, recuts=recuts), gpus, demands)
    return replace(recuts, rooms=sparing(replace(state, recuts=recuts), open_nodes, kept))


def _still(state: State, gpus: Mapping[str, tuple[Here, Gpu]], demands: Iterable[Demand]) -> dict[str, Room]:
    """The rooms, by GPU, that still can come to be. A job that has lost a part of its room has no use for the rest.

    A part that is being cut already is lost with its target; none is while the rest waits. A job that is held, or has
    another thing in its way than jobs, has no room, nor one whose free room no plan has cut for TARGET_S.
    """
    if not state.recuts.rooms or state.paused:
        return {}
    dropped = any(event.what == "dropped" for event in state.recuts.events)
    ends, own = rooms.ends(state), {room.job_id for room in state.recuts.rooms.values()}
    waiting = {d.job_id: d for d in demands if d.job_id in own and (not state.quiet_min or _promised(state, d))}
    kept: dict[str, Room] = {}
    lost: set[int] = set()
    for uuid, room in state.recuts.rooms.items():
        (node, gpu), demand = gpus.get(uuid, (None, None)), waiting.get(room.job_id)
        now = None
        if node is not None and gpu is not None and demand is not None and rooms.is_for(state, node, room, demand):
            now = rooms.as_now(state, ends, node, gpu, room)
        if now is None or (dropped and room.several and not room.waits):
            lost.add(room.job_id)
        elif uuid not in state.recuts.targets:
            kept[uuid] = now
    kept = waiting_together({uuid: room for uuid, room in kept.items() if room.job_id not in lost})
    kept = {uuid: replace(one, free_since=_free_since(state, one)) for uuid, one in kept.items()}
    lost = {one.job_id for one in kept.values() if not (one.waits or 0 <= state.now - one.free_since <= TARGET_S)}
    needed = {
        one.job_id
        for uuid, one in kept.items()
        if one.waits or not _serves(state, gpus[uuid][1], one, waiting[one.job_id])
    }
    return {uuid: one for uuid, one in kept.items() if one.job_id in needed - lost}


def _free_since(state: State, room: Room) -> float:
    return 0.0 if room.waits else room.free_since or state.now


def _promised(state: State, demand: Demand) -> bool:
    """Is it planned for in quiet hours, too? What is free in another one's room could not be cut before they end."""
    return any(
        not one.guarantee.idle
        and one.served.name == demand.gres_class
        and one.guarantee.account in ("", demand.account)
        for one in state.promises
    )


def _serves(state: State, gpu: Gpu, room: Room, demand: Demand) -> bool:
    """Is what lies in it good for its job as it is? Once that is free there is nothing to cut, and no step to come."""
    able = state.serving.profiles[demand.gres_class]
    there = (one.profile for one in gpu.instances if mask(one.start, one.size) & room.bits)
    return sum(profile in able for profile in there) > len(room.more)


def _event(what: str, gpu: str, target: Target, now: float, why: str) -> Event:
    took_s = max(0.0, now - target.since)
    return Event(
        what=what,
        at=now,
        node=target.node,
        gpu=gpu,
        destroy=target.destroy,
        create=target.create,
        why=why,
        took_s=took_s,
    )


def _hopeless(state: State, node: Here, gpu: Gpu, target: Target) -> str:
    """Why a target can't be reached any more, or nothing."""
    if not follows(state, node.state):
        return "its layout does not follow the queue any more"
    if gpu.uuid in state.failed_gpus:
        return "the step failed"
    if state.paused and gpu.uuid not in state.held_gpus:
        return "re-cutting was paused"
    if abs(state.now - target.since) > TARGET_S:  # the clock may have been set back
        return f"it was not done within {TARGET_S:g} s"
    taken = {*node.state.view.holder, *node.reserved}
    busy = [(i.profile, i.start) for i in gpu.instances if i.uuid in taken or i.foreign]
    if any(placed in busy for placed in target.destroy):
        return "a job has taken what was to go"
    sizes = {profile.name: profile.size for profile in gpu.profiles}
    stays = [i for i in gpu.instances if (i.profile, i.start) not in {*target.destroy, *target.create}]
    if any(mask(i.start, i.size) & mask(start, sizes[name]) for i in stays for name, start in target.create):
        return "the GPU is cut otherwise by now"
    return ""


def follow(state: State, here: Mapping[str, Here], demands: Sequence[Demand], lacking: bool) -> Recuts:
    """What is decided now, on top of what was. `lacking`: a job waits that no idle slice serves."""
    before = state.recuts
    now = replace(before, waiting=(), why="")
    if state.paused:
        return replace(now, lacking_since=0.0, why="re-cutting is paused (vgpu resume)")
    if not any(follows(state, node.state) for node in here.values()):
        return replace(now, targets={}, rooms={}, lacking_since=0.0)
    state = replace(state, recuts=now)
    since = (now.lacking_since or state.now) if lacking else 0.0
    fresh = state.begins or not before.looked_at  # what was kept before this controller started would be lost meanwhile
    if lacking and not fresh and abs(state.now - since) < state.config.planning.batch_window_s:
        return replace(now, lacking_since=since, why="begins in a moment, others may come along (batch_window_s)")
    answer = _answer(state, here, demands, lacking=lacking)
    if answer is None:
        return replace(now, lacking_since=since, waiting=before.waiting, why=before.why)
    question, made = answer
    chosen, left = _targets(state, question, made)
    open_nodes = [name for name, node in here.items() if node.offer is not None]
    targets = harmless(state, open_nodes, chosen)
    if len(targets) < len(chosen):
        left = f"{left or made.why}; later: {len(chosen) - len(targets)}, so that no guarantee lacks meanwhile"
    kept = {uuid: room for uuid, room in now.rooms.items() if uuid not in targets}
    changing = {*now.targets, *targets}
    search = rooms.Search(state=state, here=here, question=question, changing=changing, kept=kept)
    then = replace(state, recuts=replace(now, targets={**now.targets, **targets}))
    new = tuple(_event("planned", uuid, target, state.now, target.why) for uuid, target in targets.items())
    return replace(
        now,
        targets=then.recuts.targets,
        rooms=sparing(then, open_nodes, _rooms(search, made)),
        lacking_since=since,
        looked_at=state.now,
        waiting=_waiting(question, made),
        why=left or made.why,
        vain=None if targets else question.problem,
        events=(*now.events, *new),
    )


def _rooms(search: rooms.Search, made: Plan) -> dict[str, Room]:
    """What is kept already, that of one job more that needs several slices of a node, and that of others."""
    state, kept = search.state, dict(search.kept)
    have = {room.job_id for room in kept.values()}
    full = len(have) >= search.most or any(room.several for room in kept.values())
    asked = ((demand, [search.here[name] for name in sorted(names)]) for demand, names in search.question.nowhere)
    asked = ((demand, here) for demand, here in asked if not state.quiet_min or _promised(state, demand))
    able = ((demand, here) for demand, here in asked if not full and ever_fits(state, here, demand))
    for demand, here in islice(able, BUNDLES_TRIED):
        first = all(demand.rank < other.rank for other, _ in search.heads(made.unserved))
        if found := bundle(state, here, demand, {*search.changing, *kept}, first=first):
            kept |= found
            break
    kept |= replace(search, kept=kept).first(made.unserved)
    return waiting_together({**kept, **replace(search, kept=kept).rooms(made.unserved)})


def _answer(
    state: State, here: Mapping[str, Here], demands: Sequence[Demand], *, lacking: bool
) -> tuple[Question, Plan] | None:
    """The plan: for the promises alone where they lack, whenever it is; else for all. None: asked before, in vain."""
    planning = state.config.planning
    changing = state.recuts.targets.keys() | (state.held_gpus - state.failed_gpus)
    left = max(0, planning.changing_of_pool - len(changing))
    limits = Limits(changing=left, time_s=SOLVE_S)
    if state.promises:
        question = ask(state, here, demands, limits, settled=False)
        only = replace(question.problem, lines=tuple(line for line in question.problem.lines if _for(question, line)))
        if only != state.recuts.vain and (made := plan(only)).steps:
            return replace(question, problem=only), made
    if state.quiet_min:
        return None
    restore = not lacking and not state.recuts.targets
    if restore and abs(state.now - state.recuts.looked_at) < RESTORE_S:
        return None
    question = ask(state, here, demands, replace(limits, restore=restore), settled=True)
    if question.problem == state.recuts.vain:
        return None
    return question, plan(question.problem)


def _for(question: Question, line: Line) -> bool:
    return any(promise.is_for(line) for promise in question.problem.guarantees)


def _targets(state: State, question: Question, made: Plan) -> tuple[dict[str, Target], str]:
    """Which GPUs make the steps, those of nodes where the least changes first; and what was left out, in words."""
    changing: dict[str, int] = {}
    for target in state.recuts.targets.values():
        changing[target.node] = changing.get(target.node, 0) + 1
    most, left = state.config.planning.changing_of_node, 0
    found: dict[str, Target] = {}
    for step in made.steps:
        there = (one for one in question.sights.of(step.state) if one[1].uuid not in found)
        ranked = sorted(there, key=lambda one: (changing.get(one[0], 0), _last(state, one[1]), one[0], one[1].index))
        chosen, why = 0, _why(question, made, step)
        for name, gpu in ranked:
            if chosen < step.gpus and changing.get(name, 0) < most:
                found[gpu.uuid] = Target(node=name, destroy=step.destroy, create=step.create, why=why, since=state.now)
                changing[name] = changing.get(name, 0) + 1
                chosen += 1
        left += step.gpus - chosen
    return found, f"{made.why}; later: {left}, since a node changes {most} at once" if left else ""


def _why(question: Question, made: Plan, step: Step) -> str:
    """The step's reason, with the first jobs that what it creates may serve."""
    new, where = {name for name, _ in step.create}, (step.state.place, step.state.model)
    lines = [one.want.line for one in made.served if one.profile in new and (one.place, one.model) == where]
    jobs = dict.fromkeys(demand.job_id for line in lines if line for demand in question.jobs.get(line, ()))
    named = ", ".join(f"job {job_id}" for job_id in list(jobs)[:JOBS_NAMED])
    return f"{step.why}; first {named}" if named else step.why


def _last(state: State, gpu: Gpu) -> float:
    return state.recuts.changed_at.get(gpu.uuid, 0.0)


def _waiting(question: Question, made: Plan) -> tuple[Waiting, ...]:
    found = []
    for unserved in made.unserved:
        if (line := unserved.want.line) is not None:
            jobs = tuple(demand.job_id for demand in question.jobs.get(line, ()))[:JOBS_TOLD]
            found.append(Waiting(jobs=jobs, why=unserved.why))
    return tuple(found)
