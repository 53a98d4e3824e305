"""Jobs that wait and can never start take no slice from those that can."""

import time
from collections.abc import Iterator

import pytest

from slurm_plugin.controller import loans
from tests.e2e.live import Live

pytestmark = pytest.mark.slurm

A_NODE = 16  # slices of one, as the lab lays it out
PASSES_S = 5.0  # for a few passes, a scheduling round and a prolog, on a busy machine


def fill(live: Live, node: str) -> None:
    """Every slice of a node has a job."""
    job = live.submit("bob", "--gres=vgpu:10gb", f"-w{node}", f"--array=1-{A_NODE}")
    live.until(lambda: len(live.slurm("squeue", "-h", "-r", "-t", "R", "-j", job).splitlines()) == A_NODE, "n1 is full")


@pytest.fixture
def maintenance(live: Live) -> Iterator[None]:
    """n2 is taken in an hour: whoever sets no time limit can't start there, and Slurm does not say that."""
    when = ("starttime=now+60minutes", "duration=60", "flags=maint", "users=root")
    live.slurm("scontrol", "create", "reservation", "reservationname=later", "nodes=n2", *when)
    yield
    live.slurm("scontrol", "delete", "reservationname=later")


def test_jobs_that_exclude_the_node_claim_nothing_there(live: Live) -> None:
    fill(live, "n1")
    before = live.published("n2")
    stuck = live.submit("alice", "--gres=vgpu:10gb", "-xn2", f"--array=1-{A_NODE}")
    job = live.submit("bob", "--gres=vgpu:2g.20gb")
    live.wait_sees("bob", job)
    assert live.published("n2") == before
    assert set(live.state(stuck).split()) == {"PENDING"}


def test_jobs_that_can_not_start_for_a_reason_nobody_tells_lend_what_they_claim(live: Live, maintenance: None) -> None:
    fill(live, "n1")
    stuck = live.submit("alice", "--gres=vgpu:10gb", f"--array=1-{A_NODE}")
    live.until(lambda: live.published("n2").get("m10") == A_NODE, "they have claimed all there is")
    began = time.monotonic()
    job = live.submit("bob", "--gres=vgpu:2g.20gb", "--time=10")
    live.wait_sees("bob", job)
    assert time.monotonic() - began < loans.CLAIM_S + PASSES_S
    other = live.submit("bob", "--gres=vgpu:40gb", "--time=10")  # from now on at once
    began = time.monotonic()
    live.wait_sees("bob", other)
    assert time.monotonic() - began < PASSES_S
    assert set(live.state(stuck).split()) == {"PENDING"}
    live.slurm("scontrol", "update", f"jobid={stuck}", "timelimit=10")  # now they can, and get what is left
    live.until(lambda: live.published("n2").get("m10") == A_NODE - 2, "they have what is left")
    live.until(lambda: len(live.slurm("squeue", "-h", "-r", "-t", "R", "-j", stuck).splitlines()) == A_NODE - 2, "run")
