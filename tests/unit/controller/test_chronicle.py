"""What is noted is told to the log as well, which has words of its own that no fact may have."""

import logging
from pathlib import Path

import pytest

from slurm_plugin.controller.chronicle import Chronicle
from slurm_plugin.controller.history_file import HistoryFile
from slurm_plugin.history import Entry, What


def test_what_was_made_and_destroyed_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chronicle = Chronicle(HistoryFile(tmp_path), lambda: 5.0, {})
    with caplog.at_level(logging.INFO):
        chronicle.note(
            Entry(at=5.0, what=What.CHANGED, gpu="GPU-1", index=0, destroyed=("1g.10gb@0",), created=("3g.40gb@0",))
        )
    (record,) = caplog.records
    assert record.message == "recut.changed"
    assert (record.__dict__["gone"], record.__dict__["made"]) == (("1g.10gb@0",), ("3g.40gb@0",))
