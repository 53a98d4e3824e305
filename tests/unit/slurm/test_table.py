import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.errors import SlurmError
from slurm_plugin.slurm.table import CELL, cells, lines, parse_table, squeue_format, squeue_letters

MARK = "~kXqRtYuP"
SIGNS = st.sampled_from(["\x1e", "\x1f", "\n", "~", ".", ","])
FREE = (st.text() | st.lists(SIGNS).map("".join)).filter(lambda text: MARK not in text and "%" not in text)


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


def printed(rows: list[list[str]]) -> str:
    """As squeue prints `squeue_letters` of two fields."""
    form = squeue_letters("ab", MARK)
    return "".join(filled(form, {"%a": a, "%b": b}) for a, b in rows)


def filled(form: str, fields: dict[str, str]) -> str:
    for letter, text in fields.items():
        form = form.replace(letter, text)
    return f"{form}\n"


def seen(field: str) -> str:
    return field.translate({0x1E: "?", 0x1F: "?"}).strip()


@given(st.lists(st.lists(FREE, min_size=2, max_size=2)))
def test_no_text_in_a_field_makes_or_hides_a_line(rows: list[list[str]]) -> None:
    said = [[seen(field) for field in row] for row in rows]
    assert [cells(line, 2) for line in lines(printed(rows), MARK)] == said


@given(st.lists(st.tuples(st.integers(), st.integers(), FREE, FREE)))
def test_nor_does_one_behind_fields_that_slurm_alone_writes(rows: list[tuple[int, int, str, str]]) -> None:
    form = squeue_letters("xyab", MARK, plain=2)
    marks = ("%x", "%y", "%a", "%b")
    text = "".join(filled(form, dict(zip(marks, map(str, row), strict=True))) for row in rows)
    said = [[str(x), str(y), seen(a), seen(b)] for x, y, a, b in rows]
    assert [cells(line, 4) for line in lines(text, MARK, plain=2)] == said


def test_a_line_is_the_same_text_whatever_the_mark() -> None:
    rows = [["1", "x"], ["2", "y"]]
    assert lines(printed(rows), MARK) == lines(printed(rows).replace(MARK, "~other"), "~other") == ["1\x1fx", "2\x1fy"]


@pytest.mark.parametrize("text", [f"1{MARK},2{MARK}.\n3{MARK},", f"1{MARK},2{MARK}.\n3", "slurm_load_jobs error"])
def test_a_cut_answer_has_no_lines(text: str) -> None:
    with pytest.raises(SlurmError):
        lines(text, MARK)


def test_a_line_with_another_number_of_fields_is_an_error() -> None:
    with pytest.raises(SlurmError):
        cells(CELL.join("abc"), 2)
