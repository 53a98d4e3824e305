"""A peer gets its rate, its burst, and no more, however it asks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.access.rates import Bucket, Rate

RATE = Rate(per_s=10.0, burst=20.0)


def test_a_burst_then_the_rate() -> None:
    bucket = Bucket(RATE, 100.0)
    assert [bucket.take(1, 100.0) for _ in range(20)] == [0.0] * 20
    assert bucket.take(1, 100.0) == pytest.approx(0.1)
    assert bucket.take(1, 100.05) == pytest.approx(0.05)
    assert bucket.take(1, 100.2) == 0.0


def test_idle_time_earns_no_more_than_the_burst() -> None:
    bucket = Bucket(RATE, 0.0)
    assert [bucket.take(1, 1e9) for _ in range(21)][-1] > 0


def test_what_is_larger_than_the_burst_passes_once_and_is_owed() -> None:
    bucket = Bucket(RATE, 0.0)
    assert bucket.take(50, 0.0) == 0.0
    assert bucket.take(1, 0.0) == pytest.approx(3.1)
    assert bucket.take(1, 3.1) == 0.0


@given(st.lists(st.tuples(st.floats(0.1, 30), st.floats(-5, 5)), max_size=60))
def test_never_more_than_burst_and_rate(asked: list[tuple[float, float]]) -> None:
    """Clocks that step back earn nothing."""
    bucket, now, latest, taken, largest = Bucket(RATE, 0.0), 0.0, 0.0, 0.0, 0.0
    for amount, step in asked:
        now += step
        latest = max(latest, now)
        if bucket.take(amount, now) == 0.0:
            taken += amount
            largest = max(largest, amount)
    assert taken <= RATE.burst + largest + RATE.per_s * latest + 1e-6
