"""What is listed once, and what an admin is told of that is not listed."""

import json
from typing import Any

import pytest

from federation.cli import jobs, sacct
from federation.cli.main import run
from tests.unit.federation.cli.test_terminal import JOB

RUN: dict[str, Any] = {
    "job": "12", "token": "0190-abc", "attempt": 1, "user": "ann", "pool": "hpc/p", "gateway": "cloud-1",
    "state": "ended", "submitted_at": 1.0, "began_at": 2.0, "started_at": 3.0, "ended_at": 4.0, "end": "exited",
    "exit_code": 0, "signal": None, "node": "far-1", "cpu_s": 1.0, "memory_mib": 2, "slices": "", "cost": 0.0,
    "limit_s": 60, "closed": True, "why": "",
}  # fmt: skip
LISTS = {
    "jobs": {"jobs": [JOB | {"slurm_job": "20_3"}, JOB | {"job": "k"}], "others": 12},
    "sacct": {"runs": [RUN], "others": 1},
}
REMARKS = {
    "jobs": "12 jobs of other users: --all-users\n",
    "sacct": "1 run of other users: --all-users\n",
}


def asks(monkeypatch: pytest.MonkeyPatch, **more: int) -> None:
    def ask(_: object, do: str, **__: object) -> dict[str, Any]:
        return LISTS[do] | more

    monkeypatch.setattr(jobs, "ask", ask)
    monkeypatch.setattr(sacct, "ask", ask)


@pytest.mark.parametrize("command", ["jobs", "sacct"])
def test_that_there_are_others_is_a_remark_and_no_data(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asks(monkeypatch)
    assert run([command, "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == REMARKS[command]
    assert "others" not in json.loads(told.out)
    assert run([command]) == 0
    told = capsys.readouterr()
    assert (told.err, "other users" in told.out) == (REMARKS[command], False)
    asks(monkeypatch, others=0)
    assert run([command]) == 0
    assert capsys.readouterr().err == ""


def test_a_job_is_listed_once_and_with_its_slurm_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asks(monkeypatch, others=0)
    assert run(["jobs", "j", "k"]) == 0  # a name of each, and each answer has both
    head, one, other = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (head[:3], one[:3], other[:3]) == (["JOB", "SLURM", "STATE"], ["j", "20_3", "exited"], ["k", "-", "exited"])
    assert run(["jobs", "j", "k", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["jobs"]
    assert [(job["job"], job["slurm_job"]) for job in found] == [("j", "20_3"), ("k", "")]


def test_a_run_has_its_token(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asks(monkeypatch)
    assert run(["sacct"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["JOB", "TOKEN"], ["12", "0190-abc"]]
