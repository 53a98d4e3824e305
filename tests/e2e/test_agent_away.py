"""A node whose agent is away: jobs without slices run there, jobs with slices go back, and nothing is drained."""

from collections.abc import Iterator

import pytest

from slurm_plugin.lab import commands
from tests.e2e.live import SEE, Live, seen

pytestmark = pytest.mark.slurm

NODE = "n1"
AWAY_S = 40.0  # a prolog and a task prolog wait for an agent that may come back


@pytest.fixture
def away(live: Live) -> Iterator[Live]:
    """The controller first: it publishes no slice of such a node, and this is about jobs that start before it has."""
    daemons = ("controller", f"agent:{NODE}")
    ran = live.submit("bob", "--gres=vgpu:1g.10gb", f"-w{NODE}", script="true")
    live.wait_state(ran, "COMPLETED")  # so that a slice there is offered as what the tests ask for, whatever ran before
    for daemon in daemons:
        commands.stop(live.lab.name, daemon, live.base)
    yield live
    for daemon in daemons:
        commands.start(live.lab.name, daemon, live.base)


def test_while_the_agent_is_away_plain_jobs_run_and_slice_jobs_go_back(away: Live) -> None:
    plain = away.submit("alice", "-n2", f"-w{NODE}", script=f"{SEE}; srun echo step; exec sleep 1000")
    ours = away.submit("bob", "--gres=vgpu:1g.10gb", f"-w{NODE}")
    away.until(lambda: away.output("alice", plain).count("step") == 2, "its steps run", AWAY_S)
    assert seen(away.output("alice", plain)) == [(NODE, ("nothing",))]
    away.until(lambda: away.state(ours) == "PENDING", "it went back", AWAY_S)
    away.until(lambda: away.slurm("squeue", "--noheader", "--jobs", ours, "-O", "RestartCnt") == "1", "once", AWAY_S)
    assert away.output("bob", ours) == ""
    assert away.state(plain) == "RUNNING"
    assert "drain" not in away.node_state(NODE)


def test_a_job_that_ran_before_starts_steps_without_the_agent_and_its_mark_goes_with_it(live: Live) -> None:
    plain = live.submit("alice", f"-w{NODE}", script="echo here; until [ -e go ]; do sleep 0.1; done; srun echo step")
    live.until(lambda: "here" in live.output("alice", plain), "it runs")
    marks = live.lab.agent_socket(NODE).with_name(f"{live.lab.agent_socket(NODE).name}.plain")
    assert (marks / plain).exists()
    commands.stop(live.lab.name, f"agent:{NODE}", live.base)
    try:
        (live.home("alice") / "go").touch()
        live.until(lambda: "step" in live.output("alice", plain), "its step runs", AWAY_S)
        live.until(lambda: not (marks / plain).exists(), "its mark is gone", AWAY_S)
    finally:
        commands.start(live.lab.name, f"agent:{NODE}", live.base)
