"""Why a job waits, and what would start it."""

from dataclasses import replace

import pytest

from slurm_plugin.controller.answer import job_named
from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.explain import explain
from slurm_plugin.controller.loans import Account, Loan, Loans
from slurm_plugin.controller.recuts import Recuts, Room, Waiting
from slurm_plugin.controller.state import WITHHELD, Agent, NodeState, OfferOut, State
from slurm_plugin.explanation import LINES, Change, Explanation, Why, lines
from slurm_plugin.planning import Follow, Planning
from slurm_plugin.pool import Mode
from slurm_plugin.ports import QueuedJob
from tests.unit.controller import pools
from tests.unit.controller.pools import MIXED, SEVEN, gpu, grant, group, node, pending, running, slurm_node

NOW = 1_000.0
BUSY_SEVEN = tuple(grant(10 + nth, "1g.10gb", f"MIG-a-1g.10gb-{nth}") for nth in range(7))


def runs(job: int, gres_class: str, limit_s: int = 0) -> QueuedJob:
    return replace(running(job, gres_class), limit_s=limit_s)


def state(*nodes: NodeState, jobs: tuple[QueuedJob, ...], follow: Follow = Follow.LAYOUT) -> State:
    config = pools.config(*(one.name for one in nodes))
    return State(
        config=replace(config, groups=tuple(one.group for one in nodes), planning=Planning(follow=follow)),
        serving=pools.serving(),
        nodes={one.name: one for one in nodes},
        jobs=jobs,
        now=NOW,
    )


def said(world: State, job_id: int, planned: tuple[Change, ...] = ()) -> Explanation:
    job = job_named(world, job_id)
    assert job is not None
    return explain(world, decide(world), job, planned)


def text(one: Explanation) -> str:
    told = lines(one, lambda at: f"t{at:.0f}", "alice")
    assert len(told) <= LINES
    return "\n".join(told)


def seven_busy(*waiting: QueuedJob, limits: dict[int, int], follow: Follow = Follow.QUEUE) -> State:
    jobs = tuple(runs(10 + nth, "1g.10gb", limits.get(nth, 0)) for nth in range(7))
    return state(node("n1", gpu("a", SEVEN), grants=BUSY_SEVEN), jobs=(*jobs, *waiting), follow=follow)


def test_jobs_that_have_to_end_are_those_that_are_soonest_out_of_the_way() -> None:
    one = said(seven_busy(pending(5, "3g.40gb"), limits={0: 100, 1: 200, 2: 300, 3: 400, 4: 50, 5: 60, 6: 70}), 5)
    assert one.why is Why.BUSY
    assert (one.idle, one.placeable, one.holders) == (0, 0, 7)
    assert [job.job_id for job in one.blockers] == [14, 15, 16]
    assert {(job.node, job.gpus) for job in one.blockers} == {("n1", (0,))}
    assert one.free_at == 170
    assert "it can start when these end, at the latest at t170: job 14 on n1:0 (until t150), job 15" in text(one)


def test_an_end_that_nobody_knows_comes_last() -> None:
    one = said(seven_busy(pending(5, "3g.40gb"), limits={0: 100, 1: 200, 2: 300, 3: 400, 4: 50, 5: 60}), 5)
    assert [job.job_id for job in one.blockers] == [10, 11, 12, 13]
    endless = said(seven_busy(pending(5, "7g.80gb"), limits={}), 5)
    assert (len(endless.blockers), endless.free_at) == (7, 0)
    assert "no time limit" in text(endless)
    assert "at the latest" not in text(endless)


def test_where_layouts_stay_only_slices_that_are_there_can_come_free() -> None:
    fixed = said(seven_busy(pending(5, "3g.40gb"), limits={}, follow=Follow.LAYOUT), 5)
    assert (fixed.why, fixed.blockers, fixed.serves) == (Why.NOWHERE, (), ())
    assert "no layout of pool.yaml has slices for it; it needs one of 3g.40gb" in text(fixed)
    same = said(seven_busy(pending(5, "1g.10gb"), limits={3: 10, 4: 5}, follow=Follow.LAYOUT), 5)
    assert (same.why, [job.job_id for job in same.blockers], same.free_at) == (Why.BUSY, [14], 105)


def test_several_slices_are_made_of_ways_that_do_not_overlap() -> None:
    limits = dict.fromkeys(range(7), 100) | {0: 10}
    one = said(seven_busy(pending(5, "1g.10gb", 2), limits=limits), 5)
    assert [job.job_id for job in one.blockers] == [10, 11]


def test_a_job_of_two_nodes_needs_room_on_both() -> None:
    full = seven_busy(pending(5, "1g.10gb", nodes=2), limits=dict.fromkeys(range(7), 9))
    assert said(full, 5).blockers == ()
    both = replace(full, nodes={**full.nodes, "n2": node("n2", gpu("b", SEVEN))})
    one = said(both, 5)
    assert [job.job_id for job in one.blockers] == [10]
    assert "asks for vgpu:1g.10gb:1 on each of 2 nodes" in text(one)


def test_what_it_needs_is_offered_already() -> None:
    one = said(state(node("n1", gpu("a", MIXED)), jobs=(pending(5, "3g.40gb"),)), 5)
    assert (one.why, one.idle) == (Why.STARTING, 1)


def test_a_job_behind_others_knows_how_many_come_first() -> None:
    jobs = (pending(5, "3g.40gb"), pending(6, "m40", priority=9), pending(7, "1g.10gb", priority=9))
    one = said(state(node("n1", gpu("a", MIXED)), jobs=jobs), 5)
    assert (one.why, one.idle, one.ahead) == (Why.BEHIND, 1, 1)
    assert "slices for it are idle, and wanted by 1 job that comes first too" in text(one)
    assert [other.gres_class for other in one.instead] == ["1g.10gb"]
    assert one.instead[0].idle == 3  # of four, since job 7 takes one
    assert "would start now instead: vgpu:1g.10gb (3 idle)" in text(one)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("QOSMaxJobsPerUserLimit", "a limit of its QOS is reached (QOSMaxJobsPerUserLimit)"),
        ("AssocGrpGRES", "a limit of its account or user is reached (AssocGrpGRES)"),
        ("Dependency", "it depends on another job (Dependency)"),
        ("JobHeldUser", "it is held, and `scontrol release` lets it go (JobHeldUser)"),
        ("BeginTime", "its begin time has not come (BeginTime)"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_which_limit_of_slurm_says_no(reason: str, words: str) -> None:
    job = replace(pending(5, "3g.40gb"), reason=reason, eligible=False)
    one = said(state(node("n1", gpu("a", MIXED)), jobs=(job,)), 5)
    assert (one.why, one.limit) == (Why.SLURM, words)
    assert f"Slurm does not let it start: {words}" in text(one)
    assert "can start when" not in text(one)
    assert "instead" not in text(one)


def test_a_job_that_slurm_did_not_start_is_passed_over_for_a_while() -> None:
    world = state(node("n1", gpu("a", MIXED)), jobs=(pending(5, "3g.40gb"),))
    (claimed,) = decide(world).loans.jobs.values()
    loan = Loan(uid=1000, array_id=5, asks=claimed.asks, started=0, strikes=2, back_at=NOW + 60)
    users = {1000: Account(strikes=1, back_at=NOW + 30)}
    one = said(replace(world, loans=Loans(jobs={5: loan}, users=users, at=NOW)), 5)
    assert (one.why, one.strikes, one.back_at) == (Why.PASSED_OVER, 2, NOW + 60)
    assert "offered to it 2 times and Slurm did not start it" in text(one)
    assert "until t1060" in text(one)
    other = said(replace(world, loans=Loans(users=users, at=NOW)), 5)
    assert (other.why, other.strikes) == (Why.PASSED_OVER, 0)
    assert "another job of its user was offered what it needs, and Slurm did not start that (a limit" in text(other)
    assert "until t1030" in text(other)


def test_a_gpu_that_is_being_cut_for_it_is_the_next_change() -> None:
    cut = group("n1", layout={"3g.40gb": 2})
    one = said(state(node("n1", gpu("a", SEVEN), of=cut), jobs=(pending(5, "3g.40gb"),)), 5)
    assert one.why is Why.CHANGE
    assert one.change is not None
    assert (one.change.node, one.change.gpu, one.change.creates) == ("n1", 0, ("3g.40gb", "3g.40gb"))
    assert "next change: n1:0 gets 3g.40gb, 3g.40gb" in text(one)
    assert "layouts with slices for it: {2x3g.40gb} on n1" in text(one)


def test_a_change_that_is_planned_is_told_with_its_time() -> None:
    soon = Change(node="n1", gpu=0, creates=("7g.80gb",), why="job 3 ends", at=2_000.0)
    other = replace(soon, creates=("3g.40gb",))
    one = said(seven_busy(pending(5, "3g.40gb"), limits={}), 5, planned=(soon, other))
    assert (one.why, one.change) == (Why.CHANGE, other)
    assert "next change at t2000: n1:0 gets 3g.40gb; job 3 ends" in text(one)


def test_nodes_that_take_no_jobs_now_are_named() -> None:
    down = node("n1", gpu("a", MIXED), slurm=slurm_node("n1", state="IDLE+DRAIN"))
    one = said(state(down, jobs=(pending(5, "3g.40gb"),)), 5)
    assert (one.why, one.closed, one.idle) == (Why.NO_NODE, ("n1",), 0)
    assert "no node where it may run takes jobs now: n1" in text(one)
    away = replace(node("n2", gpu("b", MIXED)), agent=Agent.AWAY)
    assert said(state(down, away, jobs=(pending(5, "3g.40gb"),)), 5).closed == ("n1", "n2")


def test_only_nodes_where_it_may_run_count() -> None:
    job = replace(pending(5, "3g.40gb"), excluded_nodes=("n1",))
    one = said(state(node("n1", gpu("a", MIXED)), node("n2", gpu("b", SEVEN)), jobs=(job,)), 5)
    assert (one.why, one.idle, one.closed) == (Why.NOWHERE, 0, ())


def test_a_class_that_the_pool_does_not_have_is_nowhere() -> None:
    one = said(state(node("n1", gpu("a", MIXED)), jobs=(pending(5, "9g.1gb"),)), 5)
    assert (one.why, one.profiles) == (Why.NOWHERE, ())
    assert text(one).splitlines()[1] == "no slice of the pool as it is cut can serve it where it may run"


def test_foreign_instances_never_make_room() -> None:
    whole = gpu("a", SEVEN)
    foreign = replace(whole, instances=tuple(replace(one, foreign=True) for one in whole.instances))
    one = said(state(node("n1", foreign), jobs=(pending(5, "3g.40gb"),), follow=Follow.QUEUE), 5)
    assert (one.why, one.placeable, one.blockers) == (Why.NOWHERE, 0, ())


def test_a_job_that_runs_needs_no_explanation_and_an_arrays_waiting_part_does() -> None:
    world = state(node("n1", gpu("a", MIXED)), jobs=(runs(9, "1g.10gb"),))
    assert text(said(world, 9)) == "job 9 of alice runs: `vgpu show job 9` lists its slices"
    element = replace(runs(7, "1g.10gb"), array_id=5)
    rest = replace(pending(5, "3g.40gb", tasks=4), array_id=5)
    both = state(node("n1", gpu("a", MIXED)), jobs=(element, rest))
    assert said(both, 5).tasks == 4
    assert "4 elements" in text(said(both, 5))
    assert job_named(both, 99) is None


def test_room_that_is_kept_for_it_is_the_next_change_and_the_planners_words_are_told() -> None:
    kept = Room(node="n1", profile="3g.40gb", start=0, size=4, job_id=5, since=NOW, until=1_600, behind=(10, 11))
    waits = Waiting(jobs=(5,), why="its room is not free")
    recuts = Recuts(rooms={"GPU-a": kept}, waiting=(waits,), why="nothing to do")
    world = replace(seven_busy(pending(5, "3g.40gb"), limits={}), recuts=recuts)
    job = job_named(world, 5)
    assert job is not None
    one = explain(world, None, job)
    assert (one.why, one.planner) == (Why.CHANGE, "its room is not free")
    assert one.change == Change(
        node="n1", gpu=0, creates=("3g.40gb",), why="room is kept for it until jobs 10, 11 end", at=1_600
    )
    assert "next change at t1600: n1:0 gets 3g.40gb; room is kept for it until jobs 10, 11 end" in text(one)
    assert "re-cutting: its room is not free" in text(one)
    other = explain(world, None, replace(job, job_id=6))
    assert (other.change, other.planner) == (None, "nothing to do")
    quiet = explain(replace(world, quiet_min=42), None, job)
    assert quiet.planner == "quiet hours, for another 42 min"
    fixed = explain(replace(world, config=replace(world.config, planning=Planning())), None, job)
    assert fixed.planner == ""


def test_where_a_gpu_has_room_nobody_has_to_end() -> None:
    world = seven_busy(pending(5, "3g.40gb"), limits=dict.fromkeys(range(7), 9))
    some = replace(world, nodes={"n1": node("n1", gpu("a", SEVEN), grants=BUSY_SEVEN[4:])})
    job = job_named(some, 5)
    assert job is not None
    one = explain(some, None, job)
    assert (one.why, one.placeable, one.blockers) == (Why.ROOM, 1, ())
    assert text(one).splitlines()[1] == "there is room for it on GPUs that have to be cut anew first"
    two = explain(some, None, replace(job, gres=pending(5, "3g.40gb", 2).gres))
    assert [blocker.job_id for blocker in two.blockers] == [14, 15, 16]


def test_what_is_held_back_is_not_idle_for_it_and_whom_it_is_for_is_told() -> None:
    """One slice for a guarantee of another account, one for a larger job that gathers, and none for this one."""
    one, two = (f"MIG-a-1g.10gb-{nth}" for nth in (0, 1))
    world = state(node("n1", gpu("a", SEVEN), grants=BUSY_SEVEN[2:]), jobs=(pending(5, "1g.10gb"),))
    held = {uuid: OfferOut(slice=uuid, gres_class=WITHHELD) for uuid in (one, two)}
    decision = replace(decide(world), offers={"n1": tuple(held.values())}, waiting=frozenset({5}))
    world = replace(world, recuts=Recuts(kept=frozenset({one})))
    (job,) = world.jobs
    found = explain(world, decision, job)
    assert (found.why, found.idle, found.withheld, found.kept, found.gathered) == (Why.BEHIND, 0, 2, 1, 0)
    assert "slices for it are idle, and held back for others" in text(found)
    assert "slices for it: 0 idle, 2 held back (1 for guarantees, 1 for other jobs or a re-cut); " in text(found)
    more = replace(job, gres=pending(5, "1g.10gb", 3).gres)
    gathers = Loan(uid=1000, array_id=5, asks=(), started=0, gathered=1)
    found = explain(world, replace(decision, loans=Loans(jobs={5: gathers})), more)
    assert "2 held back (1 for it, until it has all it needs, 1 for guarantees); " in text(found)


def test_until_when_gpus_that_were_just_re_cut_stay_so_is_told() -> None:
    world = seven_busy(pending(5, "3g.40gb"), limits=dict.fromkeys(range(7), 9))
    hall = {name: node(name, gpu(name, SEVEN), grants=()) for name in ("n2", "n3")}
    recuts = Recuts(changed_at={"GPU-n2": NOW - 20, "GPU-n3": NOW - 10}, why="re-cut just now")
    some = replace(world, nodes={**world.nodes, **hall}, recuts=recuts)
    job = job_named(some, 5)
    assert job is not None
    one = explain(some, None, job)
    assert (one.why, one.again_at) == (Why.ROOM, NOW + 40)
    assert "re-cutting: re-cut just now; GPUs with room for it stay as they are until t1040" in text(one)
    later = replace(some, recuts=replace(recuts, changed_at={"GPU-n2": NOW - 20}))
    assert explain(later, None, job).again_at == 0  # n3 may be cut at any moment


def test_what_a_guarantee_keeps_idle_is_there_for_its_own_class_alone() -> None:
    """And a job that comes first, but could not take it, is not in the way."""
    slices = [f"MIG-a-1g.10gb-{nth}" for nth in range(7)]
    jobs = (pending(5, "1g.10gb"), pending(6, "m10", 9), pending(7, "7g.80gb", priority=9))
    world = state(node("n1", gpu("a", SEVEN)), jobs=jobs)
    offers = tuple(OfferOut(slice=uuid, gres_class="1g.10gb") for uuid in slices)
    decision = replace(decide(world), offers={"n1": offers}, waiting=frozenset({6, 7}))
    world = replace(world, recuts=Recuts(kept=frozenset(slices[:3])))
    own, other = (explain(world, decision, job) for job in jobs[:2])
    assert (own.idle, own.withheld) == (7, 0)
    assert (other.idle, other.withheld, other.kept, other.ahead) == (4, 3, 3, 1)


def test_where_layouts_follow_the_queue_no_more_nothing_of_its_plans_is_told() -> None:
    kept = Room(node="n1", profile="3g.40gb", start=0, size=4, job_id=5, since=NOW, until=1_600, behind=(10, 11))
    recuts = Recuts(rooms={"GPU-a": kept}, why="no room", changed_at={"GPU-a": NOW})
    world = replace(seven_busy(pending(5, "3g.40gb"), limits={}, follow=Follow.LAYOUT), recuts=recuts)
    decision = decide(world)
    assert decision.recuts == Recuts(changed_at={"GPU-a": NOW})
    assert explain(replace(world, recuts=decision.recuts), decision, world.jobs[-1]).change is None


def test_what_will_not_be_done_is_told_beside_what_is_planned() -> None:
    cut = group("n1", layout={"3g.40gb": 2})
    world = state(node("n1", gpu("a", SEVEN), of=cut), jobs=(pending(5, "3g.40gb"),))
    told = text(said(replace(world, paused=True), 5))
    assert "next change: n1:0 gets 3g.40gb" in told
    assert "re-cutting: it is paused (vgpu resume)" in told
    observed = replace(world, config=replace(world.config, mode=Mode.OBSERVE))
    assert "re-cutting: the pool is only observed: nothing of this is done (mode: observe)" in text(said(observed, 5))
    assert "re-cutting" not in text(said(world, 5))
