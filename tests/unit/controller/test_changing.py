"""GPUs that a new layout is for change in turn, and serve jobs until then."""

from dataclasses import replace

import pytest

from slurm_plugin.controller.state import WITHHELD, Action, Part
from slurm_plugin.planning import Follow, Planning
from tests.unit.controller import pools
from tests.unit.controller.pools import SEVEN, gpu
from tests.unit.controller.world import World

LAYOUT = Planning(follow=Follow.LAYOUT, changing_of_node=2, changing_of_pool=3)
WHOLE = {"7g.80gb": 1}


def pool(nodes: int, gpus: int, planning: Planning = LAYOUT) -> World:
    """Cut in sevenths, and then to be whole."""
    names = [f"n{nth}" for nth in range(1, nodes + 1)]
    there = {name: [gpu(f"{name}-{at}", SEVEN, index=at) for at in range(gpus)] for name in names}
    world = World(there, pools.group(*names), planning=planning)
    one_pass(world)
    world.group = pools.group(*names, layout=WHOLE)
    return world


def one_pass(world: World) -> None:
    world.carry_out(world.decide(world.views()))


def withheld(world: World) -> set[str]:
    """GPUs of which nothing is offered."""
    found = set()
    for name in world.gpus:
        for one in world.gpus[name]:
            here = {world.present.get(i.uuid, "new") for i in one.instances if i.uuid in world.idle(name)}
            if here == {WITHHELD}:
                found.add(one.uuid)
    return found


def whole(world: World) -> int:
    return sum(i.profile == "7g.80gb" for gpus in world.gpus.values() for one in gpus for i in one.instances)


def test_only_so_many_gpus_of_a_node_and_of_the_pool_give_up_idle_slices_at_once() -> None:
    world = pool(2, 4)
    one_pass(world)
    assert withheld(world) == {"GPU-n1-0", "GPU-n1-1", "GPU-n2-0"}
    assert (world.free("n1", "1g.10gb"), world.free("n2", "1g.10gb")) == (14, 21)
    changed = []
    for _ in range(6):
        one_pass(world)
        changed.append(whole(world))
    assert changed == [3, 3, 6, 6, 8, 8]
    assert {plan.action for plan in world.decide(world.views()).plan} == {Action.KEEP}


def test_every_gpu_that_is_not_as_wanted_is_in_the_plan_whose_turn_it_is_told() -> None:
    world = pool(1, 3)
    plans = world.decide(world.views()).plan
    assert [plan.action for plan in plans] == [Action.CHANGE] * 3
    assert ["in its turn" in plan.why for plan in plans] == [False, False, True]


def test_steps_that_are_under_way_and_recuts_for_the_queue_have_a_place_each() -> None:
    world = pool(2, 4)
    world.more = {"held_gpus": frozenset({"GPU-n1-3", "GPU-elsewhere"})}
    one_pass(world)
    assert withheld(world) == {"GPU-n1-3", "GPU-n1-0"}


def test_a_gpu_on_which_a_step_failed_leaves_its_place_to_others_for_a_while() -> None:
    world = pool(1, 4)
    failed = frozenset({"GPU-n1-0"})
    world.more = {"held_gpus": failed, "failed_gpus": failed}
    one_pass(world)
    assert withheld(world) == {"GPU-n1-1", "GPU-n1-2"}


def test_what_only_has_to_be_made_is_made_at_once() -> None:
    world = pool(1, 4)
    world.gpus["n1"] = [replace(one, instances=()) for one in world.gpus["n1"]]
    one_pass(world)
    assert whole(world) == 4


@pytest.mark.parametrize("quiet_min", [0, 300])
def test_a_layout_that_was_applied_is_carried_out_at_any_hour(quiet_min: int) -> None:
    world = pool(1, 1)
    world.more = {"quiet_min": quiet_min}
    one_pass(world)
    one_pass(world)
    assert whole(world) == 1


def run(world: World, node: str, job: int, at: int, start: int) -> None:
    (piece,) = [one for one in world.gpus[node][at].instances if one.start == start]
    world.jobs[job] = pools.running(job, piece.profile, on=(node,))
    world.grants[node, job] = pools.grant(job, piece.profile, piece.uuid)
    world.recount()


def fence(world: World, node: str, job: int) -> str:
    """The job ends, and what is freed is decided about for its node alone. Returns what it is offered as."""
    last = world.decide(world.views())
    world.end(job)
    queue = world.queue()
    (freed,) = world.grants[node, job].slices
    world.release(node, job)
    verdict = world.decide({node: world.views()[node]}, queue, Part(freed=frozenset({freed}), waiting=last.waiting))
    world.carry_out(verdict)
    return world.present[freed]


def test_what_a_job_frees_is_kept_where_the_change_has_begun_and_offered_where_it_has_not() -> None:
    world = pool(1, 4)
    for at in range(4):
        run(world, "n1", 1 + at, at, 6)
    one_pass(world)
    assert withheld(world) == {"GPU-n1-0", "GPU-n1-1"}
    assert (fence(world, "n1", 1), fence(world, "n1", 4)) == (WITHHELD, "1g.10gb")
    one_pass(world)
    assert whole(world) == 1
    assert [len(one.instances) for one in world.gpus["n1"]] == [1, 1, 7, 7]
    assert world.free("n1", "1g.10gb") == 6 + 7


def test_a_gpu_whose_jobs_end_one_by_one_offers_nothing_of_it_again_though_it_is_others_turn() -> None:
    """It waits for its jobs alone, and has no place meanwhile."""
    world = pool(1, 4)
    for start in range(7):
        run(world, "n1", 1 + start, 3, start)
    one_pass(world)
    assert withheld(world) == {"GPU-n1-0", "GPU-n1-1"}
    assert fence(world, "n1", 1) == WITHHELD
    one_pass(world)
    assert (whole(world), withheld(world)) == (2, {"GPU-n1-3"})
    for _ in range(6):
        one_pass(world)
    assert whole(world) == 3
    assert [i.start for i in world.gpus["n1"][3].instances] == [1, 2, 3, 4, 5, 6]
