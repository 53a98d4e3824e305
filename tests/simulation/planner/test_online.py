"""Placing into a planned mix against cutting greedily, where a job that finds no place is lost; and with a queue."""

import pytest

from benchmarks.online import MIXES, fluid, policies, simulate
from benchmarks.policies import Fixed, Follow, Planned
from benchmarks.simulation import PROFILES, Gpu, Run, rates_for, stream

MEAN_S, GPUS = 3_600.0, 40
SPAN_S = 20 * MEAN_S


@pytest.mark.parametrize("name", sorted(MIXES))
def test_with_a_queue_ours_uses_nearly_all_there_is_under_overload(name: str) -> None:
    rates = rates_for(MIXES[name], 1.2, GPUS, MEAN_S)
    jobs = stream(1, rates, MEAN_S, SPAN_S)
    run = Run(gpus=GPUS, warm_s=0.2 * SPAN_S, until_s=SPAN_S)
    found = simulate(policies(rates, MEAN_S, GPUS)["ours"], jobs, run)
    assert found.utilisation >= 0.95 * fluid({k: v * MEAN_S for k, v in rates.items()}, GPUS)


def test_the_fluid_bound_is_the_load_or_everything() -> None:
    for load, share in ((0.5, 0.5), (1.3, 1.0)):
        rates = rates_for(MIXES["uniform"], load, GPUS, MEAN_S)
        assert fluid({k: v * MEAN_S for k, v in rates.items()}, GPUS) == pytest.approx(share)


def test_the_load_that_is_seen_follows_what_comes() -> None:
    follow = Follow(mean_s=100.0, tick_s=10.0)
    waiting = dict.fromkeys(PROFILES, 0)
    arrived = {**waiting, "1g.5gb": 5}
    assert follow.loads(waiting, arrived) is None
    for _ in range(20):
        loads = follow.loads(waiting, arrived)
    assert loads
    assert loads["1g.5gb"] == pytest.approx(50.0)
    more = follow.loads({**waiting, "7g.40gb": 3}, waiting)
    assert more
    assert more["7g.40gb"] == 3


def test_a_fixed_layout_gives_the_smallest_slice_that_is_large_enough() -> None:
    fixed = Fixed([Gpu()], [(("1g.5gb", 0), ("3g.20gb", 4))])
    assert fixed.place("2g.10gb", 0.0, 1.0) == (0, ("3g.20gb", 4))
    assert fixed.place("3g.20gb", 0.0, 1.0) is None
    fixed.ended(0, ("3g.20gb", 4))
    assert fixed.place("3g.20gb", 0.0, 1.0) == (0, ("3g.20gb", 4))


def test_a_planned_pool_is_whole_again_when_its_jobs_are_gone() -> None:
    gpus = [Gpu() for _ in range(GPUS)]
    rates = rates_for(MIXES["mostly big"], 1.1, GPUS, MEAN_S)
    planned = Planned(gpus, {k: v * MEAN_S for k, v in rates.items()})
    found = simulate(lambda _: planned, [], Run(gpus=GPUS))
    assert found.makespan == 0.0
    before = [slot.placed for slots in planned._of for slot in slots]
    places = [placed for name in PROFILES for placed in [planned.place(name, 0.0, 10.0)] if placed]
    assert len(places) == len(PROFILES)
    for nth, placed in places:
        planned.ended(nth, placed)
    assert before == [slot.placed for slots in planned._of for slot in slots]
    assert not any(slot.inside or slot.broken for slots in planned._of for slot in slots)
