"""What changes something tells what came of it, too, as a document."""

import json
from typing import Any

import pytest

from federation.cli import jobs, site
from federation.cli.main import run
from tests.unit.federation.cli.test_terminal import JOB


def ask(_: object, do: str, **__: object) -> dict[str, Any]:
    peers = {"site": "edge", "draining": True, "trouble": "", "peers": [], "turned_away": []}
    answers: dict[str, dict[str, Any]] = {"peers": peers, "drain": {"draining": True}}
    return answers.get(do, {"jobs": [JOB]})


@pytest.fixture(autouse=True)
def daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (jobs, site):
        monkeypatch.setattr(module, "ask", ask)


@pytest.mark.parametrize(
    "words", [("cancel",), ("cancel", "--give-up"), ("requeue",), ("signal", "-s", "USR1")], ids=" ".join
)
def test_jobs_that_were_asked_something(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "a", "b"]) == 0
    assert capsys.readouterr().out == ""
    assert run([*words, "--json", "a", "b"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["kind"], [one["job"] for one in told["jobs"]]) == (1, "fed-jobs", ["j", "j"])


def test_a_site_that_drains(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drain"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["drain", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["site"], told["draining"]) == ("fed-peers", "edge", True)
