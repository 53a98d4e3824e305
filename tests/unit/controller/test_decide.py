"""One whole decision: the order of withholding, counting out and cutting, and what is told of a node."""

from dataclasses import replace

import pytest

from slurm_plugin.controller.decide import FORGOTTEN, decide
from slurm_plugin.controller.demand import takes_jobs
from slurm_plugin.controller.state import WITHHELD, Agent, Decision, NodeState, State
from slurm_plugin.model import MigMode
from slurm_plugin.ports import GresItem, QueuedJob
from tests.unit.controller import pools
from tests.unit.controller.pools import MIXED, SEVEN, gpu, grant, group, node, pending, running, slurm_node, vgpu

PUBLISHED = (vgpu("1g.10gb", 4), vgpu("3g.40gb"), vgpu("pad", 995), GresItem(name="vgpu_mem", count=32))


def state(*nodes: NodeState, jobs: tuple[QueuedJob, ...] = (), present: dict[str, str] | None = None) -> State:
    return State(
        config=pools.config(*(n.name for n in nodes)),
        serving=pools.serving(),
        nodes={n.name: n for n in nodes},
        jobs=jobs,
        present=present or {},
        now=110.0,
    )


def after(one: State, decision: Decision) -> State:
    """The same pool when all of the decision but its steps was carried out."""
    nodes = {}
    for name, each in one.nodes.items():
        assert each.slurm is not None
        nodes[name] = replace(each, slurm=replace(each.slurm, gres=decision.gres.get(name, each.slurm.gres)))
    present = {o.slice: o.gres_class for offers in decision.offers.values() for o in offers}
    return replace(one, nodes=nodes, present=present, assigned=decision.assigned)


def test_slice_that_must_go_is_withheld_and_counted_out_one_pass_before_it_goes() -> None:
    first = state(node("n1", gpu("a", SEVEN), of=group("n1", layout={"7g.80gb": 1})))
    one = decide(first)
    assert {offer.gres_class for offer in one.offers["n1"]} == {WITHHELD}
    assert one.gres["n1"][0] == vgpu("pad", 1000)
    assert not one.steps
    two = decide(after(first, one))
    assert not two.gres
    (step,) = two.steps["n1"]
    assert (len(step.destroy), step.create) == (7, (("7g.80gb", 0),))


@pytest.mark.parametrize("undone", ["offers", "counts"])
def test_nothing_goes_while_offers_or_counts_still_have_it(undone: str) -> None:
    first = state(node("n1", gpu("a", SEVEN), of=group("n1", layout={"7g.80gb": 1})))
    then = after(first, decide(first))
    back = replace(then, present={}) if undone == "offers" else replace(then, nodes=first.nodes)
    assert not decide(back).steps


def test_nothing_goes_while_a_prolog_is_under_way_on_the_node() -> None:
    first = state(node("n1", gpu("a", SEVEN), of=group("n1", layout={"7g.80gb": 1})))
    then = after(first, decide(first))
    assert not decide(replace(then, jobs=(running(1, "m40"),))).steps
    assert decide(replace(then, jobs=(running(1, "m40", started_at=20),))).steps  # it lost its prolog long ago


def test_room_is_cut_at_once() -> None:
    decision = decide(state(node("n1", gpu("a", (("3g.40gb", 4),)), of=group("n1", layout={"3g.40gb": 2}))))
    (step,) = decision.steps["n1"]
    assert (step.destroy, step.create) == ((), (("3g.40gb", 0),))


def test_gpu_with_a_step_under_way_gets_no_other() -> None:
    one = state(node("n1", gpu("a", ()), of=group("n1", layout={"3g.40gb": 2})))
    assert not decide(replace(one, held_gpus=frozenset({"GPU-a"}))).steps


def test_busy_slices_stay_and_are_asked_about_when_they_must_go() -> None:
    held = grant(7, "1g.10gb", "MIG-a-1g.10gb-1")
    decision = decide(
        state(
            node("n1", gpu("a", SEVEN), grants=[held], of=group("n1", layout={"7g.80gb": 1})),
            jobs=(running(7, "1g.10gb"),),
        )
    )
    (plan,) = decision.plan
    assert plan.action == "change"
    assert ("1g.10gb", 1) not in plan.destroy
    assert "1g.10gb@1 (job 7)" in plan.why
    (asked,) = [offer for offer in decision.offers["n1"] if offer.ask]
    assert (asked.slice, asked.gres_class) == ("MIG-a-1g.10gb-1", "1g.10gb")


def test_every_gpu_is_in_the_plan_with_a_reason() -> None:
    disabled = replace(gpu("d", (), index=3), mig=MigMode.DISABLED)
    broken = replace(gpu("e", (), index=4), fault="Xid 79")
    foreign = gpu("f", (("3g.40gb", 4),), index=5)
    foreign = replace(foreign, instances=tuple(replace(i, foreign=True) for i in foreign.instances))
    a30 = gpu("g", (), index=6, product="a30-24gb")
    gpus = (gpu("a", MIXED), gpu("b", SEVEN, index=1), gpu("c", MIXED, index=2), disabled, broken, foreign, a30)
    of = group("n1", layout={"3g.40gb": 1, "1g.10gb": 4}, gpus=(0, 1, 3, 4, 5, 6))
    decision = decide(state(node("n1", *gpus, of=of)))
    assert [(p.index, p.action) for p in decision.plan] == [
        (0, "keep"),
        (1, "change"),
        (2, "leave"),
        (3, "leave"),
        (4, "leave"),
        (5, "change"),
        (6, "leave"),
    ]
    why = {p.index: p.why for p in decision.plan}
    assert "gpus in pool.yaml" in why[2]
    assert "nvidia-smi -i 3 -mig 1" in why[3]
    assert "Xid 79" in why[4]
    assert "foreign" in why[5]
    assert "no profile '3g.40gb'" in why[6]
    assert any("GPU 6" in line for line in decision.problems["n1"])


def test_gpu_outside_the_pool_offers_nothing() -> None:
    decision = decide(state(node("n1", gpu("a", SEVEN), gpu("b", SEVEN, index=1), of=group("n1", gpus=(1,)))))
    assert {offer.slice.split("-")[1] for offer in decision.offers["n1"]} == {"b"}
    assert decision.gres["n1"][0] == vgpu("1g.10gb", 7)


def test_node_whose_agent_may_be_back_is_left_as_it_is_and_later_takes_no_more_jobs() -> None:
    slurm = slurm_node("n1", gres=PUBLISHED, used=[vgpu("1g.10gb", 2)])
    one = node("n1", gpu("a", MIXED), slurm=slurm)
    expected = decide(state(replace(one, agent=Agent.EXPECTED)))
    assert not expected.gres
    away = decide(state(replace(one, agent=Agent.AWAY)))
    assert away.gres["n1"][:2] == (vgpu("1g.10gb", 2), vgpu("pad", 998))
    assert any("agent is away" in line for line in away.problems["n1"])


def test_drained_node_keeps_its_counts_and_serves_no_claim() -> None:
    drained = node("n1", gpu("a", MIXED), slurm=slurm_node("n1", gres=PUBLISHED, state="IDLE+DRAIN"))
    decision = decide(state(drained, jobs=(pending(1, "m20"),)))
    assert not decision.gres
    assert any("IDLE+DRAIN" in line for line in decision.problems["n1"])


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("IDLE", True),
        ("MIXED", True),
        ("ALLOCATED+COMPLETING", True),
        ("IDLE+PLANNED", True),
        ("MIXED+DRAIN", False),
        ("DOWN*", False),
        ("IDLE*", False),
        ("IDLE+DRAIN+INVALID_REG", False),
        ("IDLE+NOT_RESPONDING", False),
        ("UNKNOWN", False),
    ],
)
def test_states_of_a_node(text: str, *, takes: bool) -> None:
    assert takes_jobs(slurm_node("n1", state=text)) is takes


def test_what_is_wrong_with_a_node_in_slurm_is_told() -> None:
    other = slurm_node("n1", gres=(vgpu("", 500), GresItem(name="vgpu_mem", count=32)))
    without = slurm_node("n2", gres=(GresItem(name="gpu", count=4),))
    unknown = replace(node("n3", gpu("c", SEVEN)), slurm=None)
    nodes = (node("n1", gpu("a", SEVEN), slurm=other), node("n2", gpu("b", SEVEN), slurm=without), unknown)
    decision = decide(state(*nodes))
    assert "total is 500" in decision.problems["n1"][0]
    assert sum(item.count for item in decision.gres["n1"] if item.name == "vgpu") == 500  # never changed by us
    assert "no Gres=vgpu:1000" in decision.problems["n2"][0]
    assert "does not know" in decision.problems["n3"][0]
    assert decision.gres.keys() == {"n1"}


def test_job_that_started_after_the_jobs_were_read_is_counted_for() -> None:
    """Its node was read later and shows it as used: the slice it will take is not offered to another."""
    used = slurm_node("n1", used=[vgpu("1g.10gb")])
    assert decide(state(node("n1", gpu("a", SEVEN), slurm=used))).gres["n1"][0] == vgpu("1g.10gb", 7)


def test_slice_of_a_job_whose_epilog_runs_is_as_good_as_idle_unless_another_class_waits_for_it() -> None:
    """Slurm starts nothing on the node before the epilog ends: a stream of jobs of one class needs no update."""
    held = grant(7, "m10", "MIG-a-3g.40gb-4")
    over = replace(running(7, "m10"), state="COMPLETING")
    published = slurm_node("n1", gres=(vgpu("1g.10gb", 4), vgpu("m10"), vgpu("pad", 995), PUBLISHED[-1]))
    one = node("n1", gpu("a", MIXED), grants=[held], slurm=published)
    assert not decide(state(one, jobs=(over,))).gres
    assert decide(state(one, jobs=(over, pending(8, "3g.40gb")))).gres["n1"][1] == vgpu("pad", 996)
    assert decide(state(one)).gres["n1"][1] == vgpu("pad", 996)  # Slurm does not know the job: its slice is not idle


def test_ending_job_does_not_hide_one_that_has_just_started() -> None:
    """Read in this order: job 7 ends; its epilog ends and job 8 starts; the node, with one slice used by 8."""
    held = grant(7, "1g.10gb", "MIG-a-1g.10gb-0")
    over = replace(running(7, "1g.10gb"), state="COMPLETING")
    used = slurm_node("n1", used=[vgpu("1g.10gb")])
    assert decide(state(node("n1", gpu("a", SEVEN), grants=[held], slurm=used), jobs=(over,))).gres["n1"][0].count == 7


def test_job_that_lost_its_prolog_is_told() -> None:
    decision = decide(state(node("n1", gpu("a", SEVEN)), jobs=(running(5, "1g.10gb", started_at=40),)))
    assert any("job 5" in line for line in decision.problems["n1"])
    young = decide(state(node("n1", gpu("a", SEVEN)), jobs=(running(5, "1g.10gb", started_at=100),)))
    assert "n1" not in young.problems


def test_a_slice_is_kept_for_a_job_until_it_is_past_its_prolog_and_for_its_minute() -> None:
    """One that has lost its prolog takes none, as long as it runs: the slice is another one's meanwhile."""
    used = slurm_node("n1", used=[vgpu("1g.10gb")])
    here = node("n1", gpu("a", SEVEN), slurm=used)
    stuck = running(5, "1g.10gb", started_at=40)
    assert decide(state(here, jobs=(stuck,))).gres["n1"][0] == vgpu("1g.10gb", 1 + 7)
    waits = replace(here, view=replace(here.view, waiting=frozenset({5})))
    for kept in (replace(stuck, reason="Prolog"), replace(stuck, state="CONFIGURING"), replace(stuck, started_at=60)):
        assert decide(state(here, jobs=(kept,))).gres["n1"][0] == vgpu("1g.10gb", 7)
    assert decide(state(waits, jobs=(stuck,))).gres["n1"][0] == vgpu("1g.10gb", 7)


@pytest.mark.parametrize("started_at", [40, 100])
def test_a_job_whose_grant_can_not_be_read_takes_no_slice_more_and_is_not_to_be_requeued(started_at: int) -> None:
    """What it has is withheld, and so no slice here."""
    one = gpu("a", SEVEN)
    its, *others = one.instances
    garbled = node(
        "n1",
        replace(one, instances=(replace(its, foreign=True), *others)),
        slurm=slurm_node("n1", used=[vgpu("1g.10gb")]),
    )
    garbled = replace(garbled, view=replace(garbled.view, garbled=frozenset({5})))
    decision = decide(state(garbled, jobs=(running(5, "1g.10gb", started_at=started_at),)))
    assert decision.gres["n1"][0] == vgpu("1g.10gb", 1 + 6)
    assert "n1" not in decision.problems


def test_a_job_that_starts_beside_one_that_has_lost_its_prolog_has_its_slice_kept() -> None:
    used = slurm_node("n1", used=[vgpu("1g.10gb", 2)])
    jobs = (running(5, "1g.10gb", started_at=40), running(6, "1g.10gb"))
    for seen in (jobs, jobs[:1]):  # the queue was read before it started
        assert decide(state(node("n1", gpu("a", SEVEN), slurm=used), jobs=seen)).gres["n1"][0] == vgpu("1g.10gb", 8)


def test_grant_of_an_earlier_run_of_the_same_id_is_not_this_job() -> None:
    """slurmctld hands an id out again after a crash: the new run has not bound, and the old slice is not idle."""
    old = grant(5, "1g.10gb", "MIG-a-1g.10gb-0", started_at=50)
    used = slurm_node("n1", used=[vgpu("1g.10gb")])
    decision = decide(state(node("n1", gpu("a", SEVEN), grants=[old], slurm=used), jobs=(running(5, "1g.10gb"),)))
    assert decision.gres["n1"][0] == vgpu("1g.10gb", 1 + 6 - 1)


def test_held_and_foreign_jobs_claim_nothing() -> None:
    held = replace(pending(1, "m20"), eligible=False)
    elsewhere = replace(pending(2, "m20"), partitions=("other",))
    only_waiting = replace(pending(3, "m20"), partitions=("vgpu-wait",))
    decision = decide(state(node("n1", gpu("a", MIXED)), jobs=(held, elsewhere, only_waiting)))
    assert {offer.gres_class for offer in decision.offers["n1"]} == {"1g.10gb", "3g.40gb"}


def test_equal_states_give_equal_decisions_and_a_carried_out_one_gives_nothing_to_do() -> None:
    jobs = (pending(1, "m20", priority=3), pending(2, "q2", nodes=2), pending(3, "1g.10gb", 9))
    one = state(node("n1", gpu("a", MIXED)), node("n2", gpu("b", SEVEN)), jobs=jobs)
    assert decide(one) == decide(one)
    decision = decide(after(one, decide(one)))
    assert not decision.gres
    assert not decision.steps


def test_node_with_another_number_of_gpus_than_pool_yaml_has_is_told() -> None:
    of = replace(group("n1"), count=2)
    one, two = gpu("a", SEVEN), gpu("b", SEVEN, index=1)
    told = "it has 1 GPUs and should have 2 (count and gpus in pool.yaml)"
    assert told in decide(state(node("n1", one, of=of))).problems["n1"]
    assert "n1" not in decide(state(node("n1", one, two, of=replace(of, gpus=(0,))))).problems


def test_node_that_can_bind_nothing_is_offered_nothing_and_changed_nowhere() -> None:
    held = grant(7, "1g.10gb", "MIG-a-1g.10gb-0")
    used = slurm_node("n1", PUBLISHED, [vgpu("1g.10gb")])
    of = group("n1", layout={"7g.80gb": 1})
    whole = node("n1", gpu("a", MIXED), gpu("b", (), index=1), grants=[held], slurm=used, of=of)
    one = state(replace(whole, fault="disk full"), jobs=(running(7, "1g.10gb"), pending(8, "3g.40gb")))
    decision = decide(one)
    assert decision.gres["n1"][:2] == (vgpu("1g.10gb"), vgpu("pad", 999))
    assert {o.slice: o.gres_class for o in decision.offers["n1"] if o.gres_class} == {"MIG-a-1g.10gb-0": "1g.10gb"}
    assert not decision.steps
    assert "disk full" in decision.problems["n1"][0]
    assert decide(replace(one, nodes={"n1": whole})).steps


def test_node_that_still_runs_a_job_which_slurmctld_forgot_to_have_started_starts_nothing() -> None:
    """Started again there, slurmd would refuse the job, and Slurm drain the node."""
    held = grant(7, "1g.10gb", "MIG-a-1g.10gb-0")
    restarted = node("n1", gpu("a", SEVEN), grants=[held], slurm=slurm_node("n1"))
    first = state(restarted, node("n2", gpu("b", SEVEN)), jobs=(pending(7, "1g.10gb"),))
    one = decide(first)
    assert (one.gres["n1"][0], one.gres["n2"][0]) == (vgpu("pad", 1000), vgpu("1g.10gb", 7))
    assert one.problems["n1"] == (f"it takes no new vgpu job: {FORGOTTEN}",)
    two = decide(replace(after(first, one), forgotten=one.forgotten))
    assert (two.gres, two.forgotten) == ({}, one.forgotten)
    freed = replace(after(first, one).nodes["n1"], view=node("n1", gpu("a", SEVEN)).view)
    three = decide(replace(after(first, one), nodes={"n1": freed}, forgotten=one.forgotten))
    assert (three.gres["n1"][0], three.forgotten) == (vgpu("1g.10gb", 7), frozenset())


@pytest.mark.parametrize("uid", [1000, 1001], ids=["put-back", "its-id-is-anothers-now"])
def test_grant_of_a_job_that_waits_closes_a_node_only_once_slurmctld_was_restarted(uid: int) -> None:
    held = grant(7, "1g.10gb", "MIG-a-1g.10gb-0")
    published = slurm_node("n1", (vgpu("1g.10gb", 7), vgpu("pad", 993), GresItem(name="vgpu_mem", count=32)))
    here = node("n1", gpu("a", SEVEN), grants=[held], slurm=published)
    assert not decide(state(here, jobs=(replace(pending(7, "1g.10gb"), uid=uid),))).forgotten
    restarted = replace(here, slurm=slurm_node("n1"))
    found = decide(state(restarted, jobs=(replace(pending(7, "1g.10gb"), uid=uid),))).forgotten
    assert found == {"n1"}
