"""The demo must fail when a step did not do what it claims."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from federation.lab import demo
from federation.lab.demo import Two, daemon
from federation.lab.sites import NODE
from slurm_plugin.errors import LabError
from slurm_plugin.lab.demo import Story
from tests.unit.lab.labs import lab


def answers(accounted: str) -> Callable[..., str]:
    """squeue has forgotten the job; sacct has this line of it."""
    return lambda _, *argv, **__: accounted if "sacct" in argv[0] else ""


@pytest.mark.parametrize("accounted", [f"7|FAILED|3:0|{NODE}", f"7|CANCELLED by 1000|0:0|{NODE}"])
def test_an_end_is_what_sacct_has(monkeypatch: pytest.MonkeyPatch, accounted: str) -> None:
    monkeypatch.setattr(Story, "quiet", answers(accounted))
    monkeypatch.setattr(Story, "type", answers(f"JobID|State|ExitCode|NodeList\n{accounted}\n"))
    Two().ends("7", *accounted.replace(" by 1000", "").split("|")[1:3])


@pytest.mark.parametrize("accounted", ["", "7|RUNNING|0:0|cloud-1", "7|FAILED|2:0|cloud-1", "7|FAILED|3:0|n1"])
def test_another_end_than_the_claimed_one_ends_the_demo(monkeypatch: pytest.MonkeyPatch, accounted: str) -> None:
    monkeypatch.setattr(demo, "ACCOUNTED_S", 0.0)
    monkeypatch.setattr(Story, "quiet", answers(accounted))
    monkeypatch.setattr(Story, "type", answers(accounted))
    with pytest.raises(LabError, match="sacct has FAILED 3:0"):
        Two().ends("7", "FAILED", "3:0")


@pytest.mark.parametrize(("script", "told"), [("echo no port; exit 1", "no port\n"), ("echo up; exec sleep 0", "up\n")])
def test_a_daemon_that_ends_ends_the_demo_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str, told: str
) -> None:
    fed = tmp_path / "fed"
    fed.write_text(f"#!/bin/sh\n{script}\n")
    fed.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "hpc").mkdir()
    with pytest.raises(LabError, match="runs"), daemon(lab(), tmp_path / "hpc"):
        pass
    assert capsys.readouterr().err == told
