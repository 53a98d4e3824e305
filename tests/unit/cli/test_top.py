"""A frame of `vgpu top` shows the pool, what waits and what is planned, and nothing that a terminal would obey."""

from slurm_plugin.cli.convert import pool_view
from slurm_plugin.cli.top import CLASSES_MAX, PROBLEMS_MAX, fitted, top_lines
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from tests.unit.cli.pools import status

NOW = 2000.0


def frame(pool: pb.PoolStatus) -> list[str]:
    return top_lines(pool_view(pool), str, NOW, str)


def test_gpus_are_bars_with_their_jobs() -> None:
    lines = frame(status())
    (gpu,) = [line for line in lines if line.startswith("n1 ")]
    assert gpu.split() == ["n1", "MIXED", "0", "[####][-][~]..", "1/3", "12"]
    assert "1 node  3 slices (1 busy, 1 idle, 1 withheld)" in lines[0]


def test_what_waits_is_counted_by_class_the_most_first() -> None:
    pool = status()
    for job in range(3):
        pool.pending.append(pb.PendingJob(job_id=job, uid=job % 2, priority=job, gres_class="m40", count=2, nodes=2))
    lines = frame(pool)
    at = next(nth for nth, line in enumerate(lines) if line.startswith("WAITS"))
    assert [line.split() for line in lines[at : at + 3]] == [
        ["WAITS", "JOBS", "USERS", "SLICES", "PRIORITY"],
        ["vgpu:m40", "3", "2", "12", "2"],
        ["vgpu:m20", "1", "1", "2", "99"],
    ]


def test_nothing_waits_and_nothing_is_planned() -> None:
    pool = status()
    del pool.pending[:]
    lines = frame(pool)
    assert "nothing waits" in lines
    assert "plan: no re-cut" in lines


def test_the_plan_and_a_pause_are_told() -> None:
    pool = status()
    pool.plan = "nothing changes: \x1b]0;title"
    pool.pause.CopyFrom(pb.Pause(since=1000, uid=0, reason="driver"))
    lines = frame(pool)
    assert "plan: nothing changes: \\x1b]0;title" in lines
    assert lines[1] == "re-cutting is paused since 1000.0 by 0: driver"
    assert all(line.isprintable() for line in lines)


def test_a_pool_that_is_only_observed_says_so() -> None:
    pool = status()
    pool.mode = "observe"
    assert frame(pool)[1] == "the pool is only observed: nothing is changed"


def test_long_lists_are_cut_and_counted() -> None:
    pool = status()
    pool.problems.extend(f"p{nth}" for nth in range(PROBLEMS_MAX + 2))
    pool.pending.extend(pb.PendingJob(job_id=n, gres_class=f"c{n}", count=1) for n in range(CLASSES_MAX + 4))
    lines = frame(pool)
    assert sum(line.startswith("problem: p") for line in lines) == PROBLEMS_MAX
    assert "problem: 2 more (vgpu status)" in lines
    assert "5 more classes" in lines


def test_a_gpu_out_of_use_and_a_node_without_its_agent_say_so() -> None:
    pool = status()
    pool.nodes[0].inventory.gpus[0].fault = "quarantined"
    (gpu,) = [line for line in frame(pool) if line.startswith("n1 ")]
    assert gpu.endswith("FAULT 12")
    pool.nodes[0].agent_connected = False
    pool.nodes[0].inventory.Clear()
    (gpu,) = [line for line in frame(pool) if line.startswith("n1 ")]
    assert gpu.endswith("agent away")


def test_a_small_window_shows_the_first_lines_and_how_many_there_are_more() -> None:
    lines = ["a", "b" * 9, "c", "d"]
    assert fitted(lines, 80, 4) == lines
    assert fitted(lines, 6, 4) == ["a", "bbb...", "c", "d"]
    assert fitted(lines, 80, 3) == ["a", "b" * 9, "... 2 more lines (vgpu status)"]
    assert [len(fitted(lines, 2, room)) for room in range(4)] == [0, 1, 2, 3]
