"""Which GPU is kept for a job that waits in vain, for how many jobs, and at what cost."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from slurm_plugin.controller.rooms import ROOMS_MAX, most
from slurm_plugin.ports import QueuedJob
from tests.unit.controller import pools
from tests.unit.controller.pools import SEVEN
from tests.unit.controller.test_recut import FOLLOW, cluster, fill, passes, promise, shapes
from tests.unit.controller.world import World


def full(nodes: int) -> World:
    world = cluster(*[SEVEN] * nodes)
    for name in world.gpus:
        fill(world, name, *range(7))
    return world


def test_each_job_has_a_gpu_of_its_own_and_no_more_are_kept_than_may_be() -> None:
    world = full(ROOMS_MAX + 2)
    for name in ("3g.40gb", "7g.80gb") * ROOMS_MAX:
        world.submit(name)
    jobs = list(world.waiting)
    rooms = world.decide(world.views()).recuts.rooms
    assert sorted(room.job_id for room in rooms.values()) == jobs[:ROOMS_MAX]
    assert {room.profile for room in rooms.values()} == {"3g.40gb", "7g.80gb"}


def test_who_finds_no_gpu_leaves_room_for_the_next() -> None:
    """A whole GPU is nowhere to be had beside what others made; half of one is."""
    world = cluster(SEVEN)
    fill(world, "n1", *range(1, 7))
    (one,) = world.gpus["n1"]
    others = tuple(replace(i, foreign=True) if i.start == 0 else i for i in one.instances)
    world.gpus["n1"] = [replace(one, instances=others)]
    world.submit("7g.80gb", priority=9)
    world.submit("3g.40gb")
    (room,) = world.decide(world.views()).recuts.rooms.values()
    assert (room.profile, room.start) == ("3g.40gb", 4)


def test_room_for_media_engines_is_where_those_in_use_get_free() -> None:
    """Anywhere else it would lie idle, and never be cut."""
    world = cluster((*((("1g.10gb", start)) for start in range(6)), ("1g.10gb+me", 6)))
    fill(world, "n1", *range(7))
    last = max(world.jobs)
    world.jobs[last] = replace(world.jobs[last], limit_s=3000)  # the others end sooner
    world.jobs |= {job: replace(run, limit_s=600) for job, run in world.jobs.items() if job != last}
    world.submit("1g.10gb+me")
    (room,) = world.decide(world.views()).recuts.rooms.values()
    assert (room.start, room.behind) == (6, (last,))


def test_room_is_let_go_when_others_have_its_media_engines() -> None:
    world = full(1)
    world.submit("1g.10gb+me")
    passes(world, 2)
    assert world.recuts.rooms["GPU-g1"].start == 0
    (one,) = world.gpus["n1"]
    others = tuple(replace(i, profile="1g.10gb+me", foreign=True) if i.start == 6 else i for i in one.instances)
    world.gpus["n1"] = [replace(one, instances=others)]
    passes(world, 1)
    assert not world.recuts.rooms


@pytest.mark.parametrize(
    "change",
    [
        {"eligible": False},
        {"excluded_nodes": ("n1", "n2")},
        {"wanted_nodes": ("n9",)},
        {"on_nodes": ("n9",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_room_of_a_job_that_can_not_have_it_any_more_is_another_ones(change: dict[str, Any]) -> None:
    """All that may be kept was kept for jobs that their user then holds, say: others would wait for ever."""
    world = full(2)
    for _ in range(2):
        world.submit("7g.80gb", priority=9)
    passes(world, 2)
    assert {room.job_id for room in world.recuts.rooms.values()} == {15, 16}
    world.waiting = {job: replace(one, **change) for job, one in world.waiting.items()}
    world.submit("7g.80gb")
    passes(world, 2)
    assert {room.job_id for room in world.recuts.rooms.values()} == {17}


def test_room_of_a_job_that_asks_for_another_class_by_now_is_another_one() -> None:
    world = full(1)
    world.submit("7g.80gb")
    passes(world, 2)
    world.waiting = {job: replace(one, gres=(pools.vgpu("3g.40gb"),)) for job, one in world.waiting.items()}
    passes(world, 1)
    assert [room.profile for room in world.recuts.rooms.values()] == ["3g.40gb"]


def test_nothing_lies_idle_any_longer_once_what_is_in_the_way_may_run_for_hours() -> None:
    """But for the first in line."""
    world = full(2)
    world.jobs = {job: replace(run, limit_s=600) for job, run in world.jobs.items()}
    world.submit("7g.80gb", priority=9)
    world.submit("7g.80gb")
    passes(world, 2)
    assert sorted(room.job_id for room in world.recuts.rooms.values()) == [15, 16]
    world.jobs = {job: replace(run, limit_s=48 * 3600) for job, run in world.jobs.items()}
    passes(world, 1)
    assert [room.job_id for room in world.recuts.rooms.values()] == [15]


def test_who_finds_no_room_at_all_leaves_the_first_place_to_the_next() -> None:
    """Half of the only GPU is foreign, and stays."""
    world = full(1)
    world.jobs = {job: replace(run, limit_s=48 * 3600) for job, run in world.jobs.items()}
    (one,) = world.gpus["n1"]
    others = tuple(replace(i, foreign=True) if i.start == 0 else i for i in one.instances)
    world.gpus["n1"] = [replace(one, instances=others)]
    world.submit("7g.80gb", priority=9)
    world.submit("3g.40gb")
    (room,) = world.decide(world.views()).recuts.rooms.values()
    assert (room.job_id, room.profile, room.start) == (9, "3g.40gb", 4)


def test_more_room_is_kept_in_a_large_pool() -> None:
    assert [most(gpus) for gpus in (0, 8, 64, 1600)] == [ROOMS_MAX, ROOMS_MAX, ROOMS_MAX, 100]


def empty(world: World) -> None:
    for job in list(world.jobs):
        world.end(job)
        world.release("n1", job)


def test_room_that_is_free_and_that_no_plan_cuts_is_offered_again() -> None:
    """Such as on a GPU that still has to rest."""
    world = full(1)
    world.planning = replace(FOLLOW, hysteresis_s=3600.0)
    world.recuts = replace(world.recuts, changed_at={"GPU-g1": world.now})
    world.submit("7g.80gb")
    passes(world, 2)
    world.now += 1000.0
    empty(world)
    passes(world, 1)
    assert world.free("n1", "1g.10gb") == 0
    world.now += 299.0
    passes(world, 1)
    assert world.recuts.rooms
    world.now += 2.0
    passes(world, 1)
    assert not world.recuts.rooms
    assert world.free("n1", "1g.10gb") == 7


@pytest.mark.parametrize("promised", [False, True])
def test_in_quiet_hours_nothing_lies_idle_for_a_recut_that_is_not_to_be(*, promised: bool) -> None:
    world = full(1)
    if promised:
        world.promises = (promise("7g.80gb", 1),)
    world.submit("7g.80gb")
    passes(world, 2)
    assert world.recuts.rooms
    world.more = {"quiet_min": 480}
    passes(world, 1)
    assert bool(world.recuts.rooms) is promised
    empty(world)
    passes(world)
    assert shapes(world, "n1") == (["7g.80gb"] if promised else ["1g.10gb"] * 7)
    assert promised or world.free("n1", "1g.10gb") == 7


class Counted(tuple[QueuedJob, ...]):
    """A queue that counts how often it is gone through."""

    __slots__ = ()
    times = 0

    def __iter__(self) -> Iterator[QueuedJob]:
        type(self).times += 1
        return super().__iter__()


@pytest.mark.parametrize("nodes", [2, 12])
def test_the_queue_is_gone_through_as_often_for_many_gpus_as_for_few(nodes: int) -> None:
    """Each has as many jobs as slices: once for each GPU would take minutes in a large pool."""
    world = full(nodes)
    world.submit("3g.40gb")
    Counted.times = 0
    assert world.decide(world.views(), Counted(world.queue())).recuts.rooms
    assert Counted.times < 12
