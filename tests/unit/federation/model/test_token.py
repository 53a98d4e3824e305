"""A token is a UUID of version 7: unique by its random bits, in the order in which jobs came."""

from uuid import RFC_4122

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.model.token import MAX_MS, MAX_TASK, RANDOM_BYTES, Key, array_of, mint, of_task

MS = st.integers(0, MAX_MS)
RANDOM = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


@given(MS, RANDOM)
def test_it_is_of_version_7_and_tells_its_time(at_ms: int, random: bytes) -> None:
    token = mint(at_ms, random)
    assert (token.version, token.variant, token.int >> 80) == (7, RFC_4122, at_ms)


@given(MS, MS, RANDOM, RANDOM)
def test_a_later_one_sorts_later(one: int, other: int, a: bytes, b: bytes) -> None:
    if one != other:
        assert (mint(one, a) < mint(other, b)) == (one < other)


@given(RANDOM, RANDOM)
def test_seventy_four_random_bits_tell_two_of_one_moment_apart(a: bytes, b: bytes) -> None:
    def used(random: bytes) -> int:
        return int.from_bytes(random, "big") & ((0xFFF << 64) | ((1 << 62) - 1))

    assert (mint(0, a) == mint(0, b)) == (used(a) == used(b))


@given(MS, RANDOM, st.integers(0, MAX_TASK), st.integers(0, MAX_TASK))
def test_tasks_of_an_array_follow_each_other_under_its_name(at_ms: int, random: bytes, one: int, other: int) -> None:
    minted = mint(at_ms, random)
    token, later = of_task(minted, one), of_task(minted, other)
    assert (token.version, token.variant, token.int >> 80) == (8, RFC_4122, at_ms)
    assert (token < later) == (one < other)
    name, number = array_of(token) or ("", -1)
    assert (number, str(token).startswith(name), str(later).startswith(name)) == (one, True, True)
    assert array_of(minted) is None


@pytest.mark.parametrize("task", [-1, MAX_TASK + 1])
def test_a_task_s_number_has_room_in_its_token(task: int) -> None:
    with pytest.raises(ValueError, match="at most"):
        of_task(mint(1, bytes(10)), task)


@pytest.mark.parametrize(("at_ms", "random"), [(-1, bytes(10)), (MAX_MS + 1, bytes(10)), (0, bytes(9))])
def test_what_makes_none_is_refused(at_ms: int, random: bytes) -> None:
    with pytest.raises(ValueError, match="48 bits"):
        mint(at_ms, random)


def test_attempts_of_one_job_are_in_order() -> None:
    token = mint(1, bytes(10))
    assert Key(token, 2) < Key(token, 10)
    assert str(Key(token, 2)) == f"{token}/2"
