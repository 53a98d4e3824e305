"""Scoreboard row 2: a plan for 8 to 100,000 GPUs in mixed states, and a single decision.

States are full layouts of the five plain profiles, each instance busy with a chance of 0.6; as much waits as 40 % of
the GPUs' compute. In each round a thousandth of the GPUs, and at least one, have come into another state. The round
counts those anew, asks and plans, as a pass of the controller does; its processor time is told. Beside it: what
counting all GPUs anew would add, the same program with a row for every GPU, the simple answer, and the bound of the
linear program.
"""

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.controller_pass import gpu_of
from benchmarks.pool_files import NODES
from benchmarks.row import Row, percentile
from benchmarks.stock import Cell, Stock
from slurm_plugin.controller.look import Here
from slurm_plugin.controller.question import ask
from slurm_plugin.controller.recuts import Recuts
from slurm_plugin.controller.state import NodeState, NodeView, Serving, State
from slurm_plugin.controller.wants import Demand, OfferNode
from slurm_plugin.mig.geometry import Layout, Shapes, mask
from slurm_plugin.mig.products import product_named
from slurm_plugin.planner.census import Census
from slurm_plugin.planner.columns import frame_of, packings
from slurm_plugin.planner.greedy import greedy
from slurm_plugin.planner.highs import Highs
from slurm_plugin.planner.market import Market, market
from slurm_plugin.planner.plan import plan, score
from slurm_plugin.planner.problem import GpuState, Limits, Line, Problem, wants
from slurm_plugin.planner.program import build, goals_of
from slurm_plugin.planning import Follow, Planning
from slurm_plugin.pool import NodeGroup, PoolConfig

SIZES = (8, 64, 512, 6_212, 100_000)
ROUNDS, DRAWS = 12, 9  # rounds of each of so many drawn pools
NODE_GPUS, CHANGED = 8, 0.001  # GPUs of a node; the share of all that changes between two rounds
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
BUSY, ASKED = 0.6, 0.4
PEER_S, PEER_GPUS = 60.0, 6_212
DECISIONS, DECIDED_GPUS = 20_000, 100_000
PLAN_BOUND_MS, GROWTH_BOUND, GAP_BOUND_PERCENT, DECISION_BOUND_US, PEER_BOUND = 50.0, 4.0, 0.1, 20.0, 0.01


def measure() -> Iterator[Row]:
    shapes = {name: product_named("a100-40gb").profiles[name] for name in PROFILES}
    medians: dict[int, float] = {}
    worst_gap = 0.0
    for size in SIZES:
        found = _plans(shapes, size)
        medians[size] = percentile(found.took_ms, 0.5)
        worst_gap = max(worst_gap, found.gap)
        yield Row(
            name=f"plan, {size} GPUs, p99",
            value=percentile(found.took_ms, 0.99),
            unit="ms",
            bound=PLAN_BOUND_MS if size == SIZES[-1] else None,
            beside={
                "p50_ms": round(medians[size], 2),
                "wall_p50_ms": round(percentile(found.wall_ms, 0.5), 2),
                "wall_p99_ms": round(percentile(found.wall_ms, 0.99), 2),
                "first_ms": round(found.first_ms, 1),
                "counting_all_ms": round(found.counting_ms, 2),
                "gap_to_lp_percent": round(100 * found.gap, 4),
                "simple_answer_serves": round(found.simple, 4),
            },
        )
    growth = medians[SIZES[-1]] / medians[SIZES[0]]
    yield Row(name="plan, 100,000 GPUs against 8", value=growth, unit="x", bound=GROWTH_BOUND)
    yield Row(name="plan, worst gap to the LP bound", value=100 * worst_gap, unit="%", bound=GAP_BOUND_PERCENT)
    yield _against_a_row_a_gpu(shapes, medians[PEER_GPUS])
    yield _decisions(shapes)
    yield _questions()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    took_ms: list[float]  # of the processor, so that a busy neighbour does not matter
    wall_ms: list[float]
    first_ms: float  # with no state known yet
    counting_ms: float  # what it takes to count all GPUs
    gap: float  # the worst
    simple: float  # the least share of what ours serves that the simple answer does


def _plans(shapes: Shapes, size: int) -> _Round:
    took: list[float] = []
    walls: list[float] = []
    counting: list[float] = []
    gap, simple, first = 0.0, 1.0, 0.0
    for seed in range(DRAWS):
        gpus, rng = drawn(shapes, size, seed), random.Random(seed)
        changed = dict(_nodes(gpus, range(size)))
        census = Census()
        for nth in range(ROUNDS + 1):
            start, wall = time.process_time(), time.perf_counter()
            for name, states in changed.items():
                census.put(name, states)
            problem = Problem(models={"a100": shapes}, states=census.states(), lines=_lines(shapes, size))
            found = plan(problem)
            spent = 1000 * (time.process_time() - start)
            if nth:
                took.append(spent)
                walls.append(1000 * (time.perf_counter() - wall))
            first = first or spent
            start = time.process_time()
            counted(gpus)
            counting.append(1000 * (time.process_time() - start))
            which = rng.sample(range(size), max(1, round(CHANGED * size)))
            for at, state in zip(which, drawn(shapes, len(which), rng.random()), strict=True):
                gpus[at] = state
            changed = dict(_nodes(gpus, which))
        asked = market(problem, wants(problem))
        served = sum(one.want.value * one.count for one in found.served)
        bound = _bound(asked)
        gap = max(gap, (bound - served) / bound)
        simple = min(simple, score(asked, greedy(asked))[0] / max(1, served))
    return _Round(
        took_ms=took,
        wall_ms=walls,
        first_ms=first,
        counting_ms=percentile(counting, 0.5),
        gap=gap,
        simple=simple,
    )


def _nodes(gpus: list[GpuState], which: Iterable[int]) -> Iterator[tuple[str, tuple[GpuState, ...]]]:
    """The nodes of these GPUs, each with what all of its GPUs hold."""
    for nth in {at // NODE_GPUS for at in which}:
        yield f"n{nth}", tuple(gpus[NODE_GPUS * nth : NODE_GPUS * (nth + 1)])


def drawn(shapes: Shapes, size: int, seed: float) -> list[GpuState]:
    """Equal states are one object, as the controller makes them."""
    rng = random.Random(seed)
    frame = frame_of(shapes)
    layouts = packings(frame.axis, mask(0, frame.slices), frame.limit)
    gpus = []
    for _ in range(size):
        layout = rng.choice(layouts)
        fixed = tuple(one for one in layout if rng.random() < BUSY)
        gpus.append(_state(fixed, tuple(one for one in layout if one not in fixed)))
    return gpus


@cache
def _state(fixed: Layout, idle: Layout) -> GpuState:
    return GpuState(model="a100", fixed=fixed, idle=idle)


def counted(gpus: Sequence[GpuState]) -> dict[GpuState, int]:
    """How many GPUs are in each state. Fast where equal states are mostly one object."""
    objects = dict(zip(map(id, gpus), gpus, strict=True))
    counts: dict[GpuState, int] = {}
    for nth, count in Counter(map(id, gpus)).items():
        counts[objects[nth]] = counts.get(objects[nth], 0) + count
    return counts


def _lines(shapes: Shapes, size: int) -> tuple[Line, ...]:
    compute = sum(shape.compute_slices for shape in shapes.values())
    count = max(1, round(ASKED * size * 7 / compute))
    return tuple(Line(name=name, profiles=(name,), count=count) for name in shapes)


def _bound(asked: Market) -> float:
    found = Highs(*build(asked), PEER_S).run(goals_of(asked))
    assert found is not None
    return sum(found.reached)


def _against_a_row_a_gpu(shapes: Shapes, ours_ms: float) -> Row:
    """The same program with every GPU a row of its own and all integers, given a minute."""
    problem = Problem(
        models={"a100": shapes}, states=counted(drawn(shapes, PEER_GPUS, 0)), lines=_lines(shapes, PEER_GPUS)
    )
    start = time.perf_counter()
    asked = market(problem, wants(problem))
    rows = tuple(kind for kind, gpus in zip(asked.kinds, asked.gpus, strict=True) for _ in range(gpus))
    asked = replace(asked, kinds=rows, gpus=(1,) * len(rows))
    changes = sum(len(kind.changes) for kind in rows)
    solver = Highs(*build(asked), PEER_S)
    solver.restrict([0.0] * changes, [1.0] * changes, changes)
    found = solver.run(goals_of(asked))
    took_ms = 1000 * (time.perf_counter() - start)
    return Row(
        name=f"plan, {PEER_GPUS} GPUs, against a row a GPU",
        value=ours_ms / took_ms,
        unit="x",
        bound=PEER_BOUND,
        beside={"row_a_gpu_s": round(took_ms / 1000, 2), "ended": "yes" if found and not found.cut_short else "no"},
    )


def _decisions(shapes: Shapes) -> Row:
    """A job comes, is placed, and another one ends: what the choice and the bookkeeping cost, once states are known."""
    stock = Stock(shapes, PROFILES)
    gpus = drawn(shapes, DECIDED_GPUS, 1)
    cells = [stock.cell(state.fixed, state.idle) for state in gpus]
    for cell in cells:
        stock.add(cell)
    rng = random.Random(2)
    took: list[float] = []
    for nth in range(2 * DECISIONS):
        name = rng.choice(PROFILES)
        start = time.perf_counter()
        found = stock.best(name)
        after: Cell | None = stock.start(*found) if found else None
        spent = 1e6 * (time.perf_counter() - start)
        if nth >= DECISIONS:
            took.append(spent)
        if found and after:
            stock.end(after, found[1].placed)
    return Row(
        name=f"one decision, {DECIDED_GPUS} GPUs, p50",
        value=percentile(took, 0.5),
        unit="us",
        bound=DECISION_BOUND_US,
        beside={"p99_us": round(percentile(took, 0.99), 1)},
    )


def _questions() -> Row:
    """What a pass of the controller does before it plans, in the whole pool and in one of which a node has changed."""
    product = product_named("h100-80gb")
    group = NodeGroup(hosts=tuple(f"n{nth}" for nth in range(NODES)))
    config = PoolConfig(pool="bench", partitions=("gpu",), groups=(group,), planning=Planning(follow=Follow.QUEUE))
    views = {
        name: NodeView.of(tuple(gpu_of(nth, at, product) for at in range(NODE_GPUS)), (), group)
        for nth, name in enumerate(group.hosts)
    }
    demand = Demand(job_id=1, priority=1, gres_class="7g.80gb", count=1, partitions=("gpu",))
    serving = Serving(profiles={"7g.80gb": ("7g.80gb",)})
    recuts, took = Recuts(), list[float]()
    for nth in range(ROUNDS + 1):
        name = group.hosts[nth]
        views[name] = replace(views[name])  # as if its agent had told something
        nodes = {name: NodeState(name=name, group=group, view=view) for name, view in views.items()}
        state = State(config=config, serving=serving, nodes=nodes, recuts=recuts)
        here = {
            name: Here(state=node, offer=OfferNode(name=name, partitions=("gpu",)), reserved={})
            for name, node in nodes.items()
        }
        start = time.process_time()
        ask(state, here, [demand], Limits(), settled=True)
        took.append(1000 * (time.process_time() - start))
    return Row(
        name=f"the question, {NODES * NODE_GPUS} GPUs, one node changed, p50",
        value=percentile(took[1:], 0.5),
        unit="ms",
        beside={"all_nodes_changed_ms": round(took[0], 1)},
    )
