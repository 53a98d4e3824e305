"""The one line of why a job waits."""

from dataclasses import replace

import pytest

from slurm_plugin import notice
from slurm_plugin.explanation import Blocker, Change, Explanation, Why

BASE = Explanation(
    job_id=7,
    uid=1000,
    gres_class="3g.40gb",
    count=1,
    nodes=1,
    tasks=1,
    priority=1,
    submitted_at=1,
    why=Why.BUSY,
    reason="PartitionDown",
)


def blocker(job_id: int, node: str = "n1", gpus: tuple[int, ...] = (2,), ends_at: int = 900) -> Blocker:
    return Blocker(job_id=job_id, node=node, gpus=gpus, ends_at=ends_at)


def said(one: Explanation, *, private: bool = False) -> str:
    return notice.waits(one, lambda at: f"t{at:.0f}", private=private)


def test_the_gpu_and_the_job_that_has_to_end_are_named() -> None:
    one = replace(BASE, blockers=(blocker(12),), free_at=900)
    assert said(one) == "waits: n1 GPU 2 is free when job 12 ends, by t900"
    assert said(replace(one, free_at=0)) == "waits: n1 GPU 2 is free when job 12 ends"


def test_of_many_jobs_and_nodes_a_few_are_named() -> None:
    jobs = tuple(blocker(10 + nth, f"n{nth % 6}") for nth in range(9))
    assert said(replace(BASE, blockers=jobs, free_at=900)) == (
        "waits: there is room on n0, n1, n2, n3 and 2 more when jobs 10, 11, 12, 13 and 5 more end, by t900"
    )
    twice = (blocker(12, "n1"), blocker(12, "n2"))
    assert said(replace(BASE, blockers=twice)) == "waits: there is room on n1, n2 when job 12 ends"


@pytest.mark.parametrize("free_at", [0, 900])
def test_where_slurm_keeps_jobs_private_none_is_named(free_at: int) -> None:
    one = replace(BASE, blockers=(blocker(1234),), free_at=free_at)
    assert "1234" in said(one)
    assert "1234" not in said(one, private=True)
    change = Change(node="n1", gpu=0, creates=("3g.40gb",), why="room is kept for it until job 1234 end", at=900.0)
    assert "1234" not in said(replace(one, why=Why.CHANGE, change=change), private=True)


def test_a_change_is_told_with_its_time_or_what_it_waits_for() -> None:
    change = Change(node="n1", gpu=0, creates=("3g.40gb",), why="")
    one = replace(BASE, why=Why.CHANGE, change=change)
    assert said(one) == "waits: n1 GPU 0 gets 3g.40gb"
    assert said(replace(one, blockers=(blocker(1),))) == "waits: n1 GPU 0 gets 3g.40gb when jobs there end"
    assert said(replace(one, change=replace(change, at=900.0))) == "waits: n1 GPU 0 gets 3g.40gb by t900"


def test_every_reason_has_its_own_line_and_slurms_own_reasons_have_none() -> None:
    change = Change(node="n1", gpu=0, creates=("3g.40gb",), why="")
    told = {why: said(replace(BASE, why=why, change=change if why is Why.CHANGE else None)) for why in Why}
    assert {why for why, line in told.items() if not line} == {Why.RUNS, Why.SLURM}
    lines = [line for line in told.values() if line]
    assert len(set(lines)) == len(lines)
    assert all(line.startswith("waits: ") and len(line) < 120 for line in lines)


def test_what_it_got_is_told_with_a_few_slices() -> None:
    assert notice.runs([("n1", 2, "2g.20gb")]) == "got 2g.20gb on n1 GPU 2"
    many = notice.runs([("n1", nth, "1g.10gb") for nth in range(7)])
    assert many.endswith("1g.10gb on n1 GPU 3 and 3 more")


def test_idle_slices_are_wanted_by_others_or_held_back() -> None:
    one = replace(BASE, why=Why.BEHIND, ahead=1)
    assert said(one) == "waits: jobs that come first want the idle slices too"
    assert said(replace(one, ahead=0)) == "waits: the idle slices are held back, for guarantees or other jobs"


def test_a_job_is_passed_over_for_what_it_or_another_of_its_user_did_not_do() -> None:
    one = replace(BASE, why=Why.PASSED_OVER, strikes=1, back_at=900.0)
    assert said(one) == "waits: it did not start on what was offered (a limit, CPUs, memory); others first until t900"
    assert said(replace(one, strikes=0)).startswith("waits: another job of its user did not start on what was offered")
