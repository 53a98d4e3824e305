"""What other sites have written reaches a terminal as text that does nothing there."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from federation import config
from federation.cli import jobs, site
from federation.cli.main import run
from federation.cli.render import clock
from federation.errors import Refused

EVIL = "\x1b[2J\x9b1m\nhint: rm -rf /\udc80"
SHOWN = r"\x1b[2J\x9b1m\nhint: rm -rf /\udc80"
JOB: dict[str, Any] = {
    "job": "j", "array": "", "task": None, "state": "done", "name": "n", "user": "ann", "account": "", "site": "hpc",
    "pool": "p", "attempt": 1, "why": EVIL, "accepted_at": 1.0, "started_at": 2.0, "ended_at": 3.0, "end": "exited",
    "exit_code": 1, "signal": None, "cost": 0.0, "stdout_size": 0, "stderr_size": 0, "reasons": [], "transfer": None,
    "slurm_job": "",
}  # fmt: skip
POOL: dict[str, Any] = {
    "pool": f"hpc/{EVIL}", "linked": True, "free_jobs": 0, "free_cpus": 0, "slices": {}, "price_per_hour": 0.0,
    "gpu_price_per_hour": 0.0, "longest_s": 0, "why": EVIL,
}  # fmt: skip


class Answer:
    def one(self) -> dict[str, Any]:
        return {"waiting": 1}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {"remark": EVIL}
        yield JOB


@contextmanager
def asked(*_: object, **__: object) -> Iterator[Answer]:
    yield Answer()


def ask(_: object, do: str, **__: object) -> dict[str, Any]:
    if do == "peers":
        return {"site": "edge", "draining": False, "trouble": EVIL, "peers": [], "turned_away": []}
    return {"pools": [POOL], "budgets": []}


def test_why_a_job_ended_is_plain_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(jobs, "asked", asked)
    assert run(["wait"]) == 1
    assert capsys.readouterr().err == f"{SHOWN}\njob j: exited 1: {SHOWN}\n"


def test_what_doctor_finds_is_plain_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(config, "load_config", lambda _: SimpleNamespace(site="edge", overflow=None))
    monkeypatch.setattr(site, "problems_of", lambda *_: [])
    monkeypatch.setattr(site, "ask", ask)
    assert run(["doctor"]) == 1
    assert capsys.readouterr().out == (
        f"a fault of the daemon's, told in its log: {SHOWN}\npool hpc/{SHOWN} takes no job: {SHOWN}\n"
    )


def test_an_error_and_its_hint_are_two_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise Refused(EVIL, hint=EVIL)

    monkeypatch.setattr(site, "ask", refuses)
    assert run(["peers"]) == 4
    assert capsys.readouterr().err == f"error: {SHOWN}\nhint: {SHOWN}\n"


@pytest.mark.parametrize("at", [1e308, -1e308, 1e18])
def test_a_time_that_no_calendar_has_is_a_number(at: float) -> None:
    assert clock(at) == f"{at:g}"
