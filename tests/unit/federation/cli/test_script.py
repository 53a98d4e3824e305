"""A script that was written for sbatch."""

from pathlib import Path

import pytest

from federation.cli.submit import _script

LINES = b'#!/bin/sh\n#SBATCH --comment="Hi, I am a comment"\n#SBATCH --acctg-freq=task=60,energy=30\ntrue\n'


def test_lines_for_sbatch_are_told_to_be_for_sbatch_and_left_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.sh").write_bytes(LINES)
    assert _script(tmp_path / "job.sh", "") == (LINES, "job.sh")
    told = capsys.readouterr()
    assert told.out == ""
    assert "fed does not read them" in told.err
