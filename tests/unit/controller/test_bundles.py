"""Room that is kept on one node for a job that needs several slices there."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from slurm_plugin.controller.rooms import ROOMS_MAX
from slurm_plugin.controller.state import WITHHELD
from tests.unit.controller import pools
from tests.unit.controller.pools import MIXED, SEVEN, gpu
from tests.unit.controller.test_recut import FOLLOW, passes, promise
from tests.unit.controller.world import World


def pool(*nodes: tuple[tuple[tuple[str, int], ...], ...]) -> World:
    """For each node the layouts of its GPUs."""
    gpus = {
        f"n{nth}": [gpu(f"n{nth}-{at}", layout, index=at) for at, layout in enumerate(layouts)]
        for nth, layouts in enumerate(nodes, start=1)
    }
    return World(gpus, pools.group(*gpus), planning=FOLLOW)


def fill(world: World, node: str, *where: tuple[int, int]) -> None:
    """Jobs on these slices: (GPU, start)."""
    for at, start in where:
        (piece,) = [one for one in world.gpus[node][at].instances if one.start == start]
        job, world.next_job = world.next_job, world.next_job + 1
        world.jobs[job] = pools.running(job, piece.profile, on=(node,))
        world.grants[node, job] = pools.grant(job, piece.profile, piece.uuid)
        world.present[piece.uuid] = piece.profile
    world.recount()


def every(*at: int) -> list[tuple[int, int]]:
    return [(nth, start) for nth in at for start in range(7)]


def test_a_stream_of_small_jobs_does_not_keep_two_slices_of_one_node_from_coming_to_be() -> None:
    world = pool((SEVEN, SEVEN))
    fill(world, "n1", *every(0, 1))
    world.submit("3g.40gb", count=2, priority=9)
    wanted = world.next_job - 1
    for _ in range(20):
        world.submit("1g.10gb")
    passes(world, 2)
    rooms = world.recuts.rooms.values()
    assert sum(1 + len(room.more) for room in rooms) == 2
    assert {room.job_id for room in rooms} == {wanted}
    for job in sorted(world.jobs):
        world.end(job)
        world.release("n1", job)
        passes(world, 2)
        if not world.recuts.rooms:
            break
    passes(world)
    assert wanted in world.jobs
    assert sum(run.gres[0].type == "1g.10gb" for run in world.jobs.values()) >= 4  # beside it the stream went on


def test_both_slices_may_lie_on_one_gpu() -> None:
    world = pool((SEVEN,))
    fill(world, "n1", *every(0))
    world.submit("3g.40gb", count=2)
    passes(world, 2)
    (room,) = world.recuts.rooms.values()
    assert room.text == "3g.40gb@0, 3g.40gb@4"
    assert room.behind == tuple(range(1, 8))
    for job in range(1, 8):
        world.end(job)
        world.release("n1", job)
    passes(world)
    assert list(world.jobs) == [8]


def test_what_is_free_waits_for_the_rest_and_is_cut_for_nobody_else() -> None:
    world = pool((SEVEN, SEVEN))
    fill(world, "n1", *every(0)[4:], *every(1))  # of the first GPU four slices are free
    world.submit("3g.40gb", count=2, priority=9)
    passes(world, 2)
    assert {room.start: room.waits for room in world.recuts.rooms.values()}[0]
    world.submit("3g.40gb")
    world.submit("1g.10gb")
    passes(world, 3)
    assert [one.profile for one in world.gpus["n1"][0].instances] == ["1g.10gb"] * 7
    assert all(world.present[uuid] == WITHHELD for uuid in world.idle("n1"))
    world.waiting.clear()
    passes(world, 1)
    assert not world.recuts.rooms


def test_slices_that_are_right_already_are_offered_as_soon_as_all_are_free() -> None:
    """Two 3g are there: nothing is to be cut once the job on one of them has ended."""
    world = pool((MIXED, MIXED))
    fill(world, "n1", (0, 4), *((at, start) for at in (0, 1) for start in range(4)))
    world.submit("3g.40gb", count=2)
    passes(world, 2)
    world.end(1)
    world.release("n1", 1)
    passes(world, 2)
    assert world.next_job - 1 in world.jobs
    assert [[one.profile for one in there.instances] for there in world.gpus["n1"]] == [
        [name for name, _ in MIXED],
        [name for name, _ in MIXED],
    ]


def test_one_such_job_has_room_at_a_time_and_the_first_comes_first() -> None:
    world = pool((SEVEN,), (SEVEN,))
    for name in world.gpus:
        fill(world, name, *every(0))
    world.submit("3g.40gb", count=2, priority=1)
    world.submit("2g.20gb", count=2, priority=9)
    passes(world, 2)
    assert {room.job_id for room in world.recuts.rooms.values()} == {world.next_job - 1}


def test_jobs_that_come_before_it_one_by_one_get_no_room_beside_it() -> None:
    """They are alike, so only the first is looked at: whoever has room already is not."""
    world = pool(*[(SEVEN,)] * 8)
    for name in world.gpus:
        fill(world, name, *every(0))
    first = world.next_job
    for priority in range(1, 8):
        world.submit("3g.40gb", count=2, priority=priority)
        passes(world, 2)
        assert {room.job_id for room in world.recuts.rooms.values()} == {first}


def test_room_for_several_slices_counts_as_that_of_one_job_like_any_other() -> None:
    world = pool(*[(SEVEN,)] * (ROOMS_MAX + 2))
    for name in world.gpus:
        fill(world, name, *every(0))
    for _ in range(ROOMS_MAX):
        world.submit("7g.80gb")
    alone = set(world.waiting)
    passes(world, 2)
    world.submit("3g.40gb", count=2, priority=9)
    passes(world, 2)
    assert {room.job_id for room in world.recuts.rooms.values()} == alone
    del world.waiting[min(alone)]
    passes(world, 2)
    assert {room.job_id for room in world.recuts.rooms.values()} == {*world.waiting}


def drain(world: World) -> None:
    world.slurm["n2"] = replace(world.slurm["n2"], state="IDLE+DRAIN")


def break_down(world: World) -> None:
    world.gpus["n2"] = [replace(one, fault="Xid 79") for one in world.gpus["n2"]]


def promise_idle(world: World) -> None:
    """One of the two that are idle by now: each node's room keeps back one."""
    for job, node in ((1, "n1"), (8, "n2")):
        world.end(job)
        world.release(node, job)
    world.promises = (promise("1g.10gb", 1, idle=True),)


@pytest.mark.parametrize("lose", [drain, break_down, promise_idle])
def test_a_job_that_has_lost_a_part_of_its_room_keeps_none_of_it(lose: Callable[[World], None]) -> None:
    world = pool((SEVEN,), (SEVEN,))
    for name in world.gpus:
        fill(world, name, *every(0))
    world.submit("7g.80gb", nodes=2)
    passes(world, 2)
    assert {room.node for room in world.recuts.rooms.values()} == {"n1", "n2"}
    lose(world)
    passes(world, 1)
    assert not world.recuts.rooms


def test_what_is_left_of_the_room_is_given_back_when_a_part_of_it_can_t_be_cut() -> None:
    world = pool((SEVEN, SEVEN))
    world.planning = replace(FOLLOW, changing_of_node=1)
    fill(world, "n1", *every(0, 1))
    world.submit("7g.80gb", count=2)
    passes(world, 2)
    for job in range(1, 15):
        world.end(job)
        world.release("n1", job)
    world.recuts = world.decide(world.views()).recuts
    (failed,) = world.recuts.targets
    assert len(world.recuts.rooms) == 1
    world.more = {"failed_gpus": frozenset({failed}), "held_gpus": frozenset({failed})}
    passes(world, 1)
    assert not world.recuts.rooms
    assert all(world.present[uuid] == "1g.10gb" for uuid in world.idle("n1"))


def test_jobs_that_could_have_no_room_in_an_empty_pool_keep_others_from_none() -> None:
    world = pool((SEVEN,), (SEVEN,))
    for name in world.gpus:
        fill(world, name, *every(0))
    for count in range(2, 12):
        world.submit("7g.80gb", count=count, priority=9)
    world.submit("3g.40gb", count=2)
    passes(world, 2)
    assert {room.job_id for room in world.recuts.rooms.values()} == {world.next_job - 1}


def test_room_is_kept_for_no_more_slices_than_a_gpu_has_media_engines_for() -> None:
    world = pool((SEVEN,))
    fill(world, "n1", *every(0))
    world.submit("1g.10gb+me", count=2)
    passes(world, 2)
    assert not world.recuts.rooms
    for job in range(1, 8):
        world.end(job)
        world.release("n1", job)
    passes(world)
    assert list(world.waiting) == [8]
    assert not world.recuts.rooms
    assert all(world.present[uuid] == "1g.10gb" for uuid in world.idle("n1"))


def test_room_for_slices_with_media_engines_is_where_those_in_use_get_free() -> None:
    """The second GPU's are in use: only where they are can there be others."""
    busy = (*((("1g.10gb", start)) for start in range(6)), ("1g.10gb+me", 6))
    world = pool((SEVEN, busy))
    fill(world, "n1", *every(0, 1))
    world.submit("1g.10gb+me", count=2)
    passes(world, 2)
    assert {(room.text, room.behind) for room in world.recuts.rooms.values()} == {
        ("1g.10gb+me@0", (1,)),
        ("1g.10gb+me@6", (14,)),
    }
    for job in (1, 14):
        world.end(job)
        world.release("n1", job)
    passes(world)
    assert 15 in world.jobs


def test_a_job_that_needs_more_than_any_node_has_keeps_nothing() -> None:
    world = pool((SEVEN,), (SEVEN,))
    for name in world.gpus:
        fill(world, name, *every(0))
    world.submit("3g.40gb", count=3)
    passes(world, 2)
    assert not world.recuts.rooms
    (waiting,) = world.recuts.waiting
    assert waiting.jobs == (world.next_job - 1,)
    assert waiting.why == "no node that may be re-cut now could have all its slices beside what is in use"


def test_a_job_on_two_nodes_has_room_on_both() -> None:
    world = pool((SEVEN,), (SEVEN,), (SEVEN,))
    for name in world.gpus:
        fill(world, name, *every(0))
    world.submit("3g.40gb", nodes=2)
    passes(world, 2)
    assert {room.node for room in world.recuts.rooms.values()} == {"n1", "n2"}
    for job in [*range(1, 5), *range(8, 12)]:  # on the first half of either
        world.end(job)
        world.release(_node(job), job)
    passes(world)
    assert world.jobs[22].on_nodes == ("n1", "n2")


def _node(job: int) -> str:
    return f"n{1 + (job - 1) // 7}"
