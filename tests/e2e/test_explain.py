"""`vgpu explain` on a real Slurm: what blocks a job and until when, which limit says no, and who may ask."""

import json
import re
from typing import Any

import pytest

from tests.e2e.live import Live

pytestmark = pytest.mark.slurm

HALVES = 8  # 3g.40gb of the lab, as it is laid out: one a GPU


def explained(live: Live, job: str) -> dict[str, Any]:
    live.until(lambda: live.vgpu("explain", job).code == 0, "the controller has read of it")
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
    element = explained(live, f"{others}_3")  # by the name that squeue gives it
    assert element["why"] == "runs"
    assert str(element["job_id"]) == live.slurm("squeue", "--noheader", "--jobs", f"{others}_3", "--format=%A")
    assert f"job {others}_3 of alice on n" in live.vgpu("show", "job", f"{others}_3").out
    instead = {one["gres_class"] for one in told["instead"]}  # as what is idle is offered now
    assert "2g.20gb" in instead
    assert instead & {"1g.10gb", "m10"}
    text = live.vgpu("explain", job).out
    assert f"job {first} on n" in text
    live.slurm("scancel", first)
    live.wait_sees("bob", job)
    assert explained(live, job)["why"] == "runs"


def test_a_limit_of_slurm_is_told_and_only_to_whom_it_concerns(live: Live) -> None:
    job = live.submit("alice", "--gres=vgpu:10gb", "--hold")
    live.until(lambda: job in live.vgpu("status").out, "the controller has read it")
    assert explained(live, job)["why"] == "slurm"
    own = live.vgpu("explain", job, user="alice")
    assert "it is held, and `scontrol release` lets it go" in own.out, own.err
    other = live.vgpu("explain", job, user="bob")
    assert (other.code, other.out) == (3, "")
    assert "another user's" in other.err


def test_squeue_and_scontrol_tell_why_a_job_waits_and_then_what_it_got(live: Live) -> None:
    """Of an array too, which stays one record; the words that were there before stay."""
    halves = live.submit("alice", "--gres=vgpu:3g.40gb", "--time=5", f"--array=1-{HALVES}")
    live.until(lambda: live.state(halves).split() == ["RUNNING"] * HALVES, "every half has a job")
    job = live.submit("bob", "--gres=vgpu:3g.40gb", "--comment=own")
    array = live.submit("bob", "--gres=vgpu:3g.40gb", "--array=1-19:2")
    waits = "asked vgpu:3g.40gb [vgpu: waits: n"
    assert (explained(live, f"{array}_3")["job_id"], explained(live, f"{array}_3")["tasks"]) == (int(array), 1)
    none = live.vgpu("explain", f"{array}_4")
    assert (none.code, f"no job {array}_4 waits" in none.err) == (3, True)
    told = {job: waits, array: waits}
    live.until(lambda: all(comment(live, one).startswith(text) for one, text in told.items()), "told", limit_s=60)
    shown = live.slurm("scontrol", "-o", "show", "job", job)
    assert re.search(
        r"AdminComment=asked vgpu:3g\.40gb \[vgpu: waits: n\d GPU \d is free when job \d+ ends, by ", shown
    )
    assert " Comment=own " in shown
    assert live.slurm("squeue", "-a", "--noheader", "--jobs", array, "--format=%K") == "1-19:2"
    live.slurm("scancel", f"{halves}_[1-2]")
    live.wait_sees("bob", job)
    live.until(lambda: "[vgpu: got 3g.40gb on n" in comment(live, job), "what it got is told", limit_s=60)
    live.until(lambda: "[vgpu: got 3g.40gb on n" in comment(live, f"{array}_1"), "... of an element too", limit_s=60)
    assert comment(live, f"{array}_3").startswith(waits)


def comment(live: Live, job: str) -> str:
    return live.slurm("squeue", "-a", "--noheader", "--jobs", job, "-O", "admin_comment:200").split("\n")[0].strip()
