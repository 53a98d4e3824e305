"""docs/reports.md answers every report, and each test that it names exists."""

import re
from functools import cache

import pytest

from slurm_plugin.findings import FAULTS
from tests.unit.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "reports.md").read_text()
REPORTS = 34
ROWS = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE)
TRAPS = re.findall(r"^\| ([^|\d][^|]+) \| ([^|]+) \| ([^|]+) \|$", TEXT.partition("## Traps")[2], re.MULTILINE)[2:]
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)(?:\[([\w-]+)\])?`", TEXT)))


@cache
def _tests_of(file: str) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / "tests" / file).read_text(), re.MULTILINE))


def test_every_report_is_there_once_in_order() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, REPORTS + 1))


@pytest.mark.parametrize("answer", [*(row[-1] for row in ROWS), *(row[-1] for row in TRAPS)])
def test_every_answer_names_a_test_or_says_why_not(answer: str) -> None:
    assert "::" in answer or answer.startswith("not tested: ")


@pytest.mark.parametrize(("file", "test", "code"), TESTS)
def test_a_test_that_is_named_exists(file: str, test: str, code: str) -> None:
    """In brackets is the fault that the test plants."""
    assert test in _tests_of(file)
    assert not code or code in FAULTS


def test_the_traps_are_there() -> None:
    assert len(TRAPS) >= 6
