"""Scoreboard rows 4 and 5b: jobs that come over time, on a clock that is counted.

Row 4: four mixes at 1.2 times what 100 GPUs can do. With a queue, as Slurm has one, and without (a job that finds no
place is lost), against what is cut greedily, re-flashed as a whole, or fixed. Ours sees what came and what waits, and
no more. Row 5b: small and big jobs in turn, six hours each, against the best fixed layouts in hindsight; and a steady
mix. A job takes as long on a larger slice as on the one that it asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from benchmarks.mix import full_layouts, mix
from benchmarks.policies import (
    Fixed,
    Follow,
    Planned,
    Reflashing,
    best_fit,
    first_fit,
    least_fragmenting,
    worst_fit,
)
from benchmarks.row import Row, percentile
from benchmarks.simulation import (
    COMPUTE,
    PROFILES,
    SHAPES,
    Gpu,
    Job,
    Outcome,
    Policy,
    Run,
    Simulation,
    rates_for,
    stream,
)
from slurm_plugin.mig.layouts import counts_of
from slurm_plugin.planner.highs import Highs, Matrix

GPUS, MEAN_S, TICK_S = 100, 3_600.0, 600.0
SPAN_S, WARM = 20 * MEAN_S, 0.2
LOSS_SPAN_S = 80 * MEAN_S
SEEDS = (1, 2, 3)
LOADS = (1.2, 1.0, 0.85)
MIXES = {  # how often each of PROFILES is asked for
    "uniform": (1.0, 1.0, 1.0, 1.0, 1.0),
    "mostly small": (5.0, 3.0, 1.5, 0.3, 0.2),
    "mostly big": (1.0, 1.0, 1.5, 2.0, 3.0),
    "openb": (0.004, 0.038, 0.052, 0.131, 0.775),  # the openb trace's GPU requests, each rounded up to a slice
}
MISSED_BOUND_PERCENT = 5.0  # of the fluid bound
AHEAD_PERCENT = 0.5  # of the least fragmenting, where jobs are lost
FLIP_GPUS, FLIP_MEAN_S, FLIP_S, FLIPS = 32, 1_800.0, 6 * 3_600.0, 6
SMALL, BIG = (6.0, 3.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 1.0, 4.0)
FLIP_BOUND, STEADY_BOUND = 0.84, 1.0

Make = Callable[[Sequence[Gpu]], Policy]


def measure() -> Iterator[Row]:
    for name in MIXES:
        for load in LOADS:
            yield _queued(name, load)
    for name in MIXES:
        yield _lossy(name)
    for load in (0.85, 1.0):
        yield _against_fixed(f"small and big in turn, load {load}", _turns(load), FLIP_BOUND)
    for load in (0.6, 0.85, 1.0):
        rates = rates_for(MIXES["uniform"], load, FLIP_GPUS, FLIP_MEAN_S)
        jobs = stream(SEEDS[0], rates, FLIP_MEAN_S, FLIPS * FLIP_S)
        yield _against_fixed(f"a steady mix, load {load}", jobs, STEADY_BOUND)


def simulate(make: Make, jobs: Sequence[Job], run: Run) -> Outcome:
    gpus = [Gpu() for _ in range(run.gpus)]
    return Simulation(run, gpus, make(gpus)).outcome(jobs)


def policies(rates: dict[str, float], mean_s: float, gpus: int) -> dict[str, Make]:
    """All that are compared. What is fixed knows the load in hindsight, ours does not."""
    loads = {name: rate * mean_s for name, rate in rates.items()}
    even = dict.fromkeys(PROFILES, gpus / len(PROFILES))
    return {
        "first fit": first_fit,
        "worst fit": worst_fit,
        "best fit": best_fit,
        "least fragmenting": lambda g: least_fragmenting(g, rates),
        "re-flash": Reflashing,
        "fixed mix": lambda g: Fixed(g, [s.layout for s in mix(SHAPES, loads, gpus) or () for _ in range(s.gpus)]),
        "ours": lambda g: Planned(g, even, Follow(mean_s, TICK_S)),
    }


def fixed_layouts() -> dict[str, Make]:
    """The same layout on every GPU, each multiset once."""
    return {
        " + ".join(f"{count}x{name}" for name, count in counts_of(layout).items()): _fixed(layout)
        for layout in full_layouts(SHAPES, PROFILES)
    }


def _fixed(layout: tuple[tuple[str, int], ...]) -> Make:
    return lambda g: Fixed(g, [layout] * len(g))


def fluid(loads: dict[str, float], gpus: int) -> float:
    """The most compute that could be in use on average, whatever is done, as a share of all."""
    matrix = Matrix()
    for layout in full_layouts(SHAPES, PROFILES):
        counts = counts_of(layout)
        matrix.add([*((nth, -counts.get(name, 0)) for nth, name in enumerate(PROFILES)), (len(PROFILES), 1)], 0, gpus)
    for nth, name in enumerate(PROFILES):
        matrix.add([(nth, 1)], float(COMPUTE[name]), loads[name])
    found = Highs(matrix.columns(), [0.0] * len(PROFILES) + [float(gpus)], 10.0).run([matrix.cost])
    assert found is not None
    return found.reached[0] / (7 * gpus)


def _queued(name: str, load: float) -> Row:
    rates = rates_for(MIXES[name], load, GPUS, MEAN_S)
    jobs = stream(SEEDS[0], rates, MEAN_S, SPAN_S)
    run = Run(gpus=GPUS, tick_s=TICK_S, warm_s=WARM * SPAN_S, until_s=SPAN_S)
    bound = fluid({k: v * MEAN_S for k, v in rates.items()}, GPUS)
    found = {who: simulate(make, jobs, run) for who, make in policies(rates, MEAN_S, GPUS).items()}
    fixed = [simulate(make, jobs, run) for make in fixed_layouts().values()]
    beside: dict[str, float | str] = {who: _told(one, bound) for who, one in found.items()}
    beside["best single fixed layout"] = _told(max(fixed, key=lambda one: one.utilisation), bound)
    return Row(
        name=f"queue, {name}, load {load:g}, missed of the bound",
        value=100 * max(0.0, 1 - found["ours"].utilisation / bound),
        unit="%",
        bound=MISSED_BOUND_PERCENT if load > 1 else None,
        beside=beside,
    )


def _told(one: Outcome, bound: float) -> str:
    waits = one.waits or [0.0]
    return (
        f"{100 * one.utilisation / bound:.1f}% served {sum(one.served.values())} ({one.served[PROFILES[-1]]} whole)"
        f" wait {fmean(waits):.0f}s p99 {percentile(waits, 0.99):.0f}s destroyed {one.destroyed}"
        f" stranded {100 * one.stranded:.1f}%"
    )


def _lossy(name: str) -> Row:
    """Means of some seeds, in % of the fluid bound. No job moves, none waits."""
    rates = rates_for(MIXES[name], 1.2, GPUS, MEAN_S)
    loads = {k: v * MEAN_S for k, v in rates.items()}
    bound = fluid(loads, GPUS)
    run = Run(gpus=GPUS, patient=False, warm_s=0.15 * LOSS_SPAN_S, until_s=LOSS_SPAN_S)
    shares: dict[str, float] = {}
    for who, make in {**policies(rates, MEAN_S, GPUS), "ours": lambda g: Planned(g, loads)}.items():
        each = [simulate(make, stream(seed, rates, MEAN_S, LOSS_SPAN_S), run).utilisation for seed in SEEDS]
        shares[who] = round(100 * fmean(each) / bound, 2)
    return Row(
        name=f"no queue, {name}, load 1.2, short of the aim",
        value=shares["least fragmenting"] + AHEAD_PERCENT - shares["ours"],
        unit="points",
        bound=0.0,
        beside={f"{who} %": share for who, share in shares.items()},
    )


def _turns(load: float) -> list[Job]:
    jobs: list[Job] = []
    for turn in range(FLIPS):
        rates = rates_for((SMALL, BIG)[turn % 2], load, FLIP_GPUS, FLIP_MEAN_S)
        some = {name: rate for name, rate in rates.items() if rate}
        jobs += stream(SEEDS[0] + turn, some, FLIP_MEAN_S, (turn + 1) * FLIP_S, turn * FLIP_S)
    return jobs


def _against_fixed(name: str, jobs: list[Job], bound: float) -> Row:
    """Mean completion time against the best that is fixed, single layouts and the mix planned for the whole load."""
    rates = {p: sum(job.profile == p for job in jobs) / (FLIPS * FLIP_S) for p in PROFILES}
    run = Run(gpus=FLIP_GPUS, tick_s=TICK_S)
    known = policies(rates, FLIP_MEAN_S, FLIP_GPUS)
    found = {who: simulate(make, jobs, run) for who, make in known.items() if who != "worst fit"}
    able = {who: make for who, make in fixed_layouts().items() if who == f"1x{PROFILES[-1]}"}  # others lack the largest
    fixed = [found["fixed mix"], *(simulate(make, jobs, run) for make in able.values())]
    best = min(one.mean_completion for one in fixed if len(one.completions) == len(jobs))
    return Row(
        name=f"completion, {name}, against fixed",
        value=found["ours"].mean_completion / best,
        unit="x",
        bound=bound,
        beside={
            who: f"{one.mean_completion:.0f}s wait p99 {percentile(one.waits, 0.99):.0f}s makespan {one.makespan:.0f}s"
            for who, one in found.items()
        },
    )
