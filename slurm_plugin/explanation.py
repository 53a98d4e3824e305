"""PURE: the answer to "why does my job wait, and what would start it?", as a value and as a few lines of text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slurm_plugin.slurm.hostlist import compress

LINES = 12  # of the text, at the most
LISTED = 6  # jobs, classes, hosts or layouts named in one line

Clock = Callable[[float], str]  # Unix seconds -> how the reader's clock shows them


class Why(StrEnum):
    """The one thing that keeps a job from running."""

    RUNS = "runs"  # nothing does
    STARTING = "starting"  # what it needs is offered to it: Slurm starts it when it looks at it next
    SLURM = "slurm"  # Slurm would not start it, whatever is idle
    PASSED_OVER = "passed_over"  # what it needs was offered to it, and Slurm did not start it
    BEHIND = "behind"  # what it needs is idle, and jobs before it want that too
    CHANGE = "change"  # a GPU is being cut for it, or will be
    ROOM = "room"  # GPUs have room for it, and have to be cut anew first
    BUSY = "busy"  # jobs hold what would serve it
    NO_NODE = "no_node"  # no node where it may run takes jobs now
    NOWHERE = "nowhere"  # the pool has nothing that would serve it


_FOR_ROOM = (Why.BUSY, Why.CHANGE, Why.ROOM, Why.NOWHERE)  # the end of other jobs would help


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A job that has to end."""

    job_id: int  # 0: another user's, which is not to be known
    node: str
    gpus: tuple[int, ...]  # NVML indices
    ends_at: int  # by its time limit, Unix seconds; 0: it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """A class of which some would start now."""

    gres_class: str
    idle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """A layout that has slices for the job."""

    layout: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of a GPU, for this job or so that it can run."""

    node: str
    gpu: int  # NVML index
    creates: tuple[str, ...]  # profiles that would serve the job
    why: str
    at: float = 0.0  # Unix seconds; 0: as soon as it can


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    job_id: int
    uid: int
    gres_class: str
    count: int  # slices a node
    nodes: int
    tasks: int  # elements of its array that may start now
    priority: int
    submitted_at: int  # Unix seconds; 0: not known
    why: Why
    reason: str  # Slurm's
    limit: str = ""  # what Slurm's reason means
    idle: int = 0  # slices that serve it, where it may run, and that are offered
    withheld: int = 0  # further ones that are idle, and held back: for a guarantee, a job that gathers, or a re-cut
    kept: int = 0  # of these, for guarantees
    gathered: int = 0  # of these, for this very job, until it has all it needs
    placeable: int = 0  # slices for it that GPUs have room for beside what jobs hold, idle ones counted
    ahead: int = 0  # waiting jobs that come first and could take the same slices
    strikes: int = 0  # how often what it needs was offered in vain
    back_at: float = 0.0  # until then it is passed over
    blockers: tuple[Blocker, ...] = ()  # end these, and it can start: of all such sets the one that is free first
    holders: int = 0  # jobs that hold what could serve it
    free_at: int = 0  # when the last of the blockers ends at the latest; 0: not known
    change: Change | None = None  # the next one that gives it something
    instead: tuple[Instead, ...] = ()
    serves: tuple[Serves, ...] = ()  # layouts of pool.yaml
    profiles: tuple[str, ...] = ()  # what serves its class, best first
    closed: tuple[str, ...] = ()  # nodes where it may run that take no jobs now
    planner: str = ""  # why no GPU is re-cut for it now, or what is being done; empty where layouts stay
    again_at: float = 0.0  # until then no GPU with room for it is re-cut once more; 0: that is not what it waits for


def lines(one: Explanation, clock: Clock, who: str, name: str = "") -> list[str]:
    """The whole text. `name`: the job's, as it was asked for. Bound: LINES."""
    name = name or str(one.job_id)
    if one.why is Why.RUNS:
        return [f"job {name} of {who} runs: `vgpu show job {name}` lists its slices"]
    asks = f"vgpu:{one.gres_class}:{one.count}" + (f" on each of {one.nodes} nodes" if one.nodes > 1 else "")
    elements = f", {one.tasks} elements" if one.tasks > 1 else ""
    since = f", since {clock(one.submitted_at)}" if one.submitted_at else ""
    said = [
        f"job {name} of {who} asks for {asks}{elements}{since}, priority {one.priority}",
        _verdict(one, clock),
    ]
    if one.profiles:
        anew = f"{one.placeable} would fit beside what jobs hold, were the GPUs cut anew"
        said.append(f"slices for it: {one.idle} idle{_held_back(one)}; {anew}")
    return [*said, *_details(one, clock)][:LINES]


def _verdict(one: Explanation, clock: Clock) -> str:
    match one.why:
        case Why.STARTING:
            return f"what it needs is offered to it: Slurm starts it when it looks next (its reason now: {one.reason})"
        case Why.SLURM:
            return f"Slurm does not let it start: {one.limit}"
        case Why.PASSED_OVER:
            but = "(a limit, CPUs, memory, features, or a node that Slurm keeps for a job before it)"
            return f"{_in_vain(one.strikes)} {but}: others come first until {clock(one.back_at)}"
        case Why.BEHIND:
            others = f"wanted by {_first(one.ahead)} too" if one.ahead else ""
            held_back = "held back for others" if one.withheld > one.gathered else ""
            return f"slices for it are idle, and {' or '.join(filter(None, (others, held_back))) or 'not offered yet'}"
        case Why.CHANGE:
            return "a GPU is to be cut for it"
        case Why.ROOM:
            return "there is room for it on GPUs that have to be cut anew first"
        case Why.BUSY:
            return f"what could serve it is held by {_jobs(one.holders)}"
        case Why.NO_NODE:
            return f"no node where it may run takes jobs now{_named(': ', _hosts(one.closed))}"
        case _:
            return "no slice of the pool as it is cut can serve it where it may run"


def _details(one: Explanation, clock: Clock) -> Iterator[str]:
    if one.blockers and one.why in _FOR_ROOM:
        ends = ", ".join(_blocker(job, clock) for job in one.blockers[:LISTED]) + _more(one.blockers)
        at = f", at the latest at {clock(one.free_at)}" if one.free_at else ""
        yield f"it can start when {'this ends' if len(one.blockers) == 1 else 'these end'}{at}: {ends}"
        if one.planner and one.change is None:
            yield "nothing of that is kept for it: jobs that come before it, or that start sooner, may take it"
    if one.ahead and one.why in _FOR_ROOM:
        yield f"{_first(one.ahead)} could take the same slices"
    if one.change:
        at = f" at {clock(one.change.at)}" if one.change.at else ""
        made = ", ".join(one.change.creates)
        yield f"next change{at}: {one.change.node}:{one.change.gpu} gets {made}; {one.change.why}"
    if one.planner and one.why in _FOR_ROOM:
        again = f"; GPUs with room for it stay as they are until {clock(one.again_at)}" if one.again_at else ""
        yield f"re-cutting: {one.planner}{again}"
    if one.closed and one.why is not Why.NO_NODE:
        yield f"these nodes take no jobs now: {_hosts(one.closed)}"
    if one.why is Why.SLURM:
        return
    if one.instead:
        offers = ", ".join(f"vgpu:{other.gres_class} ({other.idle} idle)" for other in one.instead[:LISTED])
        yield f"would start now instead: {offers}"
    if one.serves:
        known = "; ".join(f"{{{each.layout}}} on {_hosts(each.hosts)}" for each in one.serves[:LISTED])
        yield f"layouts with slices for it: {known}{_more(one.serves)}"
    elif one.profiles and one.why in (Why.BUSY, Why.NOWHERE):
        yield f"no layout of pool.yaml has slices for it; it needs one of {', '.join(one.profiles[:LISTED])}"


def _blocker(job: Blocker, clock: Clock) -> str:
    where = f"{job.node}:{'+'.join(map(str, job.gpus))}"
    who = f"job {job.job_id}" if job.job_id else "another user's"
    return f"{who} on {where} ({f'until {clock(job.ends_at)}' if job.ends_at else 'no time limit'})"


def _in_vain(strikes: int) -> str:
    if not strikes:
        return "another job of its user was offered what it needs, and Slurm did not start that"
    return (
        f"what it needs was offered to it {'once' if strikes == 1 else f'{strikes} times'} and Slurm did not start it"
    )


def _held_back(one: Explanation) -> str:
    """Idle slices that are offered to nobody, and for whom."""
    rest = one.withheld - one.kept - one.gathered
    whom = (
        f"{one.gathered} for it, until it has all it needs" if one.gathered else "",
        f"{one.kept} for guarantees" if one.kept else "",
        f"{rest} for other jobs or a re-cut" if rest > 0 else "",
    )
    return f", {one.withheld} held back ({', '.join(filter(None, whom))})" if one.withheld else ""


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _first(count: int) -> str:
    return "1 job that comes first" if count == 1 else f"{count} jobs that come first"


def _hosts(names: Sequence[str]) -> str:
    return compress(names[: LISTED * 10]) if names else ""


def _named(before: str, text: str) -> str:
    return before + text if text else ""


def _more(things: Sequence[object]) -> str:
    return f" and {len(things) - LISTED} more" if len(things) > LISTED else ""
