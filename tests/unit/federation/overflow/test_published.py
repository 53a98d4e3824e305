"""What a pool's virtual nodes offer: never more than is free there, each slice once."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from federation.model.messages import Room
from federation.overflow.published import Here, Taking, Want, offered, spread, taking
from federation.policy.choose import Pool
from slurm_plugin.catalogue import render
from tests.cases.pool import pool as example

TEXT = render(example())
FREE = (("1g.10gb", 4), ("m10", 6), ("m20", 2), ("m40", 1))
ROOM = Room(pool="gpu", catalogue=TEXT, slices=FREE, free_jobs=10, free_cpus=8)
POOL = Pool(site="cloud", room=ROOM)
HERE = Here(most_jobs=100)


def test_a_pool_takes_what_it_has_room_for_and_has_not_heard_of_yet() -> None:
    assert taking(POOL, HERE) == Taking(jobs=10)
    assert taking(replace(POOL, sent=3), Here(most_jobs=100, running=5, unsent=2)) == Taking(jobs=5)
    assert taking(POOL, Here(most_jobs=12, running=5)) == Taking(jobs=7)


@pytest.mark.parametrize(
    ("pool", "here", "why"),
    [
        (None, HERE, "its site does not tell of it"),
        (replace(POOL, linked=False), HERE, "no link to cloud"),
        (replace(POOL, cools_for_s=3.0), HERE, "left alone for a while after failures"),
        (replace(POOL, sent=10), HERE, "it is full"),
        (replace(POOL, room=replace(ROOM, free_jobs=0, why="closed for today")), HERE, "closed for today"),
        (POOL, Here(most_jobs=5, running=5), "5 jobs run there, the most that fed.yaml allows"),
    ],
    ids=str,
)
def test_a_pool_that_takes_nothing_says_why(pool: Pool | None, here: Here, why: str) -> None:
    assert taking(pool, here) == Taking(jobs=0, why=why)


def test_what_waits_is_offered_by_priority_and_no_more_than_is_free() -> None:
    wants = [Want(gres_class="m20", count=1, tasks=5, priority=1), Want(gres_class="m40", count=1, priority=9)]
    found = offered(POOL, 10, HERE, wants)
    assert found == {("m40", 1): 1, ("m20", 1): 1}, "the slice of 40 GB is one of the two that have 20"


def test_nothing_is_offered_that_nothing_waits_for() -> None:
    assert offered(POOL, 10, HERE, []) == {}


def test_what_has_started_here_and_not_there_takes_a_slice_that_is_told_as_free() -> None:
    want = Want(gres_class="m20", count=1, tasks=5)
    assert offered(POOL, 10, Here(most_jobs=9, unbegun={"m20": 1}), [want]) == {("m20", 1): 1}
    assert offered(POOL, 10, Here(most_jobs=9, unbegun={"m20": 2}), [want]) == {}


def test_a_job_that_needs_several_gets_all_or_none() -> None:
    assert offered(POOL, 10, HERE, [Want(gres_class="m20", count=3, priority=2)]) == {}
    assert offered(POOL, 10, HERE, [Want(gres_class="m20", count=2, tasks=4)]) == {("m20", 2): 1}


def test_a_class_means_there_what_it_is_there() -> None:
    assert offered(POOL, 10, HERE, [Want(gres_class="m12", count=1)]) == {("m12", 1): 1}, "20 GB are enough"
    assert offered(POOL, 10, HERE, [Want(gres_class="no-such-class", count=1)]) == {}


@pytest.mark.parametrize("text", ["", "vgpu-catalogue 1\nbroken\n"])
def test_a_pool_without_slices_offers_none(text: str) -> None:
    none = replace(POOL, room=replace(ROOM, catalogue=text))
    assert offered(none, 10, HERE, [Want(gres_class="m20", count=1)]) == {}


def test_tasks_are_spread_over_the_nodes() -> None:
    assert spread({("m20", 2): 5}, ("a", "b")) == {"a": {"m20": 6}, "b": {"m20": 4}}
    assert spread({("m20", 1): 1, ("m40", 1): 1}, ("a", "b")) == {"a": {"m20": 1}, "b": {"m40": 1}}
    assert spread({("m20", 1): 1}, ()) == {}


NAMES = ("1g.10gb", "m10", "m20", "m40", "m80", "nothing")
WANTS = some.lists(
    some.builds(
        Want,
        gres_class=some.sampled_from(NAMES),
        count=some.integers(1, 4),
        tasks=some.integers(1, 20),
        priority=some.integers(0, 9),
    ),
    max_size=8,
)


@given(WANTS, some.dictionaries(some.sampled_from(NAMES), some.integers(0, 9)), some.integers(0, 30))
def test_a_slice_is_offered_once_and_jobs_have_a_limit(wants: list[Want], free: dict[str, int], jobs: int) -> None:
    pool = replace(POOL, room=replace(ROOM, slices=tuple(free.items())))
    found = offered(pool, jobs, HERE, wants)
    assert sum(found.values()) <= jobs
    slices: Counter[str] = Counter()
    for (name, count), tasks in found.items():
        slices[name] += count * tasks
    assert all(count <= free.get(name, 0) for name, count in slices.items())
    each = spread(found, ("a", "b", "c"))
    assert sum(each.values(), Counter()) == slices
