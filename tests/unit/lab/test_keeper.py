import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slurm_plugin.lab import keeper as module
from slurm_plugin.lab.daemons import Daemon
from slurm_plugin.lab.keeper import Keeper, wait_served

LIMIT_S = 10.0


@asynccontextmanager
async def kept(folder: Path, *argv: str) -> AsyncIterator[Keeper]:
    keeper = Keeper(Daemon(name="some:daemon", argv=argv, door=folder / "door"), {"PATH": "/usr/bin:/bin"}, folder)
    task = asyncio.create_task(keeper.keep())
    try:
        yield keeper
    finally:
        await keeper.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0.005)


def record_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses are noted and pass at once."""
    pauses: list[float] = []

    async def pause(keeper: Keeper, pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr(Keeper, "_pause", pause)
    return pauses


async def test_one_that_keeps_ending_starts_again_after_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = record_pauses(monkeypatch)
    async with kept(tmp_path, "false") as keeper:
        keeper.start()
        await until(lambda: len(pauses) >= 9)
        assert keeper.status().last_exit == 1
    assert pauses[:9] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


async def test_one_that_lived_long_starts_again_after_the_first_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEADY_S", 0.0)
    pauses = record_pauses(monkeypatch)
    async with kept(tmp_path, "false") as keeper:
        keeper.start()
        await until(lambda: len(pauses) >= 3)
    assert pauses[:3] == [0.2, 0.2, 0.2]


async def test_a_killed_one_comes_back_as_another_process(tmp_path: Path) -> None:
    async with kept(tmp_path, "sleep", "100") as keeper:
        keeper.start()
        await until(lambda: keeper.status().pid > 0)
        first = keeper.status().pid
        assert keeper.signal(signal.SIGKILL)
        await until(lambda: keeper.status().pid not in (0, first))
        assert keeper.status().restarts == 1
        assert keeper.status().last_exit == -signal.SIGKILL


async def test_a_stopped_one_stays_down_until_started_with_arguments_for_once(tmp_path: Path) -> None:
    out = tmp_path / "some-daemon.out"
    async with kept(tmp_path, "sh", "-c", 'echo "$0"; exec sleep 100') as keeper:
        keeper.start(["extra"])
        await until(lambda: out.exists() and out.read_text() == "extra\n")
        await keeper.stop()
        await until(lambda: keeper.status().pid == 0)
        assert not keeper.signal(signal.SIGKILL)
        keeper.start()
        await until(lambda: out.read_text() == "extra\nsh\n")
        assert keeper.status().restarts == 0


async def test_one_that_ignores_being_asked_is_made_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_GRACE_S", 0.05)
    out = tmp_path / "some-daemon.out"
    async with kept(tmp_path, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done") as keeper:
        keeper.start()
        await until(lambda: out.exists() and out.read_text() == "ready\n")
        await keeper.stop()
        await until(lambda: keeper.status().last_exit == -signal.SIGKILL)


async def test_a_program_that_is_not_there_is_tried_again(tmp_path: Path) -> None:
    async with kept(tmp_path, str(tmp_path / "missing")) as keeper:
        keeper.start()
        await until(lambda: keeper.status().restarts >= 1)
        assert keeper.status().last_exit == 127


async def test_a_big_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 3)
    out = tmp_path / "some-daemon.out"
    out.write_text("old and big")
    async with kept(tmp_path, "echo", "new") as keeper:
        keeper.start()
        await until(lambda: (tmp_path / "some-daemon.out.1").exists() and out.exists() and out.read_text() == "new\n")
    assert (tmp_path / "some-daemon.out.1").read_text() == "old and big"


async def test_waiting_for_a_gate_ends_when_it_opens_when_time_is_up_and_when_nobody_wants_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate.sock"
    daemon = Daemon(name="d", argv=("x",), door=gate)
    assert not await wait_served(daemon, lambda: True, 0.05)
    assert not await wait_served(daemon, lambda: False, LIMIT_S)
    waiting = asyncio.create_task(wait_served(daemon, lambda: True, LIMIT_S))
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), gate)
    async with server:
        assert await waiting
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await wait_served(Daemon(name="d", argv=("x",), door=port), lambda: True, LIMIT_S)
