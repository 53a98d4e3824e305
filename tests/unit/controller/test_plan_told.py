"""What a plan says beside its GPUs: what it comes to, and whom it does not serve."""

from slurm_plugin.controller.recuts import Recuts, Waiting
from slurm_plugin.controller.wire import JOBS_TOLD, plan_message


def test_jobs_that_are_not_served_are_named_the_first_ones_and_then_counted() -> None:
    jobs = tuple(range(1, JOBS_TOLD + 3))
    recuts = Recuts(waiting=(Waiting(jobs=(7,), why="no room"), Waiting(jobs=jobs, why="in the way")))
    told = plan_message((), {"": ("p",), "n1": ("q",)}, recuts, "nothing changes")
    assert list(told.waiting) == [
        "job 7: no room",
        f"jobs {', '.join(map(str, jobs[:JOBS_TOLD]))} and 2 more: in the way",
    ]
    assert (told.why, list(told.problems)) == ("nothing changes", ["p", "n1: q"])
