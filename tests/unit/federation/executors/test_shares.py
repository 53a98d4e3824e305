"""What each job has of a host without a queue, and how long others wait for it."""

import pytest

from federation.executors.shares import Share, cpus_of, half_free_in_s

NOW = 1000.0


@pytest.mark.parametrize("share", [Share(4, 86_400.0), Share(1)])
def test_a_share_is_read_as_it_was_written(share: Share) -> None:
    assert Share.parse(share.render().decode()) == share


@pytest.mark.parametrize("text", ["", "x", "-1 -1", "9999999 9999999999999", "1 nan", "\u00b2 \u00b2", "1"])
def test_what_a_user_makes_of_it_is_one_cpu_without_an_end(text: str) -> None:
    assert Share.parse(text) == Share(1)


@pytest.mark.parametrize(
    ("taken", "wait_s"),
    [
        ((), 0.0),
        ((Share(5, NOW + 86_400),), 86_400.0),
        ((Share(1, NOW + 10), *[Share(1, NOW + 500)] * 7), 500.0),
        ((Share(4, NOW + 900), Share(4, NOW + 50)), 50.0),
        ((Share(1, NOW - 5), Share(1)), 1.0),  # it should have ended: any moment
        ((Share(8),), 0.0),
        ((Share(2, NOW + 10), Share(6)), 0.0),
    ],
)
def test_others_wait_until_half_of_it_is_free(taken: tuple[Share, ...], wait_s: float) -> None:
    assert half_free_in_s(8, taken, NOW) == wait_s
    assert cpus_of(taken) <= 8
