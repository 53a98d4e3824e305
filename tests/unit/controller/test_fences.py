"""Which waiting jobs a fence looks at: those that come first, and no more than it has the time for."""

from dataclasses import replace

from slurm_plugin.controller.fences import OF_A_KIND, OF_A_USER, WAITING_MAX, first
from slurm_plugin.ports import QueuedJob
from tests.unit.controller.pools import pending


def choosy(uid: int, count: int, *, priority: int = 1) -> list[QueuedJob]:
    """Each stays away from another node."""
    jobs = (pending(1000 * uid + nth, "m20", priority=priority) for nth in range(count))
    return [replace(job, uid=uid, excluded_nodes=(f"n{job.job_id}",)) for job in jobs]


def test_of_jobs_that_want_the_same_the_first_are_looked_at() -> None:
    jobs = [pending(nth, "m20", priority=nth) for nth in range(OF_A_KIND + 5)]
    assert first(jobs) == jobs[:4:-1]


def test_one_users_jobs_for_other_nodes_each_keep_nobody_elses_from_being_looked_at() -> None:
    many, others = choosy(1, OF_A_USER + 5, priority=9), choosy(2, 3)
    assert first([*others, *many]) == [*many[:OF_A_USER], *others]


def test_no_more_are_looked_at_than_there_is_time_for() -> None:
    jobs = [job for uid in range(1, WAITING_MAX // OF_A_USER + 3) for job in choosy(uid, OF_A_USER)]
    assert first(jobs) == jobs[:WAITING_MAX]
