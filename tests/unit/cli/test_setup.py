"""`vgpu render` and `vgpu lab` without a lab."""

import json
from pathlib import Path

import pytest

from slurm_plugin.cli import main
from slurm_plugin.cli.setup import Part
from tests.unit.docs.blocks import ROOT

EXAMPLE = str(ROOT / "configs" / "pool.yaml")


@pytest.mark.parametrize("part", [part for part in Part if part is not Part.ALL])
def test_each_part_can_be_printed_alone(part: Part, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--config", EXAMPLE, "render", part.value]) == 0
    alone = capsys.readouterr().out
    assert main.run(["--config", EXAMPLE, "render"]) == 0
    everything = capsys.readouterr().out
    assert alone.strip() in everything
    assert f"##### {part.value}\n" in everything


def test_render_as_json_has_each_part_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--config", EXAMPLE, "render", "--json", "gres.conf"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["parts"]) == ["gres.conf"]
    assert "Name=vgpu Count=1000" in document["parts"]["gres.conf"]


def test_accounting_lines_are_printed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, expected in ((["render", "slurm.conf"], False), (["render", "slurm.conf", "--accounting"], True)):
        assert main.run(["--config", EXAMPLE, *argv]) == 0
        assert ("AccountingStorageTRES" in capsys.readouterr().out) is expected


@pytest.mark.parametrize("answers", [True, False])
def test_the_wait_partition_has_the_limits_of_the_slurm_that_answers(
    answers: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line that an admin pastes, too: else a job over a limit is taken, and waits there for ever."""
    scontrol = tmp_path / "scontrol"
    line = "PartitionName=gpu AllowAccounts=chem MaxTime=1-00:00:00 Nodes=n1"
    scontrol.write_text(f"#!/bin/sh\n{f'echo {line}' if answers else 'exit 1'}\n")
    scontrol.chmod(0o755)
    file = tmp_path / "pool.yaml"
    nodes = "nodes:\n  - {hosts: n1, count: 4}\n"
    file.write_text(f"version: 1\npool: hpc\npartitions: [gpu]\n{nodes}controller: {{slurm_bin: {tmp_path}}}\n")
    assert main.run(["--config", str(file), "render", "slurm.conf"]) == 0
    rendered = capsys.readouterr().out
    assert (" MaxTime=1-00:00:00 AllowAccounts=chem" in rendered) is answers


def test_a_weight_that_is_not_known_is_not_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text("version: 1\npool: hpc\npartitions: [gpu]\nnodes:\n  - hosts: n1\n")
    assert main.run(["--config", str(file), "render"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert "how many GPUs has n1" in error
    assert "count" in hint


@pytest.mark.parametrize(
    "argv",
    [["down"], ["up", "--nodes", "3"]],
)
def test_a_dry_run_of_the_lab_makes_nothing(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["lab", *argv, "--dry-run", "--dir", str(tmp_path / "labs")]) == 0
    assert str(tmp_path / "labs") in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["kill", "slurmctld"],
        ["stop", "agent:n1"],
        ["start", "agent:n1"],
        ["reboot", "n1"],
        ["fault", "n1", "nvmlInit"],
        ["stick", "n1", "MIG-1"],
        ["lose", "n1", "0"],
        ["heal", "n1"],
        ["status"],
        ["env"],
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_lab_that_is_not_there_is_an_error_of_the_lab(
    argv: list[str], dry_run: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--dry-run"] if dry_run and argv[0] not in ("status", "env") else []
    assert main.run(["lab", *argv, "--name", "gone", "--dir", str(tmp_path), *more]) == 7
    assert capsys.readouterr().err.startswith("error: there is no lab gone")


def test_no_lab_is_an_empty_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab", "list", "--dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "kind": "labs", "labs": []}
