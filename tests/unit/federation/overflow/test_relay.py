"""Where the bytes of a job's stream lie in a file that has holes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.overflow.relay import lies_at

GAPS = [(10, 5), (20, 1), (30, 100)]


@pytest.mark.parametrize(
    ("offset", "at", "follow"),
    [(0, 0, 10), (9, 9, 1), (10, 15, 5), (14, 19, 1), (15, 21, 9), (23, 29, 1), (24, 130, 1 << 62)],
)
def test_what_was_lost_is_not_counted(offset: int, at: int, follow: int) -> None:
    assert lies_at(offset, GAPS) == (at, follow)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=6), st.integers(0, 200))
def test_every_byte_that_is_there_is_told_once_and_in_its_order(parts: list[tuple[int, int]], tail: int) -> None:
    there, gaps, end = list[int](), list[tuple[int, int]](), 0
    for kept, lost in parts:
        there += range(end, end + kept)
        gaps.append((end + kept, lost))
        end += kept + lost
    there += range(end, end + tail)
    told: list[int] = []
    while len(told) < len(there):
        at, follow = lies_at(len(told), gaps)
        told += range(at, min(at + follow, end + tail))
    assert told == there
