"""How far files are is told while they move: of inputs by who sends them, of results to who waits for them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from federation.cli import submit
from federation.desk import answers
from federation.desk.answers import Answers, Office
from federation.model.job import Job
from federation.model.spec import Lease
from federation.model.states import Origin
from federation.stage.mover import Progress

JOB = Job(token=UUID(int=1), state=Origin.RESULTS_PENDING, user="ann", lease=Lease(), accepted_at=1.0, due_at=None)


def staged(path: Path, size: int) -> submit.Staged:
    path.write_bytes(bytes(size))
    return submit.Staged(path=path, name=path.name, size=size, mode=0o644)


def test_of_large_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(submit, "PROGRESS_BYTES", 2 << 20)
    monkeypatch.setattr(submit, "PROGRESS_S", -1.0)
    sent = b"".join(submit._bytes(b"script", [staged(tmp_path / "a", 1 << 20), staged(tmp_path / "b", 2 << 20)]))
    assert sent == b"script" + bytes(3 << 20)
    assert capsys.readouterr().err == "".join(f"{done} of 3 MiB of input\n" for done in (1, 2, 3))


def test_of_small_ones_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submit, "PROGRESS_S", -1.0)
    assert b"".join(submit._bytes(b"", [staged(tmp_path / "a", 1 << 20)])) == bytes(1 << 20)
    assert capsys.readouterr().err == ""


async def test_of_results_to_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOVING_S", 0.0)
    monkeypatch.setattr(answers, "WAIT_POLL_S", 0.0)
    progress = {JOB.key: Progress(what="results", total=9 << 20, moved=2 << 20)}
    office = Office(runner=cast(Any, None), mover=cast(Any, SimpleNamespace(progress=progress)), addresses={})
    desk = Answers(office)

    async def again(job: Job) -> Job:
        return job

    monkeypatch.setattr(desk, "again", again)
    waiting = cast(Any, desk.wait([JOB]))
    assert await anext(waiting) == f"job {JOB.token}: 2 of 9 MiB of results"
    progress[JOB.key].moved = 9 << 20
    assert await anext(waiting) == f"job {JOB.token}: 9 of 9 MiB of results"
    await waiting.aclose()
