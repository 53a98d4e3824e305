"""`fed render` and its check."""

import json
from pathlib import Path

import pytest

from federation.cli import setup
from federation.cli.main import run
from federation.config_overflow import OverflowConfig
from federation.overflow.checks import Problem
from federation.overflow.render import PARTS

FED_YAML = """\
version: 1
site: hpc
listen: 127.0.0.1:6830
tls: {certificate: /t/cert.pem, ca: [/t/ca.pem]}
peers:
  cloud: {}
"""
OVERFLOW = """\
overflow:
  cluster: hpc
  nodes:
    cloud-aws: {pool: cloud/gpu, count: 2, gateway: gw1, cpus: 64, memory_mib: 1000, most_jobs: 10, shared_files: false}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fed.yaml"
    path.write_text(FED_YAML + OVERFLOW)
    monkeypatch.setenv("FED_CONFIG", str(path))
    return path


@pytest.mark.usefixtures("config")
def test_all_parts_or_one_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render"]) == 0
    printed = capsys.readouterr().out
    assert [line.removeprefix("##### ") for line in printed.splitlines() if line.startswith("#####")] == list(PARTS)
    assert run(["render", "gres.conf"]) == 0
    assert capsys.readouterr().out.startswith("NodeName=cloud-aws-[1-2] Name=vgpu Count=100000\n")
    assert run(["render", "gres.conf", "--no-slices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "kind": "fed-render", "parts": {"gres.conf": ""}}


@pytest.mark.usefixtures("config")
def test_a_part_that_there_is_none_of_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "slurm"]) == 2
    assert "hint: one of slurm.conf, gres.conf" in capsys.readouterr().err


def test_a_site_where_nothing_flows_over_has_nothing_to_render(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(FED_YAML)
    assert run(["render"]) == 2
    assert "fed.yaml has no overflow" in capsys.readouterr().err


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("found", [(), (Problem(what="there is no\nPrologFlags", paste="PrologFlags=Alloc"),)])
def test_check_ends_with_1_when_something_differs(
    found: tuple[Problem, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def problems_of(given: OverflowConfig) -> tuple[Problem, ...]:
        assert given.cluster == "hpc"
        return found

    monkeypatch.setattr(setup, "problems_of", problems_of)
    assert run(["render", "--check"]) == len(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines in (["Slurm is as the virtual nodes need it"], ["there is no\\nPrologFlags", "    PrologFlags=Alloc"])
    assert run(["render", "--check", "--json"]) == len(found)
    assert len(json.loads(capsys.readouterr().out)["problems"]) == len(found)
