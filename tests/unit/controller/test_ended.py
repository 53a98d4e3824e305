"""Which jobs are taken for ended, though a slurmctld that was killed counts them as running."""

from dataclasses import replace

import pytest

from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.prologs import ENDED_IN_PROLOG_S, ENDED_S, IN_PROLOG, lost_prologs
from slurm_plugin.controller.state import LostProlog, NodeState, State
from tests.unit.controller.pools import SEVEN, config, gpu, grant, node, running, serving

STARTED = 1000


def state(*nodes: NodeState, now: float = STARTED + ENDED_S) -> State:
    job = replace(running(7, "1g.10gb", started_at=STARTED), on_nodes=tuple(n.name for n in nodes))
    names = [n.name for n in nodes]
    return State(config=config(*names), serving=serving(), nodes={n.name: n for n in nodes}, jobs=(job,), now=now)


def one(name: str, *, started_at: int = 0) -> NodeState:
    grants = (grant(7, "1g.10gb", f"MIG-{name}-1g.10gb-0", started_at=started_at),) if started_at else ()
    return node(name, gpu(name, SEVEN), grants=grants)


def test_a_job_past_its_prolog_that_no_agent_knows_has_ended() -> None:
    (lost,) = lost_prologs(state(one("n1"), one("n2")))
    assert (lost.job_id, lost.started_at, lost.nodes, lost.ended) == (7, STARTED, ("n1", "n2"), True)
    assert lost_prologs(state(one("n1"), one("n2"), now=STARTED + ENDED_S - 1)) == ()


@pytest.mark.parametrize(
    ("started_at", "ended"), [(STARTED, False), (STARTED - 50, True)], ids=["this", "an older one"]
)
def test_a_grant_of_its_run_on_one_node_is_enough_to_leave_it(started_at: int, ended: bool) -> None:
    assert bool(lost_prologs(state(one("n1", started_at=started_at), one("n2")))) is ended


def test_one_whose_grant_its_agent_can_not_read_is_left() -> None:
    there = one("n1")
    unread = replace(there, view=replace(there.view, garbled=frozenset({7})))
    assert (len(lost_prologs(state(there))), lost_prologs(state(unread))) == (1, ())


def test_one_that_is_remembered_in_its_prolog_has_longer() -> None:
    def found(now: float) -> tuple[LostProlog, ...]:
        there = state(one("n1"), now=now)
        return lost_prologs(replace(there, jobs=tuple(replace(job, reason=IN_PROLOG) for job in there.jobs)))

    assert found(STARTED + ENDED_IN_PROLOG_S - 1) == ()
    assert [lost.ended for lost in found(STARTED + ENDED_IN_PROLOG_S)] == [True]


def test_it_is_to_be_sent_back_and_not_told_before_slurmctld_was_asked() -> None:
    decision = decide(state(one("n1")))
    assert [lost.job_id for lost in decision.lost] == [7]
    assert not decision.problems
