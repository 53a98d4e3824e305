"""Which jobs have lost their prologs, and which are left alone because nobody can know."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.prologs import IN_PROLOG, LONGEST_S, RESTARTED_S, lost_prologs
from slurm_plugin.controller.state import Agent, NodeState, State
from slurm_plugin.pool import Mode, StuckProlog
from slurm_plugin.ports import QueuedJob
from tests.unit.controller import pools
from tests.unit.controller.pools import SEVEN, gpu, grant, node, running, slurm_node

STARTED = 1000
SLURMD = STARTED + 5  # its slurmd was killed in the prolog, and is back


def job(*, reason: str = IN_PROLOG, **more: Any) -> QueuedJob:
    return replace(running(7, "1g.10gb", started_at=STARTED), reason=reason, **more)


def one(name: str = "n1", *, slurmd_at: int = SLURMD, bound_at: float | None = None) -> NodeState:
    grants = () if bound_at is None else (replace(grant(7, "1g.10gb", started_at=STARTED), made_at=bound_at),)
    slurm = replace(slurm_node(name), slurmd_started_at=slurmd_at)
    return node(name, gpu(name, SEVEN), grants=grants, slurm=slurm)


def state(*nodes: NodeState, jobs: tuple[QueuedJob, ...] = (), now: float) -> State:
    return State(
        config=pools.config(*(n.name for n in nodes)),
        serving=pools.serving(),
        nodes={n.name: n for n in nodes},
        jobs=jobs or (job(on_nodes=tuple(n.name for n in nodes)),),
        now=now,
    )


def nodes_of(found: State) -> list[tuple[str, ...]]:
    return [lost.nodes for lost in lost_prologs(found) if not lost.ended]


def test_a_prolog_that_its_slurmd_did_not_live_to_see_end_is_lost_some_time_after_the_next_slurmd_started() -> None:
    assert nodes_of(state(one(), now=SLURMD + RESTARTED_S - 1)) == []
    assert nodes_of(state(one(), now=SLURMD + RESTARTED_S)) == [("n1",)]


def test_a_slice_that_such_a_prolog_got_since_does_not_make_its_job_start() -> None:
    bound_at = SLURMD + 30.0
    assert nodes_of(state(one(bound_at=bound_at), now=bound_at + RESTARTED_S - 1)) == []
    assert nodes_of(state(one(bound_at=bound_at), now=bound_at + RESTARTED_S)) == [("n1",)]


def test_a_prolog_of_the_sites_own_may_take_long_before_and_after_ours_under_the_slurmd_that_began_it() -> None:
    before = STARTED - 100
    assert nodes_of(state(one(slurmd_at=before), now=STARTED + LONGEST_S - 1)) == []
    assert nodes_of(state(one(slurmd_at=before), now=STARTED + LONGEST_S)) == [("n1",)]
    ours = one(slurmd_at=before, bound_at=STARTED + 9.0)
    assert nodes_of(state(ours, now=STARTED + 9 + LONGEST_S - 1)) == []
    assert nodes_of(state(ours, now=STARTED + 9 + LONGEST_S)) == [("n1",)]


def test_one_node_of_two_is_enough() -> None:
    well = one("n2", slurmd_at=STARTED - 100, bound_at=STARTED + 1.0)
    assert nodes_of(state(one(), well, now=SLURMD + RESTARTED_S)) == [("n1",)]


@pytest.mark.parametrize(
    "unknown",
    [
        lambda there: replace(there, agent=Agent.AWAY),
        lambda there: replace(there, agent=Agent.EXPECTED),
        lambda there: replace(there, fault="disk full"),
        lambda there: replace(there, view=replace(there.view, waiting=frozenset({7}))),
        lambda there: replace(there, view=replace(there.view, garbled=frozenset({7}))),
    ],
    ids=["away", "expected", "faulty", "keeps-it-waiting", "garbled-grant"],
)
def test_nothing_is_lost_where_an_agent_does_not_tell_or_keeps_it_waiting(
    unknown: Callable[[NodeState], NodeState],
) -> None:
    now = STARTED + 2 * LONGEST_S
    assert nodes_of(state(one(), unknown(one("n2")), now=now)) == []
    assert nodes_of(state(one(), one("n2"), now=now)) == [("n1", "n2")]


@pytest.mark.parametrize(
    "other",
    [
        {"state": "SUSPENDED"},
        {"state": "CONFIGURING"},
        {"state": "COMPLETING"},
        {"partitions": ("other",)},
        {"gres": (pools.vgpu(""),)},
        {"gres": (pools.vgpu("big"),)},
        {"on_nodes": ("n1", "elsewhere")},
    ],
    ids=str,
)
def test_jobs_that_are_not_in_their_prolog_or_not_the_pools_are_left_alone(other: dict[str, Any]) -> None:
    assert nodes_of(state(one(), jobs=(job(),), now=STARTED + 2 * LONGEST_S)) == [("n1",)]
    assert nodes_of(state(one(), jobs=(job(**other),), now=STARTED + 2 * LONGEST_S)) == []


def test_a_lost_prolog_is_told_and_sent_back_unless_the_policy_is_to_report() -> None:
    whole = state(one(), now=SLURMD + RESTARTED_S)
    decision = decide(whole)
    assert [lost.job_id for lost in decision.lost] == [7]
    assert decision.problems["n1"] == ("job 7 will never start, its prolog was lost here: it is sent back",)
    reports = replace(whole.config, stuck_prolog=StuckProlog.REPORT)
    observes = replace(whole.config, mode=Mode.OBSERVE)
    for config in (reports, observes):
        told = decide(replace(whole, config=config))
        assert not told.lost
        assert told.problems["n1"] == ("job 7 will never start, its prolog was lost here: scontrol requeue it",)
