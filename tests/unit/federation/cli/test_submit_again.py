"""A submit whose answer was lost may have been done: nobody is told that it was not, and it can be asked for again."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import pytest

from federation.cli import submit
from federation.cli.main import run
from federation.desk.talk import failed, line, parsed
from federation.errors import OutcomeUnknown, Unavailable
from federation.model.token import array_of

MINTED = "01900000-0000-7000-8000-000000000000"
Says = Callable[[dict[str, Any]], bytes]


def job(question: dict[str, Any]) -> bytes:
    array = array_of(UUID(question["token"]))
    return line({"ok": {"job": question["token"], "array": array[0] if array else "", "waits": "", "dropped": ""}})


def nothing(_: dict[str, Any]) -> bytes:
    return b""


def away(_: dict[str, Any]) -> bytes:
    return line(failed(Unavailable("this site is draining")))


@contextmanager
def daemon(path: Path, *answers: Says) -> Iterator[list[dict[str, Any]]]:
    """Answers so many questions, one a connection, and then is not there any more. Yields what it was asked."""
    heard: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener:
                for says in answers:
                    connection, _ = listener.accept()
                    with connection, connection.makefile("rb") as file:
                        heard.append(asked := _whole(file))
                        connection.sendall(says(asked))

        thread = threading.Thread(target=serve)
        thread.start()
        yield heard
        thread.join()


def _whole(file: IO[bytes]) -> dict[str, Any]:
    question = parsed(file.readline())
    file.read(question["script_size"])
    return question


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "PAUSE_S", 0.0)


def submitted(path: Path, *words: str) -> int:
    return run(["submit", "--socket", str(path), *words, "--wrap", "true"])


def test_a_lost_answer_of_a_daemon_that_stays_away_is_an_unknown_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon(tmp_path / "sock", nothing) as heard:
        assert submitted(tmp_path / "sock") == OutcomeUnknown.exit_code
    assert f"--token {heard[0]['token']}: that is one job" in capsys.readouterr().err


def test_so_it_is_when_it_can_not_say(tmp_path: Path) -> None:
    with daemon(tmp_path / "sock", nothing, *[away] * (submit.TRIES - 1)):
        assert submitted(tmp_path / "sock") == OutcomeUnknown.exit_code


def test_nobody_who_answers_the_first_time_is_nothing_done(tmp_path: Path) -> None:
    assert submitted(tmp_path / "sock") == Unavailable.exit_code
    with daemon(tmp_path / "sock", away) as heard:
        assert submitted(tmp_path / "sock") == Unavailable.exit_code
    assert len(heard) == 1


def test_a_second_try_asks_for_the_same_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(tmp_path / "sock", nothing, away, job) as heard:
        assert submitted(tmp_path / "sock") == 0
    assert {one["token"] for one in heard} == {capsys.readouterr().out.strip()}


def test_so_does_a_submit_with_its_token(tmp_path: Path) -> None:
    with daemon(tmp_path / "sock", job) as heard:
        assert submitted(tmp_path / "sock", "--token", MINTED) == 0
    assert heard[0]["token"] == MINTED


def test_and_with_that_of_a_task_for_the_whole_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(tmp_path / "sock", job, nothing) as first:
        assert submitted(tmp_path / "sock", "--array", "3-4") == OutcomeUnknown.exit_code
    assert "1 of 2 tasks were submitted" in capsys.readouterr().err
    (tmp_path / "sock").unlink()
    with daemon(tmp_path / "sock", job, job) as second:
        assert submitted(tmp_path / "sock", "--array", "3-4", "--token", first[1]["token"]) == 0
    assert [one["token"] for one in second] == [one["token"] for one in first]


def test_an_array_that_is_half_submitted_is_not_nothing(tmp_path: Path) -> None:
    with daemon(tmp_path / "sock", job):
        assert submitted(tmp_path / "sock", "--array", "3-4") == OutcomeUnknown.exit_code


@pytest.mark.parametrize("words", [("--token", "x"), ("--token", MINTED, "--array", "1-2")])
def test_what_is_no_token_of_this_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert submitted(tmp_path / "sock", *words) == 2
