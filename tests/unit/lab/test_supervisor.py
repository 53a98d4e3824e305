"""What the supervisor answers when a daemon is to be started."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slurm_plugin.lab import supervisor
from slurm_plugin.lab.daemons import Daemon
from slurm_plugin.lab.supervisor import Supervisor
from tests.unit.lab.labs import lab

LIMIT_S = 10.0
SERVES = """
import socket, sys, time
time.sleep(0.3)
door = socket.socket(socket.AF_UNIX)
door.bind(sys.argv[1])
door.listen()
time.sleep(60)
"""


@asynccontextmanager
async def supervising(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> AsyncIterator[Path]:
    """A lab of one daemon that runs this script. Yields the socket that asks."""
    made, door = lab(folder=folder), folder / "door"
    for one in (made.run, made.log):
        one.mkdir()
    argv = ("python3", "-c", script, str(door))
    monkeypatch.setattr(supervisor, "daemons_of", lambda lab, python: (Daemon(name="one", argv=argv, door=door),))
    running = asyncio.create_task(Supervisor(made, "python3").run())
    try:
        async with asyncio.timeout(LIMIT_S):
            while not made.control_socket.exists():  # noqa: ASYNC110 - another task makes it
                await asyncio.sleep(0.005)
        yield made.control_socket
    finally:
        await ask(made.control_socket, {"do": "stop", "daemon": "one"})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def ask(path: Path, question: dict[str, object]) -> dict[str, object]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(json.dumps(question).encode() + b"\n")
    answer: dict[str, object] = json.loads(await asyncio.wait_for(reader.readline(), LIMIT_S))
    writer.close()
    await writer.wait_closed()
    return answer


async def test_start_answers_once_the_daemon_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with supervising(tmp_path, monkeypatch, SERVES) as control:
        assert await ask(control, {"do": "start", "daemon": "one", "wait": True}) == {}
        _, writer = await asyncio.open_unix_connection(tmp_path / "door")
        writer.close()
        await writer.wait_closed()


async def test_a_daemon_that_serves_nobody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SERVE_LIMIT_S", 0.1)
    async with supervising(tmp_path, monkeypatch, "import time; time.sleep(60)") as control:
        answer = await ask(control, {"do": "start", "daemon": "one", "wait": True})
        assert answer == {"error": "one was started, and serves nobody yet"}
