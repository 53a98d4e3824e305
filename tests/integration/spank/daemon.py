"""The daemon's end of the proxy's socket, played by the test frame by frame, and a proxy as slurmstepd starts one."""

import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from federation.overflow.frames import (
    HEAD,
    MOST_DATA,
    Acknowledged,
    Data,
    Ended,
    FromDaemon,
    FromProxy,
    Hello,
    Ping,
    Signalled,
    Stream,
    Welcome,
    from_proxy,
    length,
    to_proxy,
)

SPANK = Path(__file__).parents[3] / "slurm_plugin/spank"
PATIENCE_S = 20.0
_FIELD = struct.Struct(">BI")


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.005)


def fields(*told: tuple[int, bytes]) -> bytes:
    return b"".join(_FIELD.pack(tag, len(value)) + value for tag, value in told)


FACTS = fields((2, b"7"), (5, b"0"), (6, b"cloud-1"))


class Line:
    """One connection of a proxy's."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        self._connection = connection
        self.told: dict[int, bytes] = {}  # the last hello's fields as they came

    def _exactly(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            more = self._connection.recv(size - len(got))
            if not more:
                raise EOFError
            got += more
        return bytes(got)

    def next(self) -> FromProxy:
        """What it says next. A ping that it asks whether we are there with is answered."""
        while isinstance(got := self.one(), Ping):
            self.send(Ping())
        return got

    def one(self) -> FromProxy:
        kind, size = length(self._exactly(HEAD.size))
        payload = self._exactly(size)
        if kind == b"H":
            self.told = _told(payload)
        message = from_proxy(kind, payload)
        assert message is not None, kind
        return message

    def hello(self) -> Hello:
        message = self.next()
        assert isinstance(message, Hello)
        return message

    def send(self, *messages: FromDaemon) -> None:
        self._connection.sendall(b"".join(to_proxy(one) for one in messages))

    def raw(self, payload: bytes) -> None:
        self._connection.sendall(payload)

    def welcome(self, stdout: int = 0, stderr: int = 0) -> Hello:
        hello = self.hello()
        self.send(Welcome(stdout=stdout, stderr=stderr))
        return hello

    def acked(self, stdout: int, stderr: int = 0) -> None:
        """Read until so much is acknowledged."""
        while (got := self.next()) != Acknowledged(stdout=stdout, stderr=stderr):
            assert isinstance(got, Acknowledged), got
            assert got.stdout <= stdout
            assert got.stderr <= stderr

    def signalled(self) -> Signalled:
        """The next signal; that it has arrived is answered."""
        got = self.next()
        assert isinstance(got, Signalled)
        assert self.one() == Ping()
        self.send(Ping())
        return got

    def end(self, value: int, *, by_signal: bool = False) -> None:
        self.send(Ended(by_signal=by_signal, value=value))

    def relay(self, stream: Stream, data: bytes, *, at: int = 0, piece: int = MOST_DATA, window: int = 1 << 20) -> None:
        """All of it, never more than the window beyond what is acknowledged."""
        sent = acked = 0
        while acked < len(data):
            while sent < len(data) and sent - acked < window:
                part = data[sent : sent + min(piece, window - (sent - acked))]
                self.send(Data(stream=stream, offset=at + sent, data=part))
                sent += len(part)
            got = self.next()
            assert isinstance(got, Acknowledged), got
            acked = (got.stdout if stream is Stream.STDOUT else got.stderr) - at

    def is_closed(self) -> bool:
        try:
            return not self._connection.recv(1)
        except ConnectionError:
            return True

    def close(self) -> None:
        self._connection.close()


def _told(payload: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at < len(payload):
        tag, size = _FIELD.unpack_from(payload, at)
        found[tag] = payload[at + _FIELD.size : at + _FIELD.size + size]
        at += _FIELD.size + size
    return found


class Daemon:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener: socket.socket | None = None
        self._lines: list[Line] = []
        self.listen()

    def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_S)

    def accept(self) -> Line:
        assert self._listener is not None
        line = Line(self._listener.accept()[0])
        self._lines.append(line)
        return line

    def close(self) -> None:
        """As a daemon that was killed: nobody listens or speaks, and its socket stays."""
        for line in self._lines:
            line.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class Job:
    """A proxy in a folder of its own, whose stdout and stderr are files there unless the test says what else."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder = folder
        self.out = folder / "job.out"
        self.err = folder / "job.err"
        self.script = folder / "script"
        self.facts = folder / "facts"
        self.daemon = Daemon(folder / "gateway.sock")
        self.program = program
        self.proxy: subprocess.Popen[bytes] | None = None

    def start(
        self,
        *,
        script: bytes = b"#!/bin/sh\n",
        facts: bytes = FACTS,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        cwd: Path | None = None,
        umask: int = 0o022,
        parent: int | None = None,
    ) -> "subprocess.Popen[bytes]":
        self.script.write_bytes(script)
        self.facts.write_bytes(facts)
        out = self.out.open("wb") if stdout is None else stdout
        err = self.err.open("wb") if stderr is None else stderr
        self.proxy = subprocess.Popen(
            self.command(parent),
            stdin=stdin,
            stdout=out,
            stderr=err,
            cwd=cwd,
            umask=umask,
            env={"FACTS": str(self.facts), "SCRIPT": str(self.script), "ASAN_OPTIONS": "exitcode=99"},
        )
        for one in (out, err):
            if not isinstance(one, int):
                one.close()
        return self.proxy

    def command(self, parent: int | None = None) -> Sequence[str]:
        """The proxy with its two open files, in the place of the shell that opened them."""
        become = 'exec "$0" "$@" 3< "$FACTS" 4< "$SCRIPT"'
        return ("/bin/sh", "-c", become, str(self.program), str(self.daemon.path), str(parent or os.getpid()), "7")

    def code(self) -> int:
        """Negative: the signal it ended by."""
        assert self.proxy is not None
        return self.proxy.wait(PATIENCE_S)

    def close(self) -> None:
        self.daemon.close()
        if self.proxy is not None and self.proxy.poll() is None:
            self.proxy.kill()
            self.proxy.wait()
