"""Where one slice goes: existing before cut, room for the large ones, and neighbours that end together."""

import random

import pytest

from slurm_plugin.mig.layouts import conflict, feasible
from slurm_plugin.planner.place import HORIZON_S, Candidate, Job, blocking, ranked
from tests.unit.planner.asking import A100, drawn, layouts_of

NOW = 1_000_000.0
HOUR = 3_600.0


def _best(job: Job, *gpus: Candidate) -> tuple[str, tuple[str, int]]:
    spot = ranked(A100, gpus, job, NOW)[0]
    return spot.gpu, spot.placed


def test_what_exists_is_taken_before_anything_is_cut() -> None:
    empty = Candidate(gpu="a", cut=True)
    ready = Candidate(gpu="b", idle=(("1g.5gb", 0),))
    assert _best(Job(profiles=("1g.5gb",)), empty, ready) == ("b", ("1g.5gb", 0))
    assert not ranked(A100, [Candidate(gpu="a")], Job(profiles=("1g.5gb",)), NOW)


def test_the_smallest_profile_that_serves_is_taken() -> None:
    gpu = Candidate(gpu="a", idle=(("2g.10gb", 0), ("3g.20gb", 4)))
    assert _best(Job(profiles=("2g.10gb", "3g.20gb")), gpu) == ("a", ("2g.10gb", 0))


def test_a_gpu_in_use_is_filled_before_an_empty_one_is_begun() -> None:
    begun = Candidate(gpu="b", busy={("2g.10gb", 0): None}, cut=True)
    assert _best(Job(profiles=("1g.5gb",)), Candidate(gpu="a", cut=True), begun)[0] == "b"


def test_a_1g_goes_where_no_3g_could_be_any_more() -> None:
    gpu = Candidate(gpu="a", busy={("1g.5gb", 4): None}, cut=True)
    assert _best(Job(profiles=("1g.5gb",)), gpu) == ("a", ("1g.5gb", 5))


def test_slices_that_end_together_sit_together() -> None:
    soon = Candidate(gpu="a", busy={("3g.20gb", 4): NOW + HOUR}, idle=(("3g.20gb", 0),))
    late = Candidate(gpu="b", busy={("3g.20gb", 4): NOW + 9 * HOUR}, idle=(("3g.20gb", 0),))
    assert _best(Job(profiles=("3g.20gb",), end=NOW + 8 * HOUR), soon, late)[0] == "b"
    short = Job(profiles=("3g.20gb",), end=NOW + HOUR / 2)
    assert len({spot.cost for spot in ranked(A100, [soon, late], short, NOW)}) == 1


def test_a_job_costs_nothing_more_beside_one_that_stands_in_the_same_way_for_longer() -> None:
    gpu = Candidate(gpu="a", busy={("3g.20gb", 4): NOW + 2 * HOUR}, idle=(("3g.20gb", 0),))
    whole = A100["7g.40gb"].size
    hour = blocking(A100, gpu, ("3g.20gb", 0), NOW + HOUR, NOW)
    three = blocking(A100, gpu, ("3g.20gb", 0), NOW + 3 * HOUR, NOW)
    alone = sum(p.size * sum(start < 4 for start in p.starts) for p in A100.values()) - whole
    assert hour == alone * HOUR
    assert three == alone * 3 * HOUR + whole * HOUR


def test_a_job_without_an_end_counts_as_a_day() -> None:
    gpu = Candidate(gpu="a", idle=(("7g.40gb", 0),))
    whole = sum(p.size * len(p.starts) for p in A100.values())
    assert blocking(A100, gpu, ("7g.40gb", 0), None, NOW) == whole * HORIZON_S


@pytest.mark.parametrize("seed", range(30))
def test_every_spot_is_possible_and_destroys_only_what_overlaps(seed: int) -> None:
    rng = random.Random(seed)
    fixed, idle = drawn(rng, A100, layouts_of(A100))
    gpu = Candidate(gpu="a", idle=idle, busy=dict.fromkeys(fixed), cut=True)
    for name in A100:
        spots = ranked(A100, [gpu], Job(profiles=(name,)), NOW)
        assert {s.placed for s in spots if s.exists} == {placed for placed in idle if placed[0] == name}
        for spot in spots:
            rest = [one for one in (*fixed, *idle) if one not in spot.destroys and one != spot.placed]
            assert conflict(A100, [*rest, spot.placed]) is None
            for gone in spot.destroys:
                assert not feasible(A100, [spot.placed, gone])
