"""An entry of the history is the same after its line and after the wire; no other line is an entry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.history import Entry, History, What, from_line, to_line
from slurm_plugin.history_wire import from_wire, to_wire

NUMBER = st.integers(0, (1 << 31) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TIME = st.floats(0, 1e10)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
ENTRY = st.builds(
    Entry,
    **dict.fromkeys(("at", "took_s"), TIME),
    **dict.fromkeys(("have", "at_least", "uid"), NUMBER),
    **dict.fromkeys(("node", "gpu", "why", "error", "guarantee"), TEXT),
    **dict.fromkeys(("destroyed", "created"), TEXTS),
    what=st.sampled_from(What).map(str),
    index=st.integers(-1, 15),
)


@given(ENTRY)
def test_a_line_is_one_line_and_brings_the_entry_back(entry: Entry) -> None:
    line = to_line(entry)
    assert line.splitlines() == [line]
    assert from_line(line) == entry


@given(st.lists(ENTRY, max_size=3).map(tuple), st.booleans())
def test_the_wire_brings_the_history_back(entries: tuple[Entry, ...], more: bool) -> None:
    history = History(entries=entries, more=more)
    assert from_wire(to_wire(history)) == history


def test_what_says_nothing_is_not_written() -> None:
    assert to_line(Entry(at=1.5, what=What.STARTED)) == '{"at":1.5,"what":"started"}'


@pytest.mark.parametrize(
    "line",
    ["", "{", '{"at":1.5,"what":"star', "[]", "7", "null", '{"at":"x","what":"y"}', '{"at":1}', '{"at":[],"what":""}'],
)
def test_a_line_that_is_none_is_passed_over(line: str) -> None:
    assert from_line(line) is None


def test_what_a_later_version_writes_more_is_left_out() -> None:
    assert from_line('{"at":1,"what":"moved","colour":"red"}') == Entry(at=1.0, what="moved")
