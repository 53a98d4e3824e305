"""Pause, history and the release of held jobs on a real Slurm, with layouts that follow the queue."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.lab import commands
from slurm_plugin.lab.people import ensure_people
from slurm_plugin.lab.site import LabSpec
from slurm_plugin.slurm.gres import format_gres, parse_gres
from tests.e2e.live import Live, name_of_this_run

pytestmark = pytest.mark.slurm

SEVENTHS = ("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}", "{1g.10gb: 7}")
A_HALF = ("{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}", "{3g.40gb: 1}")
FOLLOW = "planning: {follow: queue, batch_window_s: 0.2, hysteresis_s: 1}\n"


@pytest.fixture(scope="module")
def _one() -> Iterator[Live]:
    """One node with one H100."""
    ensure_people()
    base = Path(tempfile.mkdtemp(prefix="labs", dir="/run"))
    base.chmod(0o755)
    name = name_of_this_run().replace("e2e", "pause")
    try:
        yield Live(commands.up(LabSpec(name=name, nodes=1, gpus=1), base))
    finally:
        commands.down(name, base)


@pytest.fixture
def one(_one: Live) -> Iterator[Live]:
    follow(_one, SEVENTHS)
    _one.until(lambda: _one.published("n1").get("1g.10gb") == 7, "it is cut in sevenths")
    yield _one
    _one.until(lambda: _one.vgpu("resume").code == 0, "it goes on")
    _one.settle()


def follow(live: Live, layout: tuple[str, str]) -> None:
    ran = live.apply(live.policy(layout) + FOLLOW)
    assert ran.code == 0, ran.err


def document(live: Live, *argv: str) -> dict[str, Any]:
    """Empty while there is no controller."""
    told: dict[str, Any] = json.loads(live.vgpu(*argv, "--json").out or "{}")
    return told


def test_while_it_is_paused_nothing_is_cut_and_jobs_go_on(one: Live) -> None:
    assert one.vgpu("pause", "a new driver").code == 0
    waits = one.submit("bob", "--gres=vgpu:3g.40gb")
    small = one.submit("alice", "--gres=vgpu:1g.10gb")
    one.wait_sees("alice", small)
    paused = document(one, "status")["pause"]
    assert (paused["uid"], paused["reason"]) == (0, "a new driver")
    assert [f["code"] for f in document(one, "doctor")["findings"]] == ["paused"]
    commands.kill(one.lab.name, "controller", one.base)
    one.until(lambda: document(one, "status").get("pause") == paused, "the next controller knows it")
    one.until(lambda: [gpu["action"] for gpu in document(one, "plan").get("gpus", ())] == ["change"], "it is planned")
    assert one.state(waits) == "PENDING"
    assert len(one.slices()) == 7
    assert one.vgpu("resume", user="bob").code == 6
    assert one.vgpu("resume").code == 0
    one.wait_sees("bob", waits)
    assert "3g.40gb" in one.vgpu("history", user="bob").out  # anybody may ask
    entries = document(one, "history", "--node", "n1")["entries"]
    planned, changed = [entry for entry in entries if "3g.40gb" in entry["why"]][-2:]
    assert (planned["what"], changed["what"]) == ("planned", "changed")
    assert changed["created"][0].startswith("3g.40gb@")
    assert set(changed["destroyed"]) < {f"1g.10gb@{start}" for start in range(7)}
    assert 0 < changed["took_s"] < 60


def test_a_job_that_slurm_holds_for_a_class_that_is_not_there_is_released(one: Live) -> None:
    one.vgpu("pause")  # before anything is cut for them
    held, kept = one.submit("alice", "--gres=vgpu:3g.40gb"), one.submit("alice", "--gres=vgpu:3g.40gb", "--hold")
    for job in (held, kept):
        moved = ("scontrol", "update", f"jobid={job}", "partition=gpu")
        one.until(lambda: one.run("root", *moved).code == 0, "it is moved: newer Slurm refuses that for a moment")  # noqa: B023
    one.until(lambda: one.reason(held) == "BadConstraints", "Slurm holds it")
    bob = one.submit("bob", "--gres=vgpu:3g.40gb")
    one.vgpu("resume")
    one.wait_sees("bob", bob)
    one.wait_sees("alice", held)
    assert (one.state(kept), one.reason(kept)) == ("PENDING", "JobHeldUser")
    released = [entry["why"] for entry in document(one, "history")["entries"] if entry["what"] == "released"]
    assert [why.split(":")[0] for why in released] == [f"job {held}"]


def test_whether_a_guarantee_was_ever_broken_is_on_record(one: Live) -> None:
    """It lacks its half until that is cut, and never again, whatever is cut beside it."""
    promised = FOLLOW.replace("}\n", ", guarantees: {class 3g.40gb: never fewer than 1 idle}}\n")
    assert one.apply(one.policy(SEVENTHS) + promised).code == 0
    one.until(lambda: "3g.40gb" in [each.profile for each in one.slices().values()], "the half is cut")
    small = one.submit("alice", "--gres=vgpu:1g.10gb", "--array=1-8", script="sleep 1")
    quarter = one.submit("bob", "--gres=vgpu:2g.20gb", script="sleep 1")
    one.until(lambda: not one.slurm("squeue", "-h", "-j", f"{small},{quarter}", "-o", "%i"), "all have had their turn")
    kept = [entry for entry in document(one, "history")["entries"] if entry["what"] == "guarantee"]
    assert {entry["guarantee"] for entry in kept} == {"class 3g.40gb: never fewer than 1 idle"}
    assert [(entry["have"], entry["why"]) for entry in kept] == [(0, "lacks 1"), (1, "0 to spare")]


def test_without_a_controller_jobs_start_on_what_it_left_and_slices_are_cut_for_them(one: Live) -> None:
    assert one.apply(one.policy(A_HALF)).code == 0
    one.until(lambda: one.published("n1").get("3g.40gb") == 1 and len(one.slices()) == 1, "one half, the rest is room")
    follow(one, A_HALF)
    half = one.submit("alice", "--gres=vgpu:3g.40gb")
    one.wait_sees("alice", half)
    commands.stop(one.lab.name, "controller", one.base)
    try:
        text = one.slurm("scontrol", "-o", "show", "node", "n1").partition(" Gres=")[2].partition(" ")[0]
        items = [item for item in parse_gres(text) if item.type != "pad"]
        pad = next(item.count for item in parse_gres(text) if item.type == "pad")
        more = f"{format_gres(items)},vgpu:2g.20gb:1,vgpu:pad:{pad - 1}"
        one.slurm("scontrol", "update", "nodename=n1", f"gres={more}")
        quarter = one.submit("bob", "--gres=vgpu:2g.20gb")
        ((_, uuids),) = one.wait_sees("bob", quarter)
        assert one.profiles(uuids) == ["2g.20gb"]
        assert one.state(half) == "RUNNING"
    finally:
        commands.start(one.lab.name, "controller", one.base)
    one.until(lambda: document(one, "status") != {} and one.counts_are_right(), "the controller takes it as it is")
    assert one.state(quarter) == "RUNNING"
