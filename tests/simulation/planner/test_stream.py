"""A stream of 1,000 jobs whose mix changes three times: sooner done than with anything fixed, and no promise broken."""

import pytest

from benchmarks.mix import full_layouts, mix
from benchmarks.policies import Fixed
from benchmarks.simulation import PROFILES, SHAPES, Gpu, Job, Outcome, Run, Simulation, rates_for, stream
from slurm_plugin.mig.geometry import Layout
from tests.simulation.planner.planning import Replanning
from tests.simulation.planner.static import Asked, Bound, Counts, every_static, told

GPUS, MEAN_S, JOBS, TICK_S = 8, 900.0, 1_000, 30.0
PHASES = ((6.0, 2.0, 0.0, 0.0, 0.0), (0.0, 0.0, 1.0, 1.0, 2.0), (3.0, 3.0, 1.0, 0.0, 0.0), (0.0, 1.0, 2.0, 2.0, 1.0))
RESERVE = {"1g.5gb": 2}


def jobs_of(seed: int) -> list[Job]:
    """A quarter of the jobs a phase, each phase a little more than the GPUs can do."""
    jobs: list[Job] = []
    at = 0.0
    for nth, phase in enumerate(PHASES):
        rates = {name: rate for name, rate in rates_for(phase, 1.1, GPUS, MEAN_S).items() if rate}
        some = stream(seed + nth, rates, MEAN_S, at + 10 * JOBS * MEAN_S / GPUS, at)[: JOBS // len(PHASES)]
        jobs += some
        at = some[-1].at
    return jobs


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 8))])
def test_it_ends_sooner_than_with_any_fixed_layout_and_keeps_its_guarantee(seed: int) -> None:
    """Every combination of layouts: most can't end sooner whatever is done, and the rest is tried."""
    jobs = jobs_of(seed)
    assert len(jobs) == JOBS
    gpus = [Gpu() for _ in range(GPUS)]
    ours = Replanning(gpus, RESERVE)
    found = Simulation(Run(gpus=GPUS, tick_s=TICK_S), gpus, ours).outcome(jobs)
    assert sum(found.served.values()) == JOBS
    assert ours.history
    assert [at for at, idle in ours.history if any(idle[name] < count for name, count in RESERVE.items())] == []
    bound = Bound([Asked(at=job.at, profile=job.profile, lasts=job.lasts) for job in jobs], PROFILES)
    every = every_static(SHAPES, PROFILES, GPUS)
    assert len(every) > 1_000
    near = [counts for counts in every if bound.end(counts) <= found.makespan]
    for counts in near:
        fixed = static(jobs, slices_of(counts))
        assert found.makespan < fixed.makespan, (seed, told(PROFILES, counts))
        assert found.mean_completion < fixed.mean_completion, (seed, told(PROFILES, counts))


def test_the_bound_of_a_fixed_layout_is_one() -> None:
    """No run on a fixed layout ends sooner; and the mix that is best for the whole load comes near to it."""
    jobs = jobs_of(1)
    bound = Bound([Asked(at=job.at, profile=job.profile, lasts=job.lasts) for job in jobs], PROFILES)
    loads = {p: sum(job.lasts for job in jobs if job.profile == p) / jobs[-1].at for p in PROFILES}
    known = [share.layout for share in mix(SHAPES, loads, GPUS) or () for _ in range(share.gpus)]
    for layouts in (known, *([layout] * GPUS for layout in full_layouts(SHAPES, PROFILES))):
        slices = [name for layout in layouts for name in (placed[0] for placed in layout)]
        end = bound.end(tuple(slices.count(name) for name in PROFILES))
        fixed = static(jobs, layouts)
        ended = sum(fixed.served.values()) == JOBS
        assert ended == (end < float("inf"))
        assert not ended or end <= fixed.makespan
        assert layouts is not known or fixed.makespan < 1.2 * end


def static(jobs: list[Job], layouts: list[Layout]) -> Outcome:
    gpus = [Gpu() for _ in layouts]
    return Simulation(Run(gpus=len(gpus), tick_s=TICK_S), gpus, Fixed(gpus, layouts)).outcome(jobs)


def slices_of(counts: Counts) -> list[Layout]:
    """As if each were alone on a GPU: a layout that stays is no more than its slices."""
    starts = {name: shape.starts[0] for name, shape in SHAPES.items()}
    return [((name, starts[name]),) for name, count in zip(PROFILES, counts, strict=True) for _ in range(count)]


def test_equal_seeds_give_equal_histories() -> None:
    histories = []
    for _ in range(2):
        gpus = [Gpu() for _ in range(GPUS)]
        policy = Replanning(gpus, RESERVE)
        found = Simulation(Run(gpus=GPUS, tick_s=TICK_S), gpus, policy).outcome(jobs_of(7)[:300])
        histories.append((found, policy.plans, policy.steps, policy.destroyed))
    assert histories[0] == histories[1]
