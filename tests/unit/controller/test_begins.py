"""A controller that has just started: what jobs hold on nodes whose agents have yet to come counts for guarantees."""

from dataclasses import replace

import pytest

from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.demand import held
from slurm_plugin.controller.held import Held
from slurm_plugin.controller.question import guarantees
from slurm_plugin.controller.state import WITHHELD, Agent, Decision, NodeState, State
from slurm_plugin.guarantees import Promise
from slurm_plugin.planning import Follow, Planning
from slurm_plugin.ports import QueuedJob
from tests.unit.controller import pools
from tests.unit.controller.pools import MIXED, SEVEN
from tests.unit.controller.test_promised import promise

PLANNING = Planning(follow=Follow.QUEUE, batch_window_s=0.0, hysteresis_s=0.0)
HALVES = (("3g.40gb", 0), ("3g.40gb", 4))


def expected(name: str, layout: tuple[tuple[str, int], ...] = HALVES, *, spoke: bool = False) -> NodeState:
    """As it is read from disk: no grants."""
    return replace(pools.node(name, pools.gpu(name, layout)), agent=Agent.EXPECTED, spoke=spoke)


def begun(*promises: Promise, here: tuple[tuple[str, int], ...], jobs: tuple[QueuedJob, ...], away: NodeState) -> State:
    """One agent, that of n1, is there."""
    nodes = {"n1": pools.node("n1", pools.gpu("n1", here)), away.name: away}
    config = replace(pools.config(*nodes), planning=PLANNING)
    return State(config=config, serving=pools.serving(), nodes=nodes, jobs=jobs, promises=promises, now=10_000.0)


def of(job: QueuedJob, account: str) -> QueuedJob:
    return replace(job, account=account)


PHYSICS = promise("3g.40gb", count=2, account="physics")
RUNS = tuple(of(pools.running(nth, "3g.40gb", on=("n2",)), "physics") for nth in (1, 2))
WAIT = (of(pools.pending(8, "3g.40gb", priority=9), "bio"), of(pools.pending(9, "3g.40gb", priority=5), "physics"))


def offered(decision: Decision, node: str) -> list[str]:
    return [offer.gres_class for offer in decision.offers[node]]


def test_what_an_accounts_jobs_have_on_nodes_that_did_not_tell_yet_is_not_lacking() -> None:
    decision = decide(begun(PHYSICS, here=HALVES, jobs=(*RUNS, *WAIT), away=expected("n2")))
    assert offered(decision, "n1") == ["3g.40gb", "3g.40gb"]
    assert (decision.first, decision.recuts.kept) == ({}, frozenset())


def test_nobody_is_put_first_and_nothing_cut_for_a_guarantee_before_all_have_told_once() -> None:
    idle = promise("3g.40gb", count=2, idle=True)
    state = begun(PHYSICS, idle, here=MIXED, jobs=WAIT[:1], away=expected("n2"))
    assert not decide(state).recuts.targets
    told = replace(state, nodes={**state.nodes, "n2": replace(state.nodes["n2"], agent=Agent.AWAY)})
    assert decide(told).recuts.targets
    waits = begun(PHYSICS, here=HALVES, jobs=WAIT, away=expected("n2"))
    assert decide(waits).first == {}
    assert WITHHELD in offered(decide(waits), "n1")
    once = begun(PHYSICS, here=HALVES, jobs=WAIT, away=expected("n2", spoke=True))
    assert decide(once).first == {9: 10}


def test_what_is_held_is_counted_once_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many guarantees there are, and whoever asks: there may be 100, and 56,000 slices."""
    counted: list[State] = []

    def counting(state: State) -> Held:
        counted.append(state)
        return held(state)

    for where in ("decide", "question"):
        monkeypatch.setattr(f"slurm_plugin.controller.{where}.held", counting)
    idle = promise("3g.40gb", count=4, idle=True)
    state = begun(PHYSICS, idle, here=MIXED, jobs=WAIT, away=expected("n2", spoke=True))
    assert decide(state).recuts.targets
    assert len(counted) == 1


@pytest.mark.parametrize(
    ("asked", "account", "counted"),
    [("3g.40gb", "physics", 1), ("3g.40gb", "bio", 0), ("m40", "physics", 1), ("1g.10gb", "physics", 0)],
)
def test_a_job_counts_wherever_its_class_allows(asked: str, account: str, counted: int) -> None:
    """Which slice it has is not known yet."""
    state = begun(PHYSICS, here=SEVEN, jobs=(of(pools.running(1, asked, on=("n2",)), account),), away=expected("n2"))
    assert [one.held for one in guarantees(state, {})] == [counted]


def test_a_job_is_counted_by_its_grant_alone_once_there_is_one() -> None:
    away = replace(
        pools.node("n2", pools.gpu("n2", HALVES), grants=[pools.grant(1, "m40", "MIG-n2-3g.40gb-0")]),
        agent=Agent.EXPECTED,
    )
    state = begun(PHYSICS, here=SEVEN, jobs=(of(pools.running(1, "m40", on=("n2",)), "physics"),), away=away)
    assert held(state).of(PHYSICS, state.serving.profiles) == 1
    anybody = promise("3g.40gb", count=2)
    assert held(state).of(anybody, state.serving.profiles) == 1
