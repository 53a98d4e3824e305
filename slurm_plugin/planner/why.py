"""The plan in words: why a GPU changes, and why something waits on."""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest

from slurm_plugin.mig.geometry import Layout, Shapes, mask
from slurm_plugin.planner.market import Answer, Market
from slurm_plugin.planner.problem import GpuState, Problem, Want
from slurm_plugin.planner.trim import Move

WAYS_MAX = 3  # ways to make room that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One placement that would serve a want were it not for these instances, on GPUs of this state."""

    state: GpuState
    placed: tuple[str, int]
    behind: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    want: Want
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Reasons:
    """Whom each pool's profiles serve in an answer, looked up for many moves."""

    whom: Mapping[tuple[str, str, str], tuple[str, ...]]  # place, model, profile -> labels
    words: dict[tuple[str, str, tuple[str, ...]], str]  # place, model, what is new -> whom it serves

    @classmethod
    def of(cls, asked: Market, answer: Answer) -> "Reasons":
        whom: dict[tuple[str, str, str], tuple[str, ...]] = {}
        for want, at, profile in sorted(answer.served):
            pool = asked.pools[at]
            key = (pool.place, pool.model, pool.profiles[profile])
            whom[key] = (*whom.get(key, ()), label(asked.wants[want]))
        return cls(whom, {})

    def of_move(self, move: Move) -> str:
        """Why these GPUs change, in one sentence."""
        made = move.made
        key = (move.state.place, move.state.model, made.new)
        if key not in self.words:
            served = (self.whom.get((*key[:2], name), ()) for name in made.new)
            labels = dict.fromkeys(label for some in served for label in some)
            self.words[key] = ", ".join(labels) or "the default"
        return f"{made.comes} for {self.words[key]}" + (f"; {made.goes} idle goes" if made.goes else "")


def label(want: Want) -> str:
    if want.promise is not None:
        return f"the guarantee '{want.promise.name}'"
    assert want.line is not None
    return f"waiting {want.line.name}"


def unserved(problem: Problem, asked: Market, answer: Answer) -> tuple[Unserved, ...]:
    full = asked.changing is not None and sum(map(sum, answer.changed)) >= asked.changing
    found = []
    for nth, want in enumerate(asked.wants):
        lacking = want.count - answer.of_want(nth)
        if lacking:
            found.append(Unserved(want=want, count=lacking, why=_why(problem, asked, nth, full=full)))
    return tuple(found)


def _why(problem: Problem, asked: Market, nth: int, *, full: bool) -> str:
    line = asked.wants[nth].line
    if line is not None and line.bundle and not line.places:
        return "no node that may be re-cut now could have all its slices beside what is in use"
    uses = {(pool, profile) for want, pool, profile, _ in asked.uses if want == nth}
    if not uses:
        return f"no GPU where it may run has {' or '.join(asked.wants[nth].profiles)}"
    gives = any(
        kind.pool == pool and gain[profile] > 0
        for kind in asked.kinds
        for gain, _ in kind.changes
        for pool, profile in uses
    )
    if full and gives:
        return f"at most {asked.changing} GPUs change at once"
    if gives or any(asked.supply[pool][profile] for pool, profile in uses):
        return "what could serve it serves what comes before it"
    if any(not way.behind for way in ways(problem, asked.wants[nth], 1)):
        return "the GPUs that have room for it were re-cut just now (hysteresis_s), or may not be re-cut"
    return "instances in use are in the way on every GPU that could hold it"


def ways(problem: Problem, want: Want, most: int = WAYS_MAX) -> tuple[Way, ...]:
    """Where a want could be served, those placements first that wait for the fewest instances in use."""
    found = [
        Way(state=state, placed=(name, start), behind=behind)
        for state, count in problem.states.items()
        if count and (want.places is None or state.place in want.places)
        for name in want.profiles
        if name in problem.models[state.model]
        for start, behind in in_the_way(problem.models[state.model], state, name)
    ]
    return tuple(nsmallest(most, found, key=_way_order))


def _way_order(way: Way) -> tuple[object, ...]:
    return (len(way.behind), way.placed, way.state.order)


def in_the_way(shapes: Shapes, state: GpuState, name: str) -> list[tuple[int, Layout]]:
    """For every placement of a profile that only jobs can stand in the way of: where, and which instances do."""
    found = []
    for start in shapes[name].starts:
        bits = mask(start, shapes[name].size)
        if not bits & state.blocked:
            behind = tuple(one for one in state.fixed if mask(one[1], shapes[one[0]].size) & bits)
            found.append((start, behind))
    return found
