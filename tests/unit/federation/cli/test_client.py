"""What a daemon that is killed as it answers has said is no answer, wherever it was cut."""

import socket
import threading
from pathlib import Path

import pytest

from federation.cli.client import ask, asked
from federation.desk.talk import line
from federation.errors import OutcomeUnknown

WHOLE = line({"ok": {"jobs": []}})


def killed_after(path: Path, said: bytes) -> threading.Thread:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        connection, _ = listener.accept()
        with listener, connection, connection.makefile("rb") as file:
            file.readline()
            connection.sendall(said)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_a_whole_line_is_an_answer(tmp_path: Path) -> None:
    thread = killed_after(tmp_path / "sock", WHOLE)
    assert ask(tmp_path / "sock", "jobs") == {"jobs": []}
    thread.join()


@pytest.mark.parametrize("size", [0, 1, len(WHOLE) // 2, len(WHOLE) - 1])
def test_half_a_line_is_none(tmp_path: Path, size: int) -> None:
    thread = killed_after(tmp_path / "sock", WHOLE[:size])
    with pytest.raises(OutcomeUnknown, match="the daemon ended"):
        ask(tmp_path / "sock", "jobs")
    thread.join()


def test_nor_is_less_than_a_line_announced(tmp_path: Path) -> None:
    thread = killed_after(tmp_path / "sock", line({"ok": {"size": 4}}) + b"abc")
    with asked(tmp_path / "sock", {"do": "logs"}) as answer:
        size = answer.one()["size"]
        with pytest.raises(OutcomeUnknown, match="in the middle"):
            answer.read(size)
    thread.join()
