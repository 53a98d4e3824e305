"""The queue says the same of the same scene, whatever release printed it."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from federation.overflow.waiting import Queue
from tests.contract.federation.overflow.waiting import CHECKS
from tests.contract.slurm.records import Player

FOLDER = Path(__file__).with_name("recorded_queue")
RECORDINGS = sorted(FOLDER.glob("*.txt"))


def test_every_supported_release_is_recorded() -> None:
    assert [path.stem for path in RECORDINGS] == ["22.05.8", "24.11.5"]


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_scene(check: Callable[[Queue], Awaitable[None]], recording: Path) -> None:
    await check(Queue(Player(recording)))
