"""Where jobs may run, and whose sets of nodes are looked at when there are too many."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.controller.wants import Demand, OfferNode, Places, fair

NAMES = ("n1", "n2", "n3")
NODES = st.builds(
    OfferNode,
    name=st.sampled_from(NAMES),
    partitions=st.sampled_from([("gpu",), ("gpu", "big"), ("other",)]),
    features=st.frozensets(st.sampled_from("ab")),
    maintained=st.booleans(),
)
SOME = st.lists(st.sampled_from([*NAMES, "n9"]), max_size=3, unique=True).map(tuple)


@given(
    nodes=st.lists(NODES, max_size=3, unique_by=lambda node: node.name),
    demand=st.builds(
        Demand,
        job_id=st.just(1),
        priority=st.just(1),
        gres_class=st.just("m20"),
        count=st.just(1),
        nodes=st.integers(1, 2),
        partitions=st.sampled_from([("gpu",), ("big", "other"), ()]),
        wanted_nodes=SOME,
        excluded_nodes=SOME,
        features=st.lists(st.frozensets(st.sampled_from("ab")), max_size=2).map(tuple),
        reserved=st.booleans(),
    ),
)
def test_a_job_may_run_where_nothing_that_it_says_forbids_it(nodes: list[OfferNode], demand: Demand) -> None:
    """More named nodes than it needs are a choice; fewer only some of those that it gets."""
    found = Places(nodes).of(demand)
    for nth, node in enumerate(nodes):
        pinned = demand.nodes <= len(demand.wanted_nodes)
        assert (nth in found) is (
            bool(set(demand.partitions) & set(node.partitions))
            and node.name not in demand.excluded_nodes
            and (node.name in demand.wanted_nodes or not pinned)
            and (not demand.features or any(some <= node.features for some in demand.features))
            and (demand.reserved or not node.maintained)
        )


def wish(job: int, *, uid: int = 1, away: str = "") -> Demand:
    excluded = (away,) if away else ()
    return Demand(
        job_id=job,
        priority=1,
        gres_class="m20",
        count=1,
        uid=uid,
        partitions=("gpu",),
        excluded_nodes=excluded,
    )


def test_all_are_looked_at_where_there_are_few_sets_of_nodes() -> None:
    ranked = [wish(nth, away=f"n{nth % 3}") for nth in range(99)]
    assert fair(ranked, 3) == (ranked, ())


def test_one_users_sets_of_nodes_keep_out_nobody_elses() -> None:
    many = [wish(nth, away=f"n{nth}") for nth in range(9)]
    other, plain = wish(20, uid=2, away="m1"), wish(30, uid=3)
    again = wish(40, uid=1, away="n0")
    able, further = fair([*many, other, plain, again], 4)
    assert able == [many[0], many[1], other, plain, again]
    assert further == many[2:]


def test_a_set_that_is_a_users_first_is_looked_at_whoever_named_it_before() -> None:
    many = [wish(nth, away=f"n{nth}") for nth in range(9)]
    other = wish(20, uid=2, away="n8")
    able, _ = fair([*many, other], 2)
    assert able == [many[0], many[8], other]


def test_equal_sets_are_one_whatever_objects_they_are() -> None:
    one, same = wish(1, away="n1"), replace(wish(2), excluded_nodes=("n" + "1",))
    object.__setattr__(same, "where", (*same.where,))
    assert fair([one, same], 1) == ([one, same], [])
