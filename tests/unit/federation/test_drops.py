"""Each that is dropped is counted; a flood of them is one line."""

import logging

import pytest

from federation.drops import TOLD_S, Drops


def test_a_flood_is_told_of_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    drops = Drops(logging.getLogger("of.this.test"), "message.dropped", lambda: now[0])
    for _ in range(1000):
        drops.add(site="hpc")
    now[0] += TOLD_S
    drops.add(site="hpc")
    told = [(one.getMessage(), vars(one)["dropped"], vars(one)["in_all"], vars(one)["site"]) for one in caplog.records]
    assert told == [("message.dropped", 1, 1, "hpc"), ("message.dropped", 1000, 1001, "hpc")]
    assert drops.count == 1001
