"""Layouts that follow the queue: what waits is cut, what runs is not touched, what is promised is kept."""

from dataclasses import replace

import pytest

from slurm_plugin.catalogue import Class, Kind
from slurm_plugin.controller.loans import Account, Loan, Loans
from slurm_plugin.controller.question import HOPELESS_MAX, WHERES_MAX
from slurm_plugin.controller.state import WITHHELD
from slurm_plugin.guarantees import Promise
from slurm_plugin.planning import Follow, Guarantee, Planning, Reach
from tests.unit.controller import pools
from tests.unit.controller.pools import SEVEN, gpu
from tests.unit.controller.world import World

FOLLOW = Planning(follow=Follow.QUEUE, batch_window_s=0.0, hysteresis_s=0.0)


def cluster(*layouts: tuple[tuple[str, int], ...], planning: Planning = FOLLOW) -> World:
    """One GPU a node."""
    gpus = {f"n{nth}": [gpu(f"g{nth}", layout)] for nth, layout in enumerate(layouts, start=1)}
    return World(gpus, pools.group(*gpus), planning=planning)


def passes(world: World, most: int = 6) -> None:
    """The controller decides, Slurm starts what it can, and prologs bind at once."""
    for _ in range(most):
        world.carry_out(world.decide(world.views()))
        world.schedule()
        for job, run in list(world.jobs.items()):
            for node in run.on_nodes:
                if (node, job) not in world.grants:
                    assert world.bind(job, node)


def fill(world: World, node: str, *starts: int) -> None:
    """Jobs that run on these 1g slices of a node's GPU."""
    (one,) = world.gpus[node]
    for start in starts:
        (found,) = [i for i in one.instances if i.start == start]
        job, world.next_job = world.next_job, world.next_job + 1
        world.jobs[job] = pools.running(job, found.profile, on=(node,))
        world.grants[node, job] = pools.grant(job, found.profile, found.uuid)
        world.present[found.uuid] = found.profile
    world.recount()


def shapes(world: World, node: str) -> list[str]:
    return [i.profile for i in sorted(world.gpus[node][0].instances, key=lambda i: i.start)]


def test_a_job_that_no_slice_serves_has_one_cut_beside_running_jobs() -> None:
    world = cluster(SEVEN, SEVEN)
    fill(world, "n1", 0, 1, 6)
    fill(world, "n2", 0, 1)
    world.submit("3g.40gb")
    passes(world)
    assert [job.on_nodes for job in world.jobs.values()].count(("n2",)) == 3
    assert shapes(world, "n2") == ["1g.10gb"] * 4 + ["3g.40gb"]
    assert shapes(world, "n1") == ["1g.10gb"] * 7


def test_nothing_is_cut_when_an_idle_slice_serves() -> None:
    world = cluster(SEVEN, pools.MIXED)
    world.submit("m40")
    passes(world)
    assert shapes(world, "n1") == ["1g.10gb"] * 7
    assert world.jobs


def test_nothing_is_cut_where_layouts_are_the_admins() -> None:
    world = cluster(SEVEN, planning=replace(FOLLOW, follow=Follow.LAYOUT))
    world.submit("3g.40gb")
    passes(world)
    assert world.waiting


def test_requests_that_come_together_are_planned_together() -> None:
    world = cluster(SEVEN, planning=replace(FOLLOW, batch_window_s=1.0))
    passes(world)
    world.submit("3g.40gb")
    passes(world)
    assert shapes(world, "n1") == ["1g.10gb"] * 7
    world.submit("3g.40gb")
    world.now += 1.0
    passes(world)
    assert shapes(world, "n1") == ["3g.40gb", "3g.40gb"]
    assert len(world.jobs) == 2


def test_a_controller_that_begins_waits_for_no_others() -> None:
    """What was kept for a job by the one before it is offered to others until there is a plan."""
    world = cluster(SEVEN, planning=replace(FOLLOW, batch_window_s=60.0))
    world.submit("3g.40gb")
    passes(world)
    assert "3g.40gb" in shapes(world, "n1")


def test_a_gpu_that_was_recut_stays_so_for_a_while() -> None:
    world = cluster(SEVEN, planning=replace(FOLLOW, hysteresis_s=60.0))
    world.submit("7g.80gb")
    passes(world)
    (job,) = world.jobs
    world.end(job)
    world.release("n1", job)
    world.submit("1g.10gb")
    passes(world)
    assert shapes(world, "n1") == ["7g.80gb"]
    world.now += 61.0
    passes(world)
    assert world.jobs


def test_a_slice_of_jobs_that_end_is_kept_together_for_a_job_of_higher_priority() -> None:
    """A stream of small jobs never lets four neighbours be free by themselves."""
    world = cluster(SEVEN)
    fill(world, "n1", *range(7))
    world.submit("3g.40gb", priority=9)
    for _ in range(9):
        world.submit("1g.10gb")
    passes(world, 2)
    (room,) = world.recuts.rooms.values()
    assert (room.profile, room.job_id) == ("3g.40gb", 8)
    for job in sorted(world.jobs):
        world.end(job)
        world.release("n1", job)
        passes(world, 2)
        if any(run.gres[0].type == "3g.40gb" for run in world.jobs.values()):
            break
    assert "3g.40gb" in shapes(world, "n1")
    assert sum(run.gres[0].type == "1g.10gb" for run in world.jobs.values()) >= 2  # beside it the stream went on


def test_room_that_nobody_waits_for_any_more_is_offered_again() -> None:
    world = cluster(SEVEN)
    fill(world, "n1", *range(7))
    world.submit("3g.40gb")
    passes(world, 2)
    world.end(1)
    world.release("n1", 1)
    passes(world, 1)
    withheld = [uuid for uuid in world.idle("n1") if world.present[uuid] == WITHHELD]
    assert len(withheld) == (1 if world.recuts.rooms["GPU-g1"].start == 0 else 0)
    world.waiting.clear()
    passes(world, 1)
    assert not world.recuts.rooms
    assert all(world.present[uuid] == "1g.10gb" for uuid in world.idle("n1"))


def test_no_room_is_kept_over_what_a_guarantee_keeps_idle() -> None:
    """The plan may never cut that: it would lie idle for nothing."""
    world = cluster((*((("1g.10gb", start)) for start in range(4)), ("2g.20gb", 4), ("1g.10gb", 6)))
    world.promises = (promise("2g.20gb", 1),)
    fill(world, "n1", 0, 1, 2, 3, 6)
    world.submit("3g.40gb")
    passes(world, 3)
    (room,) = world.recuts.rooms.values()
    assert room.start == 0
    assert [world.present[uuid] for uuid in world.idle("n1")] == ["2g.20gb"]


def test_room_that_comes_in_hours_is_kept_for_the_first_in_line_alone() -> None:
    """Small jobs that come for ever would else always be before it; for others nothing lies idle for so long."""
    world = cluster(SEVEN, SEVEN)
    for name in world.gpus:
        fill(world, name, *range(7))
    world.jobs = {job: replace(run, limit_s=48 * 3600) for job, run in world.jobs.items()}
    for _ in range(2):
        world.submit("3g.40gb")
    passes(world, 2)
    (room,) = world.recuts.rooms.values()
    assert room.job_id == 15
    (waiting,) = world.recuts.waiting
    assert waiting.jobs == (15, 16)
    assert "in the way" in waiting.why
    world.submit("1g.10gb", priority=0)
    for job in room.behind:  # each ends long before its limit, and none of what it leaves is anybody else's
        world.end(job)
        world.release(room.node, job)
        passes(world, 1)
    passes(world, 2)
    assert "3g.40gb" in shapes(world, room.node)


def test_a_larger_job_is_not_served_before_one_that_comes_first() -> None:
    world = cluster(SEVEN, SEVEN, SEVEN)
    for name, priority in (("7g.80gb", 900), ("7g.80gb", 900), ("2g.20gb", 800), ("7g.80gb", 1)):
        world.submit(name, priority=priority)
    passes(world, 4)
    assert list(world.waiting) == [4]


def test_a_job_that_takes_what_was_to_go_keeps_it() -> None:
    world = cluster(SEVEN)
    world.submit("7g.80gb")
    world.carry_out(world.decide(world.views()))
    (target,) = world.recuts.targets.values()
    assert len(target.destroy) == 7
    fill(world, "n1", 3)
    passes(world)
    assert shapes(world, "n1") == ["1g.10gb"] * 7
    assert not world.recuts.targets


def test_who_was_passed_over_has_a_slice_cut_when_nobody_else_lacks_one() -> None:
    world = cluster(SEVEN)
    world.loans = Loans(jobs={1: Loan(uid=1000, array_id=1, asks=(), started=0)}, users={1000: Account(back_at=200.0)})
    world.submit("7g.80gb")
    world.waiting[2] = replace(pools.pending(2, "3g.40gb"), uid=7)
    world.next_job = 3
    passes(world, 3)
    assert shapes(world, "n1").count("3g.40gb") == 1
    assert list(world.jobs) == [2]
    world.end(2)
    world.release("n1", 2)
    passes(world)
    assert shapes(world, "n1") == ["7g.80gb"]


def test_two_slices_of_one_node_are_cut_on_one_node() -> None:
    world = cluster(SEVEN, SEVEN, SEVEN)
    fill(world, "n1", 0)
    fill(world, "n2", 6)
    world.submit("3g.40gb", count=2)
    passes(world)
    assert shapes(world, "n3") == ["3g.40gb", "3g.40gb"]
    assert len(world.jobs) == 3


def test_two_slices_of_one_node_are_cut_on_gpus_that_are_free_in_part() -> None:
    gpus = {"n1": [gpu("g0", SEVEN), gpu("g1", SEVEN, index=1)]}
    world = World(gpus, pools.group("n1"), planning=FOLLOW)
    for one in world.gpus["n1"]:
        job, world.next_job = world.next_job, world.next_job + 1
        world.jobs[job] = pools.running(job, "1g.10gb")
        world.grants["n1", job] = pools.grant(job, "1g.10gb", one.instances[0].uuid)
    world.recount()
    world.submit("3g.40gb", count=2)
    passes(world)
    assert [run.gres[0].count for run in world.jobs.values()] == [1, 1, 2]
    for one in world.gpus["n1"]:
        assert sorted(i.profile for i in one.instances) == ["1g.10gb"] * 4 + ["3g.40gb"]


def test_jobs_that_need_several_slices_are_given_nodes_of_their_own() -> None:
    world = cluster(SEVEN, SEVEN, SEVEN)
    for _ in range(3):
        world.submit("3g.40gb", count=2)
    world.carry_out(world.decide(world.views()))
    assert {target.node for target in world.recuts.targets.values()} == {"n1", "n2", "n3"}
    passes(world)
    assert len(world.jobs) == 3


def test_nothing_is_cut_for_a_part_of_what_a_job_needs_on_one_node() -> None:
    """The node could have three 3g, but one of its GPUs is cut for a job before it."""
    gpus = {"n1": [gpu("g0", SEVEN), gpu("g1", SEVEN, index=1)]}
    world = World(gpus, pools.group("n1"), planning=FOLLOW)
    world.jobs[1] = pools.running(1, "1g.10gb")
    world.grants["n1", 1] = pools.grant(1, "1g.10gb", gpus["n1"][1].instances[0].uuid)
    world.next_job = 2
    world.recount()
    world.submit("7g.80gb", priority=9)
    world.submit("3g.40gb", count=3)
    passes(world)
    assert [i.profile for i in world.gpus["n1"][0].instances] == ["7g.80gb"]
    assert [i.profile for i in world.gpus["n1"][1].instances] == ["1g.10gb"] * 7


def test_jobs_that_no_node_can_serve_keep_no_others_from_being_planned_for() -> None:
    world = cluster(SEVEN)
    for count in range(2, 14):
        world.submit("7g.80gb", count=count, priority=9)
    world.submit("3g.40gb", count=2)
    passes(world)
    assert shapes(world, "n1") == ["3g.40gb", "3g.40gb"]
    assert len(world.jobs) == 1


@pytest.mark.parametrize("excluded", [(), ("n9",)])
def test_one_users_jobs_for_other_nodes_each_keep_nobody_elses_waiting(
    excluded: tuple[str, ...],
) -> None:
    world = cluster(SEVEN)
    for nth in range(WHERES_MAX + 1):
        world.submit("7g.80gb", priority=9)
        job = max(world.waiting)
        world.waiting[job] = replace(world.waiting[job], excluded_nodes=("n1", f"x{nth}"))
    world.submit("3g.40gb")
    last = max(world.waiting)
    world.waiting[last] = replace(world.waiting[last], uid=7, excluded_nodes=excluded)
    world.carry_out(world.decide(world.views()))
    assert [target.create for target in world.recuts.targets.values()] == [(("3g.40gb", 4),)]


def test_one_users_jobs_that_no_node_can_serve_keep_nobody_elses_from_being_planned_for() -> None:
    world = cluster(SEVEN)
    for count in range(2, 2 + HOPELESS_MAX + 1):
        world.submit("7g.80gb", count=count, priority=9)
    world.submit("3g.40gb", count=2)
    last = max(world.waiting)
    world.waiting[last] = replace(world.waiting[last], uid=7)
    passes(world)
    assert shapes(world, "n1") == ["3g.40gb", "3g.40gb"]


def test_a_node_changes_no_more_gpus_at_once_than_it_may() -> None:
    gpus = {"n1": [gpu(f"g{nth}", SEVEN, index=nth) for nth in range(4)]}
    world = World(gpus, pools.group("n1"), planning=replace(FOLLOW, changing_of_node=2))
    for _ in range(4):
        world.submit("7g.80gb")
    world.carry_out(world.decide(world.views()))
    assert len(world.recuts.targets) == 2
    passes(world, 12)
    assert len(world.jobs) == 4


def promise(text: str, count: int, *, account: str = "", idle: bool = False) -> Promise:
    served = Class(name=text, kind=Kind.EXACT, param=0, weight=4, profiles=(text,))
    return Promise(guarantee=Guarantee(gres_class=text, count=count, account=account, idle=idle), served=served)


def test_a_guarantee_of_idle_slices_is_cut_and_kept_from_other_classes() -> None:
    world = cluster(SEVEN, SEVEN)
    world.promises = (promise("3g.40gb", 2, idle=True),)
    passes(world)
    both = shapes(world, "n1") + shapes(world, "n2")
    assert both.count("3g.40gb") == 2
    for _ in range(14):
        world.submit("1g.10gb")
    passes(world, 12)
    both = shapes(world, "n1") + shapes(world, "n2")
    assert both.count("3g.40gb") == 2
    world.submit("3g.40gb")
    passes(world, 2)
    assert any(run.gres[0].type == "3g.40gb" for run in world.jobs.values())


@pytest.mark.parametrize(("account", "starts"), [("physics", True), ("art", False)])
def test_what_is_promised_to_an_account_is_kept_for_its_jobs(account: str, starts: bool) -> None:
    world = cluster(pools.MIXED)
    fill(world, "n1", 0, 1)
    world.promises = (promise("3g.40gb", 1, account="physics"),)
    passes(world)
    assert world.recuts.kept == {"MIG-g1-3g.40gb-4"}
    world.submit("3g.40gb")
    world.waiting = {job: replace(one, account=account) for job, one in world.waiting.items()}
    passes(world)
    assert (len(world.jobs) == 3) is starts


def test_what_is_promised_is_kept_where_it_counts() -> None:
    """Any of the four nodes has one; only those of n3 and n4 are what the account was promised."""
    world = cluster(*[pools.MIXED] * 4)
    reach = Reach(hosts=frozenset({"n3", "n4"}))
    world.promises = (replace(promise("3g.40gb", 2, account="physics"), reach=reach),)
    world.more = {"reaches": {"3g.40gb": reach}}
    passes(world)
    assert world.recuts.kept == {"MIG-g3-3g.40gb-4", "MIG-g4-3g.40gb-4"}
    for _ in range(8):
        world.submit("3g.40gb")
    passes(world, 6)
    of = {one.uuid: node for node, gpus in world.gpus.items() for gpu in gpus for one in gpu.instances}
    assert sorted(of[uuid] for uuid in world.recuts.kept) in (["n3", "n3"], ["n3", "n4"], ["n4", "n4"])
    world.submit("3g.40gb", priority=9)
    (job,) = world.waiting.keys() - set(range(9))
    world.waiting[job] = replace(world.waiting[job], account="physics")
    passes(world, 2)
    assert world.jobs[job].on_nodes[0] in ("n3", "n4")


def test_a_guarantee_lacks_nothing_while_it_moves_from_one_gpu_to_another() -> None:
    """Only n1 can be made one 7g, and it has the 3g that is promised: that is cut on n2 first."""
    world = cluster(pools.MIXED, SEVEN)
    fill(world, "n2", 0)
    world.promises = (promise("3g.40gb", 1, idle=True),)
    world.submit("7g.80gb")
    spare = []
    for _ in range(10):
        decision = world.decide(world.views())
        spare += [margin.have - margin.at_least for margin in decision.margins]
        world.carry_out(decision)
    assert shapes(world, "n1") == ["7g.80gb"]
    assert shapes(world, "n2") == ["1g.10gb"] * 4 + ["3g.40gb"]
    assert min(spare) == 0
    assert len(spare) == 10


def test_quiet_hours_and_a_pause_leave_layouts_alone() -> None:
    for field in ("paused", "quiet_min"):
        world = cluster(SEVEN)
        world.submit("3g.40gb")
        world.more = {field: 5}
        passes(world)
        assert shapes(world, "n1") == ["1g.10gb"] * 7


def test_gpus_that_nobody_uses_go_back_to_their_default() -> None:
    world = cluster((("7g.80gb", 0),))
    world.group = pools.group("n1", layout={"3g.40gb": 2})
    passes(world)
    assert shapes(world, "n1") == ["3g.40gb", "3g.40gb"]


@pytest.mark.parametrize("asked", ["1g.10gb", "m10"])
def test_a_slice_in_room_that_serves_the_job_as_it_is_is_offered(asked: str) -> None:
    """There is nothing to cut, and so no step that would end the room."""
    world = cluster(SEVEN)
    fill(world, "n1", *range(7))
    world.submit(asked)
    passes(world, 2)
    for job in list(world.jobs):  # whichever it is that is waited for
        world.end(job)
        world.release("n1", job)
        passes(world, 3)
        if not world.waiting:
            break
    assert not world.waiting
    assert len(world.jobs) == 7


def test_a_clock_that_is_set_back_keeps_nothing_from_being_cut() -> None:
    world = cluster(SEVEN, planning=Planning(follow=Follow.QUEUE, batch_window_s=1.0, hysteresis_s=60.0))
    world.group = pools.group("n1", layout={"3g.40gb": 2})
    world.now = 10_000.0
    passes(world, 3)
    assert shapes(world, "n1") == ["3g.40gb", "3g.40gb"]
    world.submit("7g.80gb")
    passes(world, 1)
    world.now -= 3600.0
    passes(world, 1)
    world.now += 1.0
    passes(world)
    assert shapes(world, "n1") == ["7g.80gb"]


def test_nothing_but_a_default_is_waited_for_when_the_clock_is_set_back() -> None:
    world = cluster(SEVEN)
    world.now = 10_000.0
    passes(world, 1)
    world.group = pools.group("n1", layout={"3g.40gb": 2})
    world.now -= 3600.0
    passes(world)
    assert shapes(world, "n1") == ["3g.40gb", "3g.40gb"]
