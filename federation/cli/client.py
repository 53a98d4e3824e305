"""Asking this site's daemon, over its unix socket."""

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from federation.desk.talk import line, parsed, raised
from federation.errors import OutcomeUnknown, Refused, Unavailable

LOOK = "fed jobs and fed show tell whether it was done"
ANSWER_S = 60.0  # longest wait for the first word of an answer that is not waited for on purpose


class Answer:
    """Lines that came back, one after another, and the bytes that each announces."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while data := self._file.readline():
            if not data.endswith(b"\n"):
                raise _in_the_middle()
            told = parsed(data)
            if "error" in told:
                raise raised(told["error"])
            yield told["ok"]

    def one(self) -> dict[str, Any]:
        """Raises OutcomeUnknown when the daemon ended before it answered, and what it answers."""
        for told in self:
            return told
        raise OutcomeUnknown("the daemon ended before it answered", hint=LOOK)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise _in_the_middle()
        return data


def _in_the_middle() -> OutcomeUnknown:
    return OutcomeUnknown("the daemon ended in the middle of its answer", hint=LOOK)


@contextmanager
def asked(
    path: Path, question: Mapping[str, Any], data: Iterable[bytes] = (), *, patient: bool = False
) -> Iterator[Answer]:
    """Ask. `patient`: the answer may take for ever. Raises Unavailable: nobody is there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(None if patient else ANSWER_S)
        try:
            connection.connect(str(path))
        except OSError as error:
            hint = "is `fed daemon` running, and is --socket or FED_SOCKET its socket?"
            raise Unavailable(f"no daemon answers at {path}: {error.strerror or error}", hint=hint) from None
        try:
            _say(connection, question, data)
            with connection.makefile("rb") as file:
                yield Answer(file)
        except TimeoutError:
            raise OutcomeUnknown(f"no answer within {ANSWER_S:.0f} s", hint=LOOK) from None
        except ConnectionResetError:
            raise OutcomeUnknown("the daemon ended before it answered", hint=LOOK) from None


def _say(connection: socket.socket, question: Mapping[str, Any], data: Iterable[bytes]) -> None:
    """A daemon that refuses does not read on: then its answer says why."""
    try:
        connection.sendall(line(question))
        for one in data:
            connection.sendall(one)
    except BrokenPipeError:
        return


def ask(path: Path, do: str, **what: Any) -> dict[str, Any]:
    """One question, one answer."""
    with asked(path, {"do": do, **what}) as answer:
        return answer.one()


def checked_job(text: str) -> str:
    if not text:
        raise Refused("name a job", hint="fed jobs lists them")
    return text
