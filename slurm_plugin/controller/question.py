"""PURE: the pool as the planner sees it: GPUs by state, jobs by what they wait for, and what is promised.

Jobs differ in where they may run. Nodes that are the same to all of them are one *place*; a job that needs several
slices of one node is given a node that can have them, which is then a place of its own.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from slurm_plugin.controller.demand import held
from slurm_plugin.controller.look import Here, bits_of, look
from slurm_plugin.controller.sights import Sights
from slurm_plugin.controller.state import State
from slurm_plugin.controller.wants import Demand, Key, Places, fair
from slurm_plugin.mig.geometry import Shape, Shapes, mask
from slurm_plugin.mig.layouts import media_conflict
from slurm_plugin.mig.products import product_of
from slurm_plugin.planner.problem import GpuState, Guarantee, Limits, Line, Problem
from slurm_plugin.planning import Reach

WHERES_MAX = 64  # sets of nodes that waiting jobs may have; jobs with further ones wait until these are served
SEVERAL_MAX = 8  # jobs that need several slices of a node and are planned for at once
HOPELESS_MAX = 32  # kinds of such jobs that no node could serve, and after which nobody else is looked for
HOPELESS_OF_A_USER = 4  # ... of one user, whose others are looked for when those of all have been
STRICT = 4  # so many runs of jobs that ask for the same are served strictly in turn
TIERS = (4, 16, 64)  # ... and further slices so many together, by their age
AGE_S = 60.0  # ages are told apart by so much: a plan does not differ by a second

_Capacity = Callable[[GpuState, tuple[str, ...]], tuple[int, int, int]]  # of a GPU for a class, see `_capacity`


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    problem: Problem
    sights: Sights  # who is in which state
    jobs: Mapping[Line, Sequence[Demand]]  # whom a line stands for, first first
    nowhere: Sequence[tuple[Demand, frozenset[str]]]  # who needs several slices of a node and finds none, of these


@dataclass(slots=True)
class _Places:
    """Which node is in which place, and which places a job may use."""

    of_node: dict[str, str] = field(default_factory=dict)
    wheres: dict[Key, frozenset[str]] = field(default_factory=dict)  # where -> places
    sets: dict[Key, frozenset[str]] = field(default_factory=dict)  # where -> nodes


def ask(
    state: State, here: Mapping[str, Here], demands: Iterable[Demand], limits: Limits, *, settled: bool
) -> Question:
    """`demands` in the order in which they are to be served. `settled`: GPUs re-cut not long ago stay as they are."""
    wanted = list(demands)
    sights = look(state, here, settled=settled)
    places, homes = _places(state, here, wanted)
    lines, jobs = _lines(state, wanted, places, homes)
    sights.settle(places.of_node)
    states = sights.states()
    problem = Problem(
        models=sights.models(states),
        states=states,
        lines=lines,
        guarantees=() if state.begins else guarantees(state, places.wheres),  # what keeps one is spared all the same
        limits=limits,
    )
    nowhere = [
        (demand, _reached(state, places.sets, demand))
        for demand in wanted
        if homes.get(demand.job_id) == [] and demand.gathers
    ]
    return Question(problem=problem, sights=sights, jobs=jobs, nowhere=nowhere)


def _places(state: State, here: Mapping[str, Here], wanted: Sequence[Demand]) -> tuple[_Places, dict[int, list[str]]]:
    """The places, and the nodes chosen for jobs that need several slices of one."""
    offers = [node.offer for node in here.values() if node.offer is not None]
    sets: dict[Key, frozenset[str]] = {("reach", name): within(here, reach) for name, reach in state.reaches.items()}
    places = Places(offers)
    for demand in fair(wanted, WHERES_MAX)[0]:
        if demand.where not in sets:
            sets[demand.where] = frozenset(offers[nth].name for nth in places.of(demand))
    homes = _all_homes(state, sets, wanted)
    for job_id, nodes in homes.items():
        for nth, name in enumerate(nodes):
            sets["home", job_id, nth] = frozenset({name})
    found = _Places(sets=sets)
    alone = {name for nodes in homes.values() for name in nodes}
    for offer in offers:
        signature = ".".join(str(nth) for nth, names in enumerate(sets.values()) if offer.name in names)
        found.of_node[offer.name] = f"{signature}@{offer.name}" if offer.name in alone else signature
    found.wheres = {key: frozenset(found.of_node[name] for name in names) for key, names in sets.items()}
    return found, homes


def within(here: Mapping[str, Here], reach: Reach) -> frozenset[str]:
    """The nodes where slices of a class may be cut."""
    found = set()
    for name, node in here.items():
        products = {product.key for gpu in node.state.view.gpus if (product := product_of(gpu.name))}
        fits = not reach.products or not products.isdisjoint(reach.products)
        if node.offer is not None and fits and (not reach.hosts or name in reach.hosts):
            found.add(name)
    return frozenset(found)


def _reached(state: State, sets: Mapping[Key, frozenset[str]], demand: Demand) -> frozenset[str]:
    names = sets[demand.where]
    return names & sets["reach", demand.gres_class] if demand.gres_class in state.reaches else names


def _all_homes(state: State, sets: Mapping[Key, frozenset[str]], wanted: Sequence[Demand]) -> dict[int, list[str]]:
    """For the first jobs that need several slices of a node, those nodes; [] when there are none for it."""
    homes: dict[int, list[str]] = {}
    hopeless: set[Key] = set()
    vain: Counter[int] = Counter()  # of these, each user's
    promised: dict[str, int] = {}
    capacity = cache(partial(_capacity, state.recuts.sights.shapes))  # most GPUs are in the state of another
    later: list[Demand] = []
    for some, share in ((wanted, HOPELESS_OF_A_USER), (later, HOPELESS_MAX)):
        for demand in some:
            if demand.single or demand.where not in sets or demand.key in hopeless:
                continue
            if len(homes) >= SEVERAL_MAX + len(hopeless) or len(hopeless) >= HOPELESS_MAX:
                return homes
            if vain[demand.uid] == share:
                later.append(demand)
                continue
            homes[demand.job_id] = _homes(state, demand, _reached(state, sets, demand), promised, capacity)
            if not homes[demand.job_id]:
                hopeless.add(demand.key)
                vain[demand.uid] += 1
    return homes


def _homes(
    state: State, demand: Demand, names: frozenset[str], promised: dict[str, int], capacity: _Capacity
) -> list[str]:
    """As many nodes as one element of it needs, those first that lack least; none when there are not enough.

    `promised`: memory slices of each node that jobs before it are to have there, to which it adds its own.
    """
    profiles = state.serving.profiles.get(demand.gres_class, ())
    able = []
    for name in sorted(names):
        each = [capacity(one, profiles) for one, _ in state.recuts.sights.nodes[name].seen]
        there, could = sum(one[0] for one in each), sum(one[1] for one in each)
        size = min((one[2] for one in each if one[2]), default=1)
        others = -(-promised.get(name, 0) // size)
        if could - others >= demand.count:
            able.append((max(0, demand.count - max(0, there - others)), name not in demand.wanted_nodes, name, size))
    chosen = sorted(able)[: demand.nodes]
    if len(chosen) < demand.nodes:
        return []
    for *_, name, size in chosen:
        promised[name] = promised.get(name, 0) + size * demand.count
    return [name for _, _, name, _ in chosen]


def _capacity(models: Mapping[str, Shapes], gpu: GpuState, profiles: Sequence[str]) -> tuple[int, int, int]:
    """Slices of a class that are idle on a GPU, how many there could be, and the memory slices of the smallest."""
    shapes = models[gpu.model]
    able = [shapes[name] for name in profiles if name in shapes]
    there = sum(name in profiles for name, _ in gpu.idle)
    could = max([there, *(_packed(shapes, gpu, shape) for shape in able if gpu.open)])
    return there, could, min((shape.size for shape in able), default=0)


def _packed(shapes: Shapes, gpu: GpuState, profile: Shape) -> int:
    """How many of a profile fit beside what is fixed."""
    taken = gpu.blocked | bits_of(shapes, gpu.fixed)
    count = end = 0
    for start in sorted(profile.starts):
        if start >= end and not mask(start, profile.size) & taken:
            count, end = count + 1, start + profile.size
    fixed = [name for name, _ in gpu.fixed]
    while count and media_conflict(shapes, fixed + [profile.name] * count):
        count -= 1
    return count


@dataclass(slots=True)
class _Growing:
    """A line while jobs are put to it: there may be 100,000, in a few lines."""

    line: Line
    count: int = 0
    age_s: float = 0.0
    jobs: list[Demand] = field(default_factory=list)


def _lines(
    state: State, wanted: Sequence[Demand], places: _Places, homes: Mapping[int, Sequence[str]]
) -> tuple[tuple[Line, ...], dict[Line, list[Demand]]]:
    growing: dict[Key, _Growing] = {}
    last, runs, before = None, 0, 0
    for demand in wanted:
        name = demand.gres_class
        account = demand.account if _promised(state, demand) else ""
        age_s = state.now - demand.submitted_at if demand.submitted_at else 0.0
        bundle = "" if demand.single else str(demand.job_id)
        if runs <= STRICT and last != (same := (name, demand.where, account, bundle)):
            last, runs = same, runs + 1
        tier = runs - 1 if runs <= STRICT else STRICT + bisect_right(TIERS, before)
        for allowed, count in _shares(state, demand, places, homes):
            one = growing.get(key := (name, tier, allowed, account, bundle))
            if one is None:
                line = Line(
                    name=name,
                    profiles=state.serving.profiles[name],
                    count=0,
                    tier=tier,
                    places=allowed,
                    account=account,
                    bundle=bundle,
                )
                one = growing[key] = _Growing(line)
            one.count, one.age_s = one.count + count, max(one.age_s, age_s)
            one.jobs.append(demand)
            before += count if runs > STRICT else 0
    whole = {replace(one.line, count=one.count, age_s=one.age_s // AGE_S * AGE_S): one.jobs for one in growing.values()}
    return tuple(whole), whole


def _promised(state: State, demand: Demand) -> bool:
    return any(p.guarantee.account == demand.account and p.served.name == demand.gres_class for p in state.promises)


def _shares(
    state: State, demand: Demand, places: _Places, homes: Mapping[int, Sequence[str]]
) -> list[tuple[frozenset[str], int]]:
    """Where it may have slices, and how many there."""
    if demand.where not in places.wheres:
        return []
    if demand.single:
        allowed = places.wheres[demand.where]
        if demand.gres_class in state.reaches:
            allowed &= places.wheres["reach", demand.gres_class]
        return [(allowed, demand.tasks)]
    chosen = homes.get(demand.job_id)
    if chosen == []:
        return [(frozenset(), demand.count)]
    return [(places.wheres["home", demand.job_id, nth], demand.count) for nth in range(len(chosen or ()))]


def guarantees(state: State, wheres: Mapping[Key, frozenset[str]]) -> tuple[Guarantee, ...]:
    """The pool's promises with what is held of each now."""
    there = held(state) if state.held is None else state.held
    return tuple(
        Guarantee(
            name=promise.guarantee.text,
            gres_class=promise.served.name,
            profiles=promise.served.profiles,
            at_least=promise.guarantee.count,
            held=there.of(promise, state.serving.profiles),
            idle=promise.guarantee.idle,
            account=promise.guarantee.account,
            places=wheres.get(("reach", promise.served.name)),
        )
        for promise in state.promises
    )
