"""While re-cutting is paused no step goes out, and nothing is kept back for one."""

from dataclasses import replace

import pytest

from slurm_plugin.planning import Follow, Planning
from tests.unit.controller import pools
from tests.unit.controller.pools import SEVEN
from tests.unit.controller.test_recut import cluster, fill, passes, shapes

LAYOUT = Planning(follow=Follow.LAYOUT, batch_window_s=0.0)
PAUSED = {"paused": True}


def test_slices_that_a_layout_has_no_place_for_are_offered() -> None:
    world = cluster(SEVEN, planning=LAYOUT)
    world.group = pools.group("n1", layout={"7g.80gb": 1})
    world.more = dict(PAUSED)
    passes(world)
    assert shapes(world, "n1") == ["1g.10gb"] * 7
    assert world.free("n1", "1g.10gb") == 7
    world.more = {}
    passes(world)
    assert shapes(world, "n1") == ["7g.80gb"]


def test_a_target_whose_step_was_not_sent_is_dropped_and_told_once() -> None:
    world = cluster(SEVEN)
    world.submit("7g.80gb")
    world.carry_out(world.decide(world.views()))
    (target,) = world.recuts.targets.values()
    world.more = dict(PAUSED)
    decision = world.decide(world.views())
    (event,) = decision.recuts.events
    assert (event.what, event.why, event.destroy) == ("dropped", "re-cutting was paused", target.destroy)
    world.carry_out(decision)
    assert world.free("n1", "1g.10gb") == 7
    assert world.decide(world.views()).recuts.events == ()


def test_a_step_under_way_keeps_what_it_may_destroy_from_jobs() -> None:
    world = cluster(SEVEN)
    world.submit("7g.80gb")
    world.carry_out(world.decide(world.views()))
    world.more = {"paused": True, "held_gpus": frozenset({"GPU-g1"})}
    world.carry_out(world.decide(world.views()))
    assert world.recuts.targets
    assert world.free("n1", "1g.10gb") == 0
    world.more |= {"failed_gpus": frozenset({"GPU-g1"})}
    world.carry_out(world.decide(world.views()))
    assert not world.recuts.targets
    assert world.free("n1", "1g.10gb") == 7


def test_no_room_is_kept_for_a_job() -> None:
    world = cluster(SEVEN)
    fill(world, "n1", *range(7))
    world.submit("3g.40gb", priority=9)
    passes(world, 2)
    assert world.recuts.rooms
    world.more = dict(PAUSED)
    passes(world, 1)
    assert not world.recuts.rooms


@pytest.mark.parametrize("follow", [Follow.LAYOUT, Follow.QUEUE])
def test_the_events_of_a_decision_are_its_own(follow: Follow) -> None:
    """When nothing follows the queue any more, what was on its way is dropped, once."""
    world = cluster(SEVEN)
    world.submit("7g.80gb")
    decision = world.decide(world.views())
    assert [event.what for event in decision.recuts.events] == ["planned"]
    world.carry_out(decision)
    world.planning = replace(world.planning, follow=follow)
    seen = []
    for _ in range(4):
        decision = world.decide(world.views())
        seen += [event.what for event in decision.recuts.events]
        world.carry_out(decision)
    assert seen == (["dropped"] if follow is Follow.LAYOUT else ["changed"])
