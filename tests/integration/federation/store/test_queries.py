"""Which rows each named query looks at."""

import re
from pathlib import Path

import pytest

from federation.store.opening import connect
from federation.store.queries import queries

GROWS = re.compile(r"SCAN (jobs|specs|attempts|attempt_specs|bursts|commands|charges)$")
# Newest first, and no more than a bound of them; a row an account and day, looked through once an hour.
BOUNDED = {"newest_jobs", "newest_bursts", "others_newest_jobs", "others_newest_bursts", "drop_charges"}


class Anything(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return 1


@pytest.mark.parametrize("name", sorted(queries()))
def test_no_query_walks_all_that_is_remembered(tmp_path: Path, name: str) -> None:
    sql = queries()[name]
    connection = connect(tmp_path / "fed.db")
    values = (1,) * sql.count("?") or Anything()
    plan = [row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    connection.close()
    assert name in BOUNDED or not [step for step in plan if GROWS.search(step)], plan
