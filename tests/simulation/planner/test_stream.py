"""A stream of 1,000 jobs whose mix changes three times: sooner done than with anything fixed, and no promise broken."""

import pytest

from benchmarks.online import Make, fixed_layouts
from benchmarks.policies import Fixed
from benchmarks.simulation import PROFILES, SHAPES, Gpu, Job, Run, Simulation, rates_for, stream
from slurm_plugin.planner.mix import mix
from tests.simulation.planner.planning import Replanning

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
    jobs = jobs_of(seed)
    assert len(jobs) == JOBS
    run = Run(gpus=GPUS, tick_s=TICK_S)
    gpus = [Gpu() for _ in range(GPUS)]
    ours = Replanning(gpus, RESERVE)
    found = Simulation(run, gpus, ours).outcome(jobs)
    assert sum(found.served.values()) == JOBS
    assert not ours.broken
    loads = {p: sum(job.lasts for job in jobs if job.profile == p) / jobs[-1].at for p in PROFILES}
    known = [share.layout for share in mix(SHAPES, loads, GPUS) or () for _ in range(share.gpus)]
    best: dict[str, Make] = {"the best mix, known before": lambda g: Fixed(g, known)}
    for name, make in (fixed_layouts() | best).items():
        gpus = [Gpu() for _ in range(GPUS)]
        fixed = Simulation(run, gpus, make(gpus)).outcome(jobs)
        if sum(fixed.served.values()) == JOBS:  # others have no slice for the largest, and never end
            assert found.makespan < fixed.makespan, (seed, name)
            assert found.mean_completion < fixed.mean_completion, (seed, name)


def test_equal_seeds_give_equal_histories() -> None:
    histories = []
    for _ in range(2):
        gpus = [Gpu() for _ in range(GPUS)]
        policy = Replanning(gpus, RESERVE)
        found = Simulation(Run(gpus=GPUS, tick_s=TICK_S), gpus, policy).outcome(jobs_of(7)[:300])
        histories.append((found, policy.plans, policy.steps, policy.destroyed))
    assert histories[0] == histories[1]
