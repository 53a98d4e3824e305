"""When Slurm is asked anew which run a job's id is of, since it may be another one's by now."""

import os
import time

import pytest

from slurm_plugin.agent.peer import Peer, StepProcess
from slurm_plugin.agent.reuse import PROMPT_S, Reuse
from slurm_plugin.model import RunKey

TICKS_S = os.sysconf("SC_CLK_TCK")
UID = 1000


class Node:
    def __init__(self) -> None:
        self.known: dict[int, RunKey] = {}
        self.ended: set[StepProcess] = set()
        self.reuse = Reuse(self.known.get, lambda step: step not in self.ended)
        self.pid = 0

    def start(self, job_id: int, *, ago_s: float = 0.0) -> RunKey:
        self.known[job_id] = RunKey(job_id=job_id, started_at=int(time.time() - ago_s), uid=UID)
        return self.known[job_id]

    def step(self, job_id: int, step: str) -> StepProcess:
        """Another slurmstepd, started now."""
        self.pid += 1
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_S)
        return StepProcess(job_id=job_id, step=step, pid=self.pid, started=ticks)

    def asks(self, step: StepProcess, uid: int = UID) -> bool:
        return self.reuse.is_likely(self.known[step.job_id], step, Peer(pid=1, uid=uid))


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_run_that_waited_for_its_slices_is_asked_about_when_its_step_comes_long_after_those(node: Node) -> None:
    run = node.start(7, ago_s=60)
    batch, peer = node.step(7, "batch"), Peer(pid=1, uid=UID)
    assert not node.reuse.is_likely(run, batch, peer, since=time.time())
    node.reuse = Reuse(node.known.get, lambda _step: True)
    assert node.reuse.is_likely(run, batch, peer, since=time.time() - 2 * PROMPT_S)


def test_a_run_and_its_steps_as_they_are_every_day_cost_no_question(node: Node) -> None:
    node.start(7)
    for step in (node.step(7, "batch"), node.step(7, "0"), node.step(7, "1"), node.step(7, "2")):
        assert not node.asks(step)
        assert not node.asks(step), "another task of it"
    node.start(7, ago_s=-5)
    assert not node.asks(node.step(7, "batch")), "it was requeued, and its prolog has told of the next run"


def test_a_first_step_long_after_its_run_began_is_asked_about_once(node: Node) -> None:
    node.start(7, ago_s=PROMPT_S + 2)
    assert node.asks(node.step(7, "batch"))
    assert not node.asks(node.step(7, "0"))


@pytest.mark.parametrize("name", ["batch", "interactive", "extern", "0"])
def test_a_first_step_that_comes_again_is_another_runs(node: Node, name: str) -> None:
    node.start(7)
    assert not node.asks(node.step(7, name))
    second = node.step(7, name)
    assert node.asks(second)
    assert not node.asks(second)


def test_a_batch_script_after_another_step_is_another_runs(node: Node) -> None:
    node.start(7)
    assert not node.asks(node.step(7, "0"))
    assert node.asks(node.step(7, "batch"))


@pytest.mark.parametrize("name", ["0", "5"])
def test_a_step_after_the_batch_scripts_end_is_another_runs(node: Node, name: str) -> None:
    node.start(7)
    batch = node.step(7, "batch")
    assert not node.asks(batch)
    node.ended.add(batch)
    assert node.asks(node.step(7, name))


def test_another_users_step_is_another_runs_and_asked_about_once(node: Node) -> None:
    node.start(7)
    assert not node.asks(node.step(7, "batch"))
    step = node.step(7, "3")
    assert node.asks(step, uid=UID + 1)
    assert not node.asks(step, uid=UID + 1)


def test_no_more_jobs_are_remembered_than_are_known(node: Node) -> None:
    node.start(1)
    node.asks(node.step(1, "batch"))
    for job_id in range(2, 500):
        node.start(job_id)
        node.asks(node.step(job_id, "batch"))
        del node.known[job_id]
    assert len(node.reuse._seen) <= 3
    assert node.asks(node.step(1, "batch")), "the one that still runs is remembered"
