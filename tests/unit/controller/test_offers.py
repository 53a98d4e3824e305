"""Which class each idle slice is offered as, by what waits."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.agent.choose import Floor, pick
from slurm_plugin.agent.terms import Offer, Terms, Want
from slurm_plugin.choice import Slice
from slurm_plugin.controller.offers import WHERES_MAX, Offering, assign, reserve
from slurm_plugin.controller.state import WITHHELD, NodeView
from slurm_plugin.controller.wants import Demand, OfferNode
from slurm_plugin.planner.problem import Guarantee
from tests.unit.controller import pools
from tests.unit.controller.pools import serving

SERVING = serving()


def pieces(node: str, *profiles: str) -> tuple[Slice, ...]:
    return tuple(Slice(uuid=f"{node}/{nth}/{p}", gpu=f"GPU-{node}", profile=p) for nth, p in enumerate(profiles))


def place(name: str, *idle: str, busy: tuple[tuple[str, str], ...] = (), cpus_free: int = 64) -> OfferNode:
    taken = tuple((Slice(uuid=f"{name}/busy{n}/{p}", gpu="G", profile=p), c) for n, (p, c) in enumerate(busy))
    return OfferNode(name=name, partitions=("gpu",), cpus=64, cpus_free=cpus_free, idle=pieces(name, *idle), busy=taken)


def wish(job: int, gres_class: str, count: int = 1, *, priority: int = 1, nodes: int = 1, tasks: int = 1) -> Demand:
    return Demand(
        job_id=job,
        priority=priority,
        gres_class=gres_class,
        count=count,
        nodes=nodes,
        tasks=tasks,
        partitions=("gpu",),
        cpus=nodes,
    )


def offered(offering: Offering) -> dict[str, int]:
    counts: dict[str, int] = {}
    for gres_class in offering.classes.values():
        counts[gres_class] = counts.get(gres_class, 0) + 1
    return counts


def test_unclaimed_slices_are_at_home_in_default_or_exact_class() -> None:
    assert offered(assign([place("n1", "1g.10gb", "3g.40gb")], [], {}, SERVING)) == {"1g.10gb": 1, "3g.40gb": 1}
    default = serving(default="m20")
    assert offered(assign([place("n1", "1g.20gb", "2g.20gb")], [], {}, default)) == {"m20": 1, "2g.20gb": 1}


def test_unclaimed_slices_keep_their_offer_if_they_still_serve_it() -> None:
    node = place("n1", "3g.40gb", "1g.10gb")
    present = {"n1/0/3g.40gb": "m20", "n1/1/1g.10gb": "m20"}
    assert assign([node], [], present, SERVING).classes == {"n1/0/3g.40gb": "m20", "n1/1/1g.10gb": "1g.10gb"}


def test_smallest_slice_that_serves_wherever_it_is() -> None:
    nodes = [place("n1", "7g.80gb"), place("n2", "3g.40gb"), place("n3", "2g.20gb")]
    assert assign(nodes, [wish(1, "m20")], {}, SERVING).classes["n3/0/2g.20gb"] == "m20"


def test_claim_takes_what_is_offered_so_already() -> None:
    node = place("n1", "2g.20gb", "2g.20gb")
    present = {"n1/1/2g.20gb": "m20"}
    assert assign([node], [wish(1, "m20")], present, SERVING).classes == {
        "n1/0/2g.20gb": "2g.20gb",
        "n1/1/2g.20gb": "m20",
    }


def test_higher_priority_first() -> None:
    node = place("n1", "3g.40gb")
    result = assign([node], [wish(1, "m20", priority=5), wish(2, "3g.40gb", priority=9)], {}, SERVING)
    assert offered(result) == {"3g.40gb": 1}
    assert [demand.job_id for demand in result.waiting] == [1]


def test_array_claims_for_each_of_its_elements() -> None:
    node = place("n1", *["2g.20gb"] * 3)
    assert offered(assign([node], [wish(1, "m20", tasks=2)], {}, SERVING)) == {"m20": 2, "2g.20gb": 1}


def test_node_with_free_cpus_is_preferred_but_not_required() -> None:
    full, free = place("n1", "2g.20gb", cpus_free=0), place("n2", "2g.20gb")
    assert assign([full, free], [wish(1, "m20")], {}, SERVING).classes["n2/0/2g.20gb"] == "m20"
    assert assign([full], [wish(1, "m20")], {}, SERVING).classes["n1/0/2g.20gb"] == "m20"


def test_wanted_node_and_foreign_partition() -> None:
    nodes = [place("n1", "2g.20gb"), place("n2", "2g.20gb")]
    result = assign(nodes, [replace(wish(1, "m20"), wanted_nodes=("n2",))], {}, SERVING)
    assert result.classes == {"n1/0/2g.20gb": "2g.20gb", "n2/0/2g.20gb": "m20"}
    other = assign(nodes, [replace(wish(1, "m20"), partitions=("other",))], {}, SERVING)
    assert offered(other) == {"2g.20gb": 2}


def test_two_node_job_is_offered_both_or_none_and_the_first_gathers() -> None:
    both = [place("n1", "2g.20gb", "2g.20gb"), place("n2", "2g.20gb", "2g.20gb")]
    assert offered(assign(both, [wish(1, "m20", 2, nodes=2)], {}, SERVING)) == {"m20": 4}
    half = [place("n1", "2g.20gb", "2g.20gb"), place("n2", "2g.20gb", busy=(("2g.20gb", "m20"),))]
    result = assign(half, [wish(1, "m20", 2, nodes=2, priority=9), wish(2, "m20", priority=1)], {}, SERVING)
    assert offered(result) == {WITHHELD: 3}  # the lower one gets nothing of it
    assert result.asked == {"n2/busy0/2g.20gb"}  # of the same class, but it must not be offered before all are there


def test_job_that_nothing_can_make_room_for_withholds_nothing() -> None:
    node = place("n1", "2g.20gb", busy=(("1g.10gb", "1g.10gb"),))
    result = assign([node], [wish(1, "m20", 3, priority=9), wish(2, "m20")], {}, SERVING)
    assert offered(result) == {"m20": 1}
    assert [demand.job_id for demand in result.waiting] == [1]


def test_two_node_job_keeps_what_it_claimed() -> None:
    nodes = [place("n0", "1g.10gb", "2g.20gb"), place("n1", "2g.20gb"), place("n2", "2g.20gb")]
    claims = [wish(1, "m10", nodes=2)]
    first = assign(nodes, claims, {}, SERVING)
    assert offered(first) == {"m10": 2, "2g.20gb": 2}
    assert assign(nodes, claims, first.classes, SERVING).classes == first.classes
    mixed = [place("n0", "1g.20gb", "1g.20gb"), place("n1", "1g.10gb", "1g.10gb")]
    claims = [wish(1, "m10", 2), wish(2, "m10")]
    first = assign(mixed, claims, {}, SERVING)
    assert offered(first) == {"m10": 3, "1g.20gb": 1}
    assert assign(mixed, claims, first.classes, SERVING).classes == first.classes


def test_in_a_part_of_the_pool_a_job_gathers_what_there_is() -> None:
    """The node it needs beside this one is not looked at; nobody of lower priority gets what is freed here."""
    node = place("n1", "3g.40gb")
    waits = [wish(1, "3g.40gb", nodes=2, priority=9), wish(2, "m40", priority=1)]
    assert offered(assign([node], waits, {}, SERVING, part=True)) == {WITHHELD: 1}
    assert offered(assign([node], waits, {}, SERVING)) == {"m40": 1}


def test_only_the_first_such_job_gathers() -> None:
    nodes = [place("n1", "2g.20gb", busy=(("2g.20gb", "m20"),)), place("n2", "3g.40gb", busy=(("3g.40gb", "m40"),))]
    waits = [wish(1, "2g.20gb", 2, priority=9), wish(2, "3g.40gb", 2, priority=8), wish(3, "m40", priority=1)]
    result = assign(nodes, waits, {}, SERVING)
    assert result.classes == {"n1/0/2g.20gb": WITHHELD, "n2/0/3g.40gb": "m40"}


def test_busy_slices_are_asked_about_only_when_another_class_waits_for_them() -> None:
    node = place("n1", busy=(("3g.40gb", "m10"), ("1g.10gb", "m10")))
    assert assign([node], [], {}, SERVING).asked == frozenset()
    assert assign([node], [wish(1, "m10")], {}, SERVING).asked == frozenset()
    assert assign([node], [wish(1, "3g.40gb")], {}, SERVING).asked == {"n1/busy0/3g.40gb"}


def test_reserve_takes_what_is_offered_so_first_then_the_best_that_serves() -> None:
    idle = pieces("n1", "3g.40gb", "2g.20gb", "2g.20gb")
    assert reserve(idle, {"m20": 1}, {"n1/0/3g.40gb": "m20"}, SERVING) == {"n1/0/3g.40gb": "m20"}
    assert reserve(idle, {"m20": 2}, {}, SERVING) == {"n1/1/2g.20gb": "m20", "n1/2/2g.20gb": "m20"}
    assert reserve(idle, {"7g.80gb": 1}, {}, SERVING) == {}


@given(data=st.data(), gres_class=st.sampled_from(["m20", "m10", "3g.40gb"]), count=st.integers(1, 8))
def test_reserve_is_the_agents_own_choice(data: st.DataObject, gres_class: str, count: int) -> None:
    """Whatever is offered, withheld, offered as another class or not told of yet."""
    layouts = st.sampled_from([pools.SEVEN, pools.MIXED, (("2g.20gb", 0), ("3g.40gb", 4)), (("1g.20gb", 2),)])
    gpus = tuple(pools.gpu(name, data.draw(layouts), index=nth) for nth, name in enumerate("abc"))
    view = NodeView.of(gpus, (), pools.group("n1"))
    told = st.sampled_from(["m20", "m10", "1g.10gb", "3g.40gb", WITHHELD, None])
    drawn = {piece.uuid: data.draw(told) for piece in view.slices}
    present = {uuid: offer for uuid, offer in drawn.items() if offer is not None}
    busy = data.draw(st.sets(st.sampled_from(sorted(drawn)))) if drawn else set()
    terms = Terms(
        offers={uuid: Offer(gres_class=c) for uuid, c in present.items()},
        classes=SERVING.profiles,
        gpus=frozenset(gpu.uuid for gpu in gpus),
    )
    picked = pick(Floor(gpus=gpus, terms=terms, busy=busy), Want(gres_class=gres_class, count=count))
    idle = [piece for piece in view.slices if piece.uuid not in busy]
    assert reserve(idle, {gres_class: count}, present, SERVING) == dict.fromkeys(picked, gres_class)


def test_one_users_jobs_for_other_nodes_each_are_bounded_and_keep_nobody_else_from_a_slice() -> None:
    """Each of them has nodes of its own to be looked at: a pass over thousands would take minutes."""
    nodes = [place(f"n{nth}", "2g.20gb", busy=(("2g.20gb", "2g.20gb"),)) for nth in range(WHERES_MAX + 50)]
    many = [replace(wish(nth, "m20", priority=9), excluded_nodes=(f"n{nth}",)) for nth in range(WHERES_MAX + 40)]
    result = assign(nodes, [*many, replace(wish(9999, "m20"), uid=7)], {}, SERVING)
    assert list(result.waiting) == many[WHERES_MAX - 1 :]
    assert offered(result) == {"m20": WHERES_MAX, "2g.20gb": 50}


def test_busy_slices_are_asked_about_on_the_nodes_of_whoever_waits_for_them_alone() -> None:
    nodes = [place(name, busy=(("2g.20gb", "m20"), ("3g.40gb", "3g.40gb"))) for name in ("n1", "n2", "n3")]
    waits = [replace(wish(1, "m20"), wanted_nodes=("n1",)), replace(wish(2, "3g.40gb"), excluded_nodes=("n1",))]
    assert assign(nodes, waits, {}, SERVING).asked == {"n1/busy1/3g.40gb"}
    waits[1] = replace(waits[1], gres_class="m40")
    assert assign(nodes, waits, {}, SERVING).asked == {f"n{nth}/busy1/3g.40gb" for nth in (1, 2, 3)}
    waits[0] = replace(waits[0], count=3)
    assert assign(nodes, waits[:1], {}, SERVING).asked == {"n1/busy0/2g.20gb", "n1/busy1/3g.40gb"}


PHYSICS = Guarantee(name="physics", gres_class="3g.40gb", profiles=("3g.40gb",), at_least=1, account="physics")


def test_what_is_kept_for_an_account_is_not_offered_while_slurm_would_give_it_to_another() -> None:
    node = place("n1", "3g.40gb", "3g.40gb")
    others = [replace(wish(nth, "3g.40gb", priority=9), account="art") for nth in (1, 2)]
    mine = replace(wish(3, "3g.40gb", priority=5), account="physics")
    result = assign([node], [*others, mine], {}, SERVING, promises=[PHYSICS])
    assert sorted(result.classes.values()) == [WITHHELD, "3g.40gb"]
    assert result.first == {3: 10}
    result = assign([node], [*others, replace(mine, priority=10)], {}, SERVING, promises=[PHYSICS])
    assert sorted(result.classes.values()) == ["3g.40gb", "3g.40gb"]
    assert result.first == {}


def test_nobody_is_put_before_others_where_there_is_enough_for_all() -> None:
    node = place("n1", *["3g.40gb"] * 3)
    others = [replace(wish(1, "3g.40gb", priority=9), account="art")]
    mine = replace(wish(3, "3g.40gb", priority=5), account="physics")
    assert assign([node], [*others, mine], {}, SERVING, promises=[PHYSICS]).first == {}


def test_no_more_of_an_accounts_jobs_are_put_first_than_it_was_promised() -> None:
    node = place("n1", "3g.40gb")
    other = replace(wish(1, "3g.40gb", priority=9), account="art")
    mine = [replace(wish(nth, "3g.40gb", priority=5), account="physics") for nth in (3, 4, 5)]
    assert assign([node], [other, *mine], {}, SERVING, promises=[PHYSICS]).first == {3: 10}


@settings(deadline=None)
@given(
    slices=st.integers(0, 3),
    promised=st.lists(st.integers(1, 2), min_size=2, max_size=3),
    wishes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=6),
)
def test_accounts_that_lack_one_class_do_not_put_their_jobs_before_each_other_for_ever(
    slices: int, promised: list[int], wishes: list[tuple[int, int, int]]
) -> None:
    """Account 3 is promised nothing. What a pass puts first is first in the next; an array's first element alone."""
    promises = [replace(PHYSICS, name=f"{nth}", account=f"{nth}", at_least=n) for nth, n in enumerate(promised)]
    queue = [
        replace(wish(job, "3g.40gb", priority=priority, tasks=tasks), account=str(account))
        for job, (account, priority, tasks) in enumerate(wishes, 1)
    ]
    node = place("n1", *["3g.40gb"] * slices)
    for _ in range(sum(promised) + 1):
        first = assign([node], queue, {}, SERVING, promises=promises).first
        if not first:
            break
        queue = [after for demand in queue for after in put_first(demand, first.get(demand.job_id), len(queue))]
    assert not first


def put_first(demand: Demand, priority: int | None, jobs: int) -> list[Demand]:
    """Slurm gives an element of an array a number of its own, when it is put first."""
    if priority is None:
        return [demand]
    if demand.tasks == 1:
        return [replace(demand, priority=priority)]
    element = replace(demand, job_id=demand.job_id + 100 * jobs, tasks=1, priority=priority)
    return [element, replace(demand, tasks=demand.tasks - 1)]


def test_what_is_kept_for_two_accounts_is_offered_whoever_of_them_comes_first() -> None:
    node = place("n1", "3g.40gb", "3g.40gb")
    promises = [PHYSICS, replace(PHYSICS, account="art")]
    both = [replace(wish(1, "3g.40gb", priority=9), account="art"), replace(wish(2, "3g.40gb"), account="physics")]
    result = assign([node], both, {}, SERVING, promises=promises)
    assert offered(result) == {"3g.40gb": 2}
    assert result.first == {}


@pytest.mark.parametrize(
    ("stops", "stopped"),
    [
        ({}, False),
        ({"demand": {"behind": True, "passed": True}}, True),
        ({"demand": {"cpus": 8}, "node": {"cpus_free": 7}}, True),
        ({"node": {"closing": True}}, True),
        ({"demand": {"cpus": 8, "count": 2}, "node": {"cpus_free": 7}}, True),
    ],
    ids=["can-start", "did-not-start-in-its-turn", "no-cpus", "an-epilog-runs", "no-cpus-for-several"],
)
def test_what_is_kept_for_an_account_is_not_offered_to_others_by_a_job_of_its_own_that_can_not_start(
    stops: dict[str, dict[str, Any]], stopped: bool
) -> None:
    """Slurm would skip that one, and give what is offered to the next."""
    mine = replace(wish(1, "3g.40gb", priority=9), account="physics", **stops.get("demand", {}))
    other = replace(wish(2, "3g.40gb", priority=5), account="bio")
    node = replace(place("n1", *["3g.40gb"] * mine.count), **stops.get("node", {}))
    promises = [replace(PHYSICS, at_least=mine.count)]
    result = assign([node], [mine, other], {}, SERVING, promises=promises)
    assert offered(result) == {WITHHELD if stopped else "3g.40gb": mine.count}
    assert len(result.kept) == (mine.count if stopped else 0)
    assert result.first == {}


def test_elements_of_an_array_that_can_start_have_what_is_kept_and_no_more_is() -> None:
    mine = replace(wish(1, "3g.40gb", priority=9, tasks=3), account="physics", cpus=4)
    other = replace(wish(2, "3g.40gb", priority=5), account="bio")
    node = place("n1", *["3g.40gb"] * 4, cpus_free=7)
    result = assign([node], [mine, other], {}, SERVING, promises=[replace(PHYSICS, at_least=3)])
    assert len(result.kept) == 2
    assert offered(result) == {WITHHELD: 2, "3g.40gb": 2}


def test_a_job_that_did_not_start_in_its_turn_is_not_put_before_others() -> None:
    node = place("n1", "3g.40gb")
    other = replace(wish(1, "3g.40gb", priority=9), account="bio")
    tried, next_ = (replace(wish(nth, "3g.40gb", priority=5), account="physics") for nth in (3, 4))
    result = assign([node], [other, replace(tried, behind=True, passed=True), next_], {}, SERVING, promises=[PHYSICS])
    assert result.first == {4: 10}


PROFILES = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "7g.80gb"]
NODE = st.lists(st.sampled_from(PROFILES), max_size=4)
WISH = st.tuples(
    st.sampled_from(["1g.10gb", "m10", "m20", "m40", "3g.40gb", "q2", "7g.80gb"]),
    st.integers(1, 3),  # slices
    st.integers(1, 9),  # priority
    st.integers(1, 3),  # nodes
)


@given(idle=st.lists(NODE, min_size=1, max_size=4), wishes=st.lists(WISH, max_size=6), data=st.data())
def test_every_idle_slice_is_offered_once_as_something_it_serves_whatever_the_order(
    idle: list[list[str]], wishes: list[tuple[str, int, int, int]], data: st.DataObject
) -> None:
    nodes = [place(f"n{nth}", *profiles) for nth, profiles in enumerate(idle)]
    demands = [wish(j, c, count, priority=p, nodes=n) for j, (c, count, p, n) in enumerate(wishes, 1)]
    result = assign(nodes, demands, {}, SERVING)
    assert result.classes.keys() == {piece.uuid for node in nodes for piece in node.idle}
    for uuid, gres_class in result.classes.items():
        assert gres_class == WITHHELD or SERVING.serves(gres_class, uuid.rpartition("/")[2])
    served = [demand for demand in demands if demand not in result.waiting]
    for gres_class in {demand.gres_class for demand in served}:  # those that found what they need have it offered
        need = sum(d.count * d.nodes for d in served if d.gres_class == gres_class)
        assert offered(result).get(gres_class, 0) >= need
    shuffled = assign(data.draw(st.permutations(nodes)), data.draw(st.permutations(demands)), {}, SERVING)
    assert shuffled == result
    again = assign(nodes, demands, result.classes, SERVING)
    assert offered(again) == offered(result)
