"""The pause is on disk, and what can't be read stands for one."""

from pathlib import Path

import pytest

from slurm_plugin.controller.pause import PauseFile
from slurm_plugin.controller.state import Pause


async def test_it_comes_back_and_goes(tmp_path: Path) -> None:
    file = PauseFile(tmp_path / "state")
    assert file.load() is None
    await file.set(None)
    pause = Pause(since=5.5, uid=7, reason="é\n\"'")
    await file.set(pause)
    assert PauseFile(tmp_path / "state").load() == pause
    await file.set(None)
    assert PauseFile(tmp_path / "state").load() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"since": "x", "uid": 0, "reason": ""}', "\xff"])
def test_one_that_can_not_be_read_stands(tmp_path: Path, text: str) -> None:
    (tmp_path / "paused.json").write_bytes(text.encode("latin-1"))
    pause = PauseFile(tmp_path).load()
    assert pause is not None
    assert pause.reason.endswith("paused.json can't be read")
