"""`vgpu explain` on a real Slurm: what blocks a job and until when, which limit says no, and who may ask."""

import json
from typing import Any

import pytest

from tests.e2e.live import Live

pytestmark = pytest.mark.slurm

HALVES = 8  # 3g.40gb of the lab, as it is laid out: one a GPU


def explained(live: Live, job: str) -> dict[str, Any]:
    ran = live.vgpu("explain", job, "--json")
    assert ran.code == 0, ran.err
    told: dict[str, Any] = json.loads(ran.out)
    return told


def test_jobs_that_are_in_the_way_are_named_with_their_ends(live: Live) -> None:
    first = live.submit("alice", "--gres=vgpu:3g.40gb", "--time=5")
    others = live.submit("alice", "--gres=vgpu:3g.40gb", "--time=50", f"--array=2-{HALVES}")
    live.until(lambda: live.state(f"{first},{others}").split() == ["RUNNING"] * HALVES, "every half has a job")
    job = live.submit("bob", "--gres=vgpu:3g.40gb")
    live.until(lambda: explained(live, job)["why"] == "busy", "it waits for them")
    told = explained(live, job)
    assert [one["job_id"] for one in told["blockers"]] == [int(first)]
    assert told["free_at"] == live.started_at(first) + 300
    assert (told["idle"], told["holders"]) == (0, HALVES)
    assert {"2g.20gb", "1g.10gb"} <= {one["gres_class"] for one in told["instead"]}
    text = live.vgpu("explain", job).out
    assert f"job {first} on n" in text
    live.slurm("scancel", first)
    live.wait_sees("bob", job)
    assert explained(live, job)["why"] == "runs"


def test_a_limit_of_slurm_is_told_and_only_to_whom_it_concerns(live: Live) -> None:
    job = live.submit("alice", "--gres=vgpu:10gb", "--hold")
    live.until(lambda: job in live.vgpu("status").out, "the controller has read it")
    assert explained(live, job)["why"] == "slurm"
    own = live.run("alice", "vgpu", "explain", job)
    assert "it is held, and `scontrol release` lets it go" in own.out, own.err
    other = live.run("bob", "vgpu", "explain", job)
    assert (other.code, other.out) == (3, "")
    assert "another user's" in other.err
