"""Whose end the end of a proxy would be, and how long it is kept from it."""

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from federation.errors import Unavailable
from federation.overflow import holding
from federation.overflow.holding import ends_its_own, until_its_own
from federation.overflow.slurm_side import ASKS
from tests.unit.federation.overflow.test_burst import BURST, JOB


@pytest.mark.parametrize(
    ("changed", "its_own"),
    [
        ({}, True),
        ({"state": "COMPLETING"}, True),
        ({"state": "COMPLETING", "restarts": 2}, True),
        ({"state": "CANCELLED", "uid": 7}, True),
        ({"uid": 7, "nodes": ("n1",)}, True),  # it is no word on a job of another node
        ({"uid": 7}, False),
        ({"state": "PENDING", "nodes": (), "started_at": 0}, False),
        ({"restarts": 1, "started_at": 999}, False),
    ],
)
def test_whose_end_it_would_be(changed: dict[str, Any], its_own: bool) -> None:
    assert ends_its_own(BURST, replace(JOB, **changed)) is its_own
    assert not ends_its_own(BURST, None)


async def test_a_slurm_that_does_not_answer_is_asked_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "ASK_S", 0.001)
    side = AsyncMock()
    side.job.side_effect = Unavailable("slurmctld does not answer")
    async with asyncio.timeout(20):
        await until_its_own(side, BURST, asyncio.Event())
    assert side.job.call_count == ASKS
