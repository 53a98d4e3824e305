"""What is reserved by a time limit is settled by the time that a job ran."""

import pytest

from federation.model.spec import JobSpec
from federation.model.states import End, Outcome
from federation.policy.money import DEFAULT_RUN_S, limit_s, settled

HOURS_2 = JobSpec(user="ann", time_limit_s=7200)
DAY_S = 86400.0


@pytest.mark.parametrize(
    ("started_at", "ended_at", "cost"),
    [
        (None, 100.0, 0.0),  # it never ran
        (100.0, 100.0 + 1800, 1.0),
        (100.0, 100.0 + 14_400, 8.0),  # longer than it was to
        (100.0, 50.0, 0.0),  # the far clock was set back
        (100.0, 1e12, 4.0 * DAY_S / 7200),  # or runs wild: no longer than there was time for
        (100.0, None, 4.0),  # nobody knows: what was reserved
    ],
)
def test_an_attempt_costs_what_it_ran(started_at: float | None, ended_at: float | None, cost: float) -> None:
    outcome = Outcome(end=End.EXITED, started_at=started_at, ended_at=ended_at)
    assert settled(4.0, HOURS_2, outcome, DAY_S) == pytest.approx(cost)


def test_a_job_without_a_limit_is_taken_to_need_an_hour() -> None:
    assert limit_s(JobSpec(user="ann")) == DEFAULT_RUN_S == 3600
