"""How many slices keep each guarantee: those its account holds, and idle ones that no other needs."""

from dataclasses import replace

import pytest

from slurm_plugin.catalogue import Class, Kind
from slurm_plugin.controller.promised import harmless, margins, sparing
from slurm_plugin.controller.recuts import Recuts, Room, Target
from slurm_plugin.controller.state import Agent, NodeState, NodeView, State
from slurm_plugin.guarantees import Promise
from slurm_plugin.planning import Guarantee, Reach
from tests.unit.controller import pools
from tests.unit.controller.pools import MIXED, SEVEN


def promise(*profiles: str, count: int, account: str = "", idle: bool = False, reach: Reach | None = None) -> Promise:
    served = Class(name=profiles[0], kind=Kind.EXACT, param=0, weight=4, profiles=profiles)
    guarantee = Guarantee(gres_class=profiles[0], count=count, account=account, idle=idle)
    return Promise(guarantee=guarantee, served=served, reach=reach or Reach())


def state(*promises: Promise, layout: tuple[tuple[str, int], ...] = SEVEN, busy: int = 0, account: str = "") -> State:
    """Two nodes of one GPU; jobs of this account have the first slices of n1."""
    nodes = {}
    for name in ("n1", "n2"):
        gpu = pools.gpu(name, layout)
        held = [one.uuid for one in gpu.instances][: busy if name == "n1" else 0]
        grants = tuple(pools.grant(nth, "x", uuid) for nth, uuid in enumerate(held, start=1))
        group = pools.group(name)
        nodes[name] = NodeState(name=name, group=group, view=NodeView.of((gpu,), grants, group))
    jobs = tuple(replace(pools.running(nth, "x"), account=account) for nth in range(1, busy + 1))
    return State(config=pools.config(*nodes), serving=pools.serving(), nodes=nodes, jobs=jobs, promises=promises)


def have(one: State, *open_nodes: str) -> list[int]:
    return [margin.have for margin in margins(one, open_nodes or ("n1", "n2"))]


@pytest.mark.parametrize(("account", "counted"), [("physics", 14), ("art", 11)])
def test_what_an_account_holds_counts_for_its_own_guarantee(account: str, counted: int) -> None:
    one = promise("1g.10gb", count=4, account="physics")
    assert have(state(one, busy=3, account=account)) == [counted]


def test_idle_ones_alone_count_where_that_is_promised() -> None:
    assert have(state(promise("1g.10gb", count=4, idle=True), busy=3)) == [11]
    assert have(state(promise("1g.10gb", count=4), busy=3)) == [14]


def test_idle_slices_of_a_node_that_takes_no_jobs_keep_nothing() -> None:
    one = state(promise("1g.10gb", count=4), busy=3)
    assert have(one, "n2") == [10]
    assert have(one, "n1") == [7]


def test_no_idle_slice_keeps_two_guarantees() -> None:
    """Each 1g serves both; the 3g only the second, which takes it first."""
    small, any_ = promise("1g.10gb", count=8), promise("3g.40gb", "1g.10gb", count=3)
    one = state(small, any_, layout=MIXED)
    first, second = margins(one, ("n1", "n2"))
    ones = sum(piece.profile == "1g.10gb" for node in one.nodes.values() for piece in node.view.slices)
    assert ones == 8
    assert (first.have, second.have, second.at_least) == (8, 2, 3)


def test_what_no_guarantee_needs_is_to_spare_for_each() -> None:
    assert have(state(promise("1g.10gb", count=2), promise("1g.10gb", count=3, idle=True))) == [2 + 9, 3 + 9]


def test_only_slices_in_reach_count() -> None:
    here = promise("1g.10gb", count=2, reach=Reach(hosts=frozenset({"n2"})))
    other = promise("1g.10gb", count=2, reach=Reach(products=("a100-40gb",)))
    assert have(state(here)) == [7]
    assert have(state(other)) == [0]
    assert have(state(promise("1g.10gb", count=2, reach=Reach(products=("h100-sxm5-80gb",))))) == [14]


def test_what_is_kept_back_for_a_recut_keeps_nothing() -> None:
    one = state(promise("1g.10gb", count=4))
    away = {piece.uuid for piece in one.nodes["n1"].view.slices}
    assert [margin.have for margin in margins(one, ("n1", "n2"), away)] == [7]


def target(node: str, destroy: tuple[tuple[str, int], ...], create: tuple[tuple[str, int], ...]) -> Target:
    return Target(node=node, destroy=destroy, create=create, why="", since=0.0)


WHOLE = (("7g.80gb", 0),)
HALF = (("3g.40gb", 4),)


def allowed(one: State, **targets: Target) -> list[str]:
    return list(harmless(one, ("n1", "n2"), {f"GPU-{name}": target for name, target in targets.items()}))


def test_a_gpu_that_loses_what_another_is_to_have_waits_for_that() -> None:
    one = state(promise("3g.40gb", count=1, idle=True), layout=MIXED)
    one = replace(one, nodes={**one.nodes, "n2": state(layout=SEVEN).nodes["n2"]})
    going = target("n1", MIXED, WHOLE)
    coming = target("n2", (("1g.10gb", 4), ("1g.10gb", 5), ("1g.10gb", 6)), HALF)
    assert allowed(one, n1=going, n2=coming) == ["GPU-n2"]
    assert allowed(one, n1=going) == []
    under_way = replace(one, recuts=Recuts(targets={"GPU-n2": coming}))
    assert allowed(under_way, n1=going) == []
    assert allowed(replace(one, promises=()), n1=going) == ["GPU-n1"]


def test_what_is_moved_on_one_gpu_is_there_in_its_new_place_first() -> None:
    one = state(promise("3g.40gb", count=2, idle=True), layout=MIXED)
    moved = target("n1", MIXED, (("3g.40gb", 0), ("1g.10gb", 4)))
    (first,) = harmless(one, ("n1", "n2"), {"GPU-n1": moved}).values()
    small = tuple(placed for placed in MIXED if placed[0] == "1g.10gb")
    assert (set(first.destroy), first.create, first.ahead) == (set(small), (("3g.40gb", 0),), True)
    assert allowed(one, n1=target("n1", HALF, (("2g.20gb", 4),))) == []


def test_what_room_is_kept_over_keeps_no_guarantee() -> None:
    one = state(promise("1g.10gb", count=7))
    room = Room(node="n2", profile="3g.40gb", start=0, size=4, job_id=1, since=0.0)
    assert allowed(one, n1=target("n1", SEVEN, WHOLE)) == ["GPU-n1"]
    assert allowed(replace(one, recuts=Recuts(rooms={"GPU-n2": room})), n1=target("n1", SEVEN, WHOLE)) == []


def test_room_is_let_go_where_it_would_keep_back_what_a_guarantee_lacks() -> None:
    """Such as when the account's own job, that was in the way, has ended."""
    rooms = {
        f"GPU-{name}": Room(node=name, profile="3g.40gb", start=0, size=4, job_id=nth, since=0.0)
        for nth, name in enumerate(("n1", "n2"))
    }
    for count, kept in ((6, ["GPU-n1", "GPU-n2"]), (7, ["GPU-n1"]), (10, ["GPU-n1"]), (11, []), (99, [])):
        assert list(sparing(state(promise("1g.10gb", count=count)), ("n1", "n2"), rooms)) == kept
    assert sparing(state(), ("n1", "n2"), rooms) == rooms


def test_room_of_one_job_is_let_go_as_a_whole() -> None:
    rooms = {
        f"GPU-{name}": Room(node=name, profile="3g.40gb", start=0, size=4, job_id=1, since=0.0, several=True)
        for name in ("n1", "n2")
    }
    for count, kept in ((6, ["GPU-n1", "GPU-n2"]), (7, []), (10, [])):
        assert list(sparing(state(promise("1g.10gb", count=count)), ("n1", "n2"), rooms)) == kept


def test_one_that_lacks_some_already_lets_go_what_is_not_its_own() -> None:
    one = state(promise("3g.40gb", count=9, idle=True), layout=MIXED)
    small = tuple(placed for placed in MIXED if placed[0] == "1g.10gb")
    assert allowed(one, n1=target("n1", small, (("3g.40gb", 0),)), n2=target("n2", HALF, ())) == ["GPU-n1"]


def test_nothing_is_judged_while_an_agent_is_not_back() -> None:
    one = state(promise("1g.10gb", count=2))
    nodes = {**one.nodes, "n1": replace(one.nodes["n1"], agent=Agent.EXPECTED)}
    assert margins(replace(one, nodes=nodes), ("n2",)) == ()
    assert margins(replace(one, promises=()), ("n1", "n2")) == ()
