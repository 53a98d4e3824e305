"""docs/reports.md and docs/reports_federation.md answer every report, and each test that they name exists."""

import re
from functools import cache

import pytest

from slurm_plugin.findings import FAULTS
from tests.unit.docs.blocks import ROOT

REPORTS = {"reports.md": 34, "reports_federation.md": 47}
TEXTS = {name: (ROOT / "docs" / name).read_text() for name in REPORTS}
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TRAP = re.compile(r"^\| ([^|\d][^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS = {name: ROW.findall(text) for name, text in TEXTS.items()}
TRAPS = {name: TRAP.findall(text.partition("## Traps")[2])[2:] for name, text in TEXTS.items()}
ANSWERS = [row[-1] for rows in (ROWS, TRAPS) for found in rows.values() for row in found]
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)(?:\[([\w-]+)\])?`", "".join(TEXTS.values()))))


@cache
def _tests_of(file: str) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / "tests" / file).read_text(), re.MULTILINE))


@pytest.mark.parametrize(("name", "count"), REPORTS.items())
def test_every_report_is_there_once_in_order(name: str, count: int) -> None:
    assert [int(row[0]) for row in ROWS[name]] == list(range(1, count + 1))


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_answer_names_a_test_or_says_why_not(answer: str) -> None:
    assert "::" in answer or answer.startswith("not tested: ")


@pytest.mark.parametrize(("file", "test", "code"), TESTS)
def test_a_test_that_is_named_exists(file: str, test: str, code: str) -> None:
    """In brackets is the fault that the test plants."""
    assert test in _tests_of(file)
    assert not code or code in FAULTS


def test_the_traps_are_there() -> None:
    assert [len(TRAPS[name]) >= most for name, most in (("reports.md", 6), ("reports_federation.md", 3))] == [
        True,
        True,
    ]
