"""A stream whose mix changes three times, as the controller decides.

It is sooner done than on anything fixed, and no guarantee is ever broken, in truth and by the controller's own record.
"""

import pytest

from benchmarks.simulation import stream
from slurm_plugin.mig.products import product_named
from slurm_plugin.planning import Follow, Planning
from tests.simulation.controller.clocked import Clocked
from tests.simulation.planner.static import Asked, Bound, end_of_run, every_static, told
from tests.unit.controller import pools
from tests.unit.controller.test_recut import promise

NAMES = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")  # each is enough for those before it
SHAPES = {name: product_named("h100-80gb").profiles[name] for name in NAMES}
PHASES: tuple[dict[str, float], ...] = (
    {"1g.10gb": 6, "2g.20gb": 2},
    {"3g.40gb": 1, "7g.80gb": 2},
    {"1g.10gb": 3, "2g.20gb": 3, "3g.40gb": 1},
    {"2g.20gb": 1, "3g.40gb": 2, "7g.80gb": 1},
)
MEAN_S, LOAD = 900.0, 1.1
ACCOUNT = "physics"
PLANNING = Planning(follow=Follow.QUEUE, batch_window_s=1.0, hysteresis_s=60.0)


def jobs_of(count: int, gpus: int, seed: int) -> list[Asked]:
    """As many a phase, and each phase asks for a little more than the GPUs can do."""
    jobs: list[Asked] = []
    at = 0.0
    for nth, phase in enumerate(PHASES):
        asked = sum(weight * SHAPES[name].compute_slices for name, weight in phase.items())
        rates = {name: LOAD * 7 * gpus * weight / asked / MEAN_S for name, weight in phase.items()}
        some = stream(seed + nth, rates, MEAN_S, at + count * MEAN_S, at)[: count // len(PHASES)]
        jobs += [Asked(at=job.at, profile=job.profile, lasts=job.lasts) for job in some]
        at = some[-1].at
    return jobs


@pytest.mark.parametrize(
    ("count", "gpus", "seed"),
    [
        (240, 4, 1),
        *(pytest.param(1_000, 8, seed, marks=[pytest.mark.soak, pytest.mark.timeout(900)]) for seed in range(1, 4)),
    ],
)
def test_it_ends_sooner_than_on_any_fixed_layout_and_no_guarantee_is_ever_broken(
    count: int, gpus: int, seed: int
) -> None:
    jobs = jobs_of(count, gpus, seed)
    world = Clocked(
        {
            name: [pools.gpu(f"{name}-{nth}", pools.SEVEN, index=nth) for nth in range(gpus // 2)]
            for name in ("n1", "n2")
        },
        pools.group("n1", "n2"),
        planning=PLANNING,
    )
    world.promises = (promise("1g.10gb", 2, account=ACCOUNT),)
    ended = world.run(jobs, ACCOUNT)
    assert world.done == len(jobs) == count
    assert world.recut > 10
    assert min(had for _, kept in world.history for had in kept.values()) >= 2
    assert [one for one in world.told if one.have < one.at_least] == []
    bound = Bound(jobs, NAMES)
    near = [counts for counts in every_static(SHAPES, NAMES, gpus) if bound.end(counts) <= ended]
    fixed = min((end_of_run(jobs, NAMES, counts), counts) for counts in near)
    print(f"{ended:.0f} s; on fixed layouts {fixed[0]:.0f} s at the best, with {told(NAMES, fixed[1])}")
    assert ended < fixed[0]
