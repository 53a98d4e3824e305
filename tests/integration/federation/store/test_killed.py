"""A site killed at any place where something becomes durable is followed by one that ends where it would have."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from federation.store.queries import migrations
from tests.integration.federation.store import mortal

pytestmark = pytest.mark.xdist_group("federation_killed")  # all of them look at one run

LIMIT_S = 150.0


@pytest.fixture(scope="module")
def deaths() -> Iterator[list[dict[str, Any]]]:
    """What became of each; the last was not killed. In memory: a kill loses as little there as on a disk."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        done = subprocess.run(
            [sys.executable, "-m", mortal.__name__, folder],
            cwd=Path(__file__).parents[4],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        yield [json.loads(line) for line in done.stdout.splitlines()]


def test_the_story_unkilled(deaths: list[dict[str, Any]]) -> None:
    whole = deaths[-1]
    assert (whole["status"], whole["place"]) == (0, "")
    assert whole["found"]["jobs"] == [["done", 1, "exited"], ["done", 1, "exited"], ["done", 1, "cancelled"]]
    assert whole["found"]["ran"] == ["inputs", "plain"]


def test_every_kind_of_place_was_died_at(deaths: list[dict[str, Any]]) -> None:
    places = [one["place"] for one in deaths[:-1]]
    becoming = ["commit", *(f"migration {number}" for number in range(1, len(migrations()) + 1))]
    assert set(places) == {f"{what}: {when}" for what in becoming for when in ("before", "after")}
    assert len(places) > 60
    assert all(one["status"] == 9 for one in deaths[:-1])


def test_who_comes_after_ends_as_if_nobody_had_been_killed(deaths: list[dict[str, Any]]) -> None:
    """Every accepted job is done, and each did its work exactly once."""
    for one in deaths[:-1]:
        assert one["again"] == 0, one
        assert one["found"] == deaths[-1]["found"], one
