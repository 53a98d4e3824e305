"""What a user hears of others' jobs where Slurm keeps them private."""

from dataclasses import replace

import pytest

from slurm_plugin.cli.convert import pool_view
from slurm_plugin.cli.text import job_lines, others_line, slice_note, status_lines
from slurm_plugin.cli.view import SliceState, job_view
from slurm_plugin.controller.discretion import of_explanation, of_history, of_plan, of_status
from slurm_plugin.explanation import Blocker, Change, Explanation, Why, lines
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

OWN = frozenset({5, 9})
THEIRS = "4711"  # the number of another user's job
TOLD = f"1g.10gb@0 waits for job {THEIRS}"


def status() -> pb.PoolStatus:
    """Job 5 is one's own, and holds a slice beside one of another user; job 9 waits with three of theirs."""
    instances = [
        pb.Instance(profile="1g.10gb", start=0, size=1, uuid="MIG-own", unused_since=3.0),
        pb.Instance(profile="1g.10gb", start=1, size=1, uuid="MIG-theirs", unused_since=4.0),
        pb.Instance(profile="1g.10gb", start=2, size=1, uuid="MIG-left", foreign=True, held_by=f"job {THEIRS}"),
    ]
    grants = [
        pb.Grant(job_id=5, started_at=1, uid=1000, gres_class="1g.10gb", count=1, slices=["MIG-own"], made_at=2.0),
        pb.Grant(
            job_id=int(THEIRS), started_at=1, uid=4712, gres_class="m10", count=1, slices=["MIG-theirs"], made_at=2.0
        ),
    ]
    alarms = [f"job {THEIRS}: its grant /grants/{THEIRS}.json can't be read", "job 5: its grant can't be read"]
    inventory = pb.Inventory(
        node="n1",
        gpus=[pb.Gpu(uuid="GPU-a", instances=instances)],
        grants=grants,
        waiting=[pb.Waiting(job_id=int(THEIRS), gres_class="m10"), pb.Waiting(job_id=9)],
        garbled=[int(THEIRS), 5],
        alarms=alarms,
    )
    node = pb.NodeStatus(node="n1", agent_connected=True, inventory=inventory, problems=["2 of 3", *alarms])
    return pb.PoolStatus(
        pool="hpc",
        nodes=[node],
        pending=[pb.PendingJob(job_id=job, uid=4712, gres_class="m20") for job in (9, int(THEIRS), 4713, 4714)],
        problems=["Slurm is away", f"job {THEIRS} lost its prolog"],
        plan=f"cuts 1 GPU; first job 9, job {THEIRS}",
    )


def test_of_others_a_status_tells_that_they_hold_slices_and_how_many_wait() -> None:
    told = of_status(status(), OWN)
    assert THEIRS not in str(told)
    assert "4712" not in str(told.nodes)
    node = told.nodes[0]
    own = "job 5: its grant can't be read"
    assert (list(node.problems), list(node.inventory.alarms)) == (["2 of 3", own], [own])
    assert node.inventory.grants[0] == status().nodes[0].inventory.grants[0]
    assert [job.job_id for job in told.pending] == [9]
    assert ([prolog.job_id for prolog in node.inventory.waiting], list(node.inventory.garbled)) == ([9], [5])
    assert (told.others, list(told.problems), told.plan) == (3, ["Slurm is away"], "cuts 1 GPU; first other jobs")
    assert [one.unused_since for one in node.inventory.gpus[0].instances] == [3.0, 0.0, 0.0]


def test_to_whom_may_hear_all_nothing_is_kept_back() -> None:
    assert of_status(status(), None) == status()
    assert of_plan(pb.PlanReply(why=TOLD), None) == pb.PlanReply(why=TOLD)


def test_the_command_line_shows_such_a_slice_as_busy_and_names_nobody() -> None:
    pool = pool_view(of_status(status(), OWN))
    (gpu,) = pool.nodes[0].gpus
    assert [piece.state for piece in gpu.slices] == [SliceState.BUSY, SliceState.BUSY, SliceState.HELD]
    assert [slice_note(piece) for piece in gpu.slices] == ["1g.10gb job 5", "1g.10gb busy", "1g.10gb held by somebody"]
    assert [grant.job_id for grant in pool.nodes[0].grants] == [5]
    shown = status_lines(pool, str, now=10.0)
    assert others_line(pool) in shown
    assert others_line(pool) == "3 jobs of other users wait"
    assert others_line(replace(pool, others=1)) == "1 job of other users waits"
    own = job_view(pool, 5)
    assert own is not None
    assert job_lines(own, str, 10.0)[0].startswith("job 5 of 1000 on n1")
    assert job_view(pool, int(THEIRS)) is None


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        (f"waits for 1g.10gb@0 (job {THEIRS})", "waits for 1g.10gb@0 (other jobs)"),
        (f"keeps room, and waits for job 5, job {THEIRS}", "keeps room, and waits for other jobs"),
        ("room is kept for it until jobs 5, 9 end", "room is kept for it until jobs 5, 9 end"),
        (f"jobs {THEIRS}, 4713 and 8 more", "other jobs"),
        (f"1g.10gb@0 (job 5+{THEIRS})", "1g.10gb@0 (other jobs)"),
        ("2 jobs 3 times", "2 other jobs times"),
        ("room for 3 jobs on 2 GPUs", "room for 3 jobs on 2 GPUs"),
    ],
)
def test_a_reason_names_no_job_of_others(text: str, heard: str) -> None:
    assert of_plan(pb.PlanReply(gpus=[pb.GpuPlan(why=text)], why=text), OWN) == pb.PlanReply(
        gpus=[pb.GpuPlan(why=heard)], why=heard
    )
    assert of_history(pb.HistoryReply(entries=[pb.HistoryEntry(why=text)]), OWN).entries[0].why == heard


def test_whom_a_plan_does_not_serve_is_told_of_ones_own_jobs() -> None:
    reply = pb.PlanReply(waiting=["job 9: no room", f"jobs 9, {THEIRS}: no room"], problems=[TOLD, "n1: away"])
    assert of_plan(reply, OWN) == pb.PlanReply(waiting=["job 9: no room"], problems=["n1: away"])


def test_an_explanation_says_where_and_until_when_and_not_whose_job_is_in_the_way() -> None:
    blockers = tuple(Blocker(job_id=job, node="n1", gpus=(0,), ends_at=60) for job in (5, int(THEIRS)))
    change = Change(node="n1", gpu=0, creates=("2g.20gb",), why=TOLD)
    whole = Explanation(
        job_id=9,
        uid=1000,
        gres_class="m20",
        count=1,
        nodes=1,
        tasks=1,
        priority=1,
        submitted_at=1,
        why=Why.BUSY,
        reason="PartitionDown",
        blockers=blockers,
        holders=2,
        free_at=60,
        change=change,
        planner=TOLD,
    )
    text = "\n".join(lines(of_explanation(whole, OWN), str, "alice"))
    assert THEIRS in "\n".join(lines(whole, str, "alice"))
    assert THEIRS not in text
    assert "job 5 on n1:0 (until 60), another user's on n1:0 (until 60)" in text
    assert of_explanation(whole, None) == whole
