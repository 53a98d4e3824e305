"""A pool that fails fast is left alone, each time for longer; one success makes it good again."""

from federation.policy.breaker import FIRST_COOL_S, MAX_FAILURES, MOST_COOL_S, WINDOW_S, Breaker


def fail(breaker: Breaker, at: float, times: int = MAX_FAILURES) -> None:
    for _ in range(times):
        breaker.failed(at)


def test_one_failure_less_is_forgiven() -> None:
    breaker = Breaker()
    fail(breaker, 10.0, MAX_FAILURES - 1)
    assert breaker.cools_for(10.0) == 0


def test_many_at_once_open_it_for_a_while() -> None:
    breaker = Breaker()
    fail(breaker, 10.0)
    assert breaker.cools_for(10.0) == FIRST_COOL_S
    assert breaker.cools_for(10.0 + FIRST_COOL_S) == 0


def test_as_many_over_a_long_time_do_not() -> None:
    breaker = Breaker()
    for number in range(3 * MAX_FAILURES):
        breaker.failed(number * WINDOW_S)
    assert breaker.cools_for(3 * MAX_FAILURES * WINDOW_S) == 0


def test_each_time_for_twice_as_long_up_to_a_bound() -> None:
    breaker, times = Breaker(), []
    for round_ in range(12):
        fail(breaker, round_ * 10_000.0)
        times.append(breaker.cools_for(round_ * 10_000.0))
    assert times[:3] == [FIRST_COOL_S, 2 * FIRST_COOL_S, 4 * FIRST_COOL_S]
    assert times[-1] == MOST_COOL_S


def test_a_success_makes_it_good() -> None:
    breaker = Breaker()
    fail(breaker, 10.0)
    breaker.worked()
    assert breaker.cools_for(10.0) == 0
    fail(breaker, 20.0)
    assert breaker.cools_for(20.0) == FIRST_COOL_S
