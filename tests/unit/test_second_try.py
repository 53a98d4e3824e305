"""Which tests are tried again in CI."""

import pytest

from tests import conftest


@pytest.mark.parametrize(
    ("path", "again"),
    [
        ("e2e/test_stream.py", True),
        ("e2e/test_chaos.py", True),
        ("e2e/test_isolation.py", False),
        ("integration/agent/test_killed.py", False),
        ("integration/link/test_link.py", False),
        ("unit/test_second_try.py", False),
    ],
)
def test_a_test_of_safety_has_one_try(path: str, again: bool) -> None:
    assert conftest.has_second_try(conftest.HERE / path) is again


def test_each_file_that_is_named_is_there() -> None:
    there = {path.name for folder in conftest.REAL for path in folder.rglob("test_*.py")}
    assert there >= conftest.SAFETY
