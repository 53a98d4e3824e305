"""docs/overflow_parity.md: every line of it is held by tests that exist."""

import re

import pytest

from tests.unit.docs.blocks import ROOT

TEXT = (ROOT / "docs/overflow_parity.md").read_text()
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ")][1:]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)))


def test_every_line_names_a_test() -> None:
    assert len(ROWS) >= 25
    assert all("::" in row.rsplit("|", 2)[1] for row in ROWS)


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_is_named_exists(file: str, test: str) -> None:
    assert re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
