"""When the pool's own explanation says that a job would start here."""

from typing import Any

import pytest

from federation.overflow.expected import expected
from slurm_plugin.explanation import Change, Explanation, Why

NOW = 1000.0
CUT = Change(node="n1", gpu=0, creates=("1g.10gb",), why="for it", at=1300.0)


@pytest.mark.parametrize(
    ("told", "starts"),
    [
        ({"why": Why.STARTING}, NOW),
        ({"why": Why.CHANGE, "change": CUT, "ahead": 3}, 1300.0),
        ({"why": Why.ROOM, "again_at": 1200.0}, 1200.0),
        ({"why": Why.ROOM}, NOW),
        ({"why": Why.BUSY, "free_at": 5000}, 5000.0),
        ({"why": Why.BUSY, "free_at": 5000, "ahead": 1}, None),
        ({"why": Why.BUSY}, None),
        ({"why": Why.BEHIND, "ahead": 1}, None),
        ({"why": Why.SLURM}, None),
        ({"why": Why.NOWHERE}, None),
    ],
)
def test_a_start_is_expected_only_where_nothing_unknown_comes_before(
    told: dict[str, Any], starts: float | None
) -> None:
    known: dict[str, Any] = {
        "job_id": 1,
        "uid": 1000,
        "gres_class": "m20",
        "count": 1,
        "nodes": 1,
        "tasks": 1,
        "priority": 1,
    }
    one = Explanation(**known | {"submitted_at": 1, "reason": "Resources"} | told)
    assert expected(one, NOW) == starts
