import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.errors import SlurmError
from slurm_plugin.slurm.table import parse_table, squeue_format

MARK = "~kXqRtYuP"


def test_each_field_is_whole_and_marked() -> None:
    assert squeue_format(("JobID", "tres-per-node"), MARK) == f"JobID:0{MARK},tres-per-node:0{MARK}"


@given(st.lists(st.lists(st.text().filter(lambda text: MARK not in text), min_size=3, max_size=3)))
def test_no_text_in_a_field_makes_or_hides_a_row(rows: list[list[str]]) -> None:
    printed = "".join("".join(field + MARK for field in row) + "\n" for row in rows)
    assert parse_table(printed, 3, MARK) == [[field.strip() for field in row] for row in rows]


@pytest.mark.parametrize("text", [f"1{MARK}2{MARK}\n3{MARK}", f"1{MARK}2{MARK}\n3", "slurm_load_jobs error"])
def test_a_cut_answer_is_no_shorter_answer(text: str) -> None:
    with pytest.raises(SlurmError):
        parse_table(text, 2, MARK)
