"""Which tests are tried again in CI."""

from pathlib import Path

import pytest

from tests import conftest


class Item:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.tries = 1

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.tries += mark.kwargs["reruns"]


@pytest.mark.parametrize(
    ("path", "tries"),
    [
        ("e2e/test_stream.py", 2),
        ("e2e/test_chaos.py", 2),
        ("e2e/test_isolation.py", 1),
        ("integration/agent/test_killed.py", 1),
        ("integration/link/test_link.py", 1),
        ("unit/test_second_try.py", 1),
    ],
)
def test_a_test_of_safety_has_one_try(path: str, tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    item = Item(conftest.HERE / path)
    conftest.pytest_collection_modifyitems([item])  # type: ignore[list-item]
    assert item.tries == tries


def test_each_file_that_is_named_is_there() -> None:
    there = {path.name for folder in conftest.REAL for path in folder.rglob("test_*.py")}
    assert there >= conftest.SAFETY
