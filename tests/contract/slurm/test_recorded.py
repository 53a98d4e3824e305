"""The adapter says the same of the same scene, whatever release printed it."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from slurm_plugin.slurm.commands import SlurmCommands
from tests.contract.slurm.records import FOLDER, Player
from tests.contract.slurm.scene import CHECKS

RECORDINGS = sorted(FOLDER.glob("*.txt"))


def test_every_supported_release_is_recorded() -> None:
    assert [path.stem for path in RECORDINGS] == ["22.05.8", "24.11.5"]


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_scene(check: Callable[[SlurmCommands], Awaitable[None]], recording: Path) -> None:
    await check(SlurmCommands(runner=Player(recording)))
