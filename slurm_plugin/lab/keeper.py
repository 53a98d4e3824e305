"""Keeping one daemon alive: started, watched, started again after a pause that grows."""

import asyncio
import logging
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.lab.daemons import Daemon

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
STEADY_S = 10.0  # one that lived this long starts again after the first pause
STOP_GRACE_S = 10.0
MAX_LOG_BYTES = 32 << 20  # a bigger log is put aside as .1 when its daemon starts


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperStatus:
    daemon: str
    wanted: bool
    pid: int  # 0 when it does not run
    restarts: int
    last_exit: int | None  # exit status of the last one that ended; negative: a signal


class Keeper:
    """Owns one daemon. Crash: the daemon lives on, and is found by its mark (slurm_plugin.lab.processes)."""

    def __init__(self, daemon: Daemon, env: dict[str, str], log_folder: Path) -> None:
        self.daemon = daemon
        self._env = env
        self._out = log_folder / f"{daemon.file_name}.out"
        self._process: Process | None = None
        self._wanted = False
        self._extra: tuple[str, ...] = ()
        self._restarts = 0
        self._last_exit: int | None = None
        self._changed = asyncio.Event()

    def status(self) -> KeeperStatus:
        return KeeperStatus(
            daemon=self.daemon.name,
            wanted=self._wanted,
            pid=self._process.pid if self._process is not None else 0,
            restarts=self._restarts,
            last_exit=self._last_exit,
        )

    def start(self, extra: Sequence[str] = ()) -> None:
        """Want it to run; `extra` arguments are for its next start only. A pause under way ends at once."""
        self._extra = tuple(extra)
        self._wanted = True
        self._changed.set()

    async def stop(self, first: signal.Signals = signal.SIGTERM) -> None:
        """End it and let it stay down. Bounds: STOP_GRACE_S after the `first` signal, then SIGKILL."""
        self._wanted = False
        self._changed.set()
        process = self._process
        if process is None:
            return
        self.signal(first)
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await process.wait()

    def signal(self, number: signal.Signals) -> bool:
        """False when it does not run now."""
        if self._process is None:
            return False
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        return True

    async def keep(self) -> None:
        """Run until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            self._changed.clear()
            if not self._wanted:
                await self._changed.wait()
                continue
            lived_s = await self._run_once()
            self._changed.clear()
            if not self._wanted:
                continue
            self._restarts += 1
            pause_s = FIRST_PAUSE_S if lived_s >= STEADY_S else pause_s
            await self._pause(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _pause(self, pause_s: float) -> None:
        """As long as that, or until somebody starts or stops it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()

    async def _run_once(self) -> float:
        clock = asyncio.get_running_loop().time
        began = clock()
        extra, self._extra = self._extra, ()
        try:
            self._process = await self._spawn((*self.daemon.argv, *extra))
        except OSError as error:
            self._last_exit = 127
            _log.error("lab.daemon_not_started", extra={"daemon": self.daemon.name, "why": str(error)})
            return 0.0
        _log.info("lab.daemon_started", extra={"daemon": self.daemon.name, "pid": self._process.pid})
        if not self._wanted:  # stopped while it was being started
            self.signal(signal.SIGKILL)
        self._last_exit = await self._process.wait()
        self._process = None
        facts = {"daemon": self.daemon.name, "status": self._last_exit, "wanted": self._wanted}
        _log.info("lab.daemon_ended", extra=facts)
        return clock() - began

    async def _spawn(self, argv: Sequence[str]) -> Process:
        for path in filter(None, (self._out, self.daemon.log)):
            _put_aside(path)
        with self._out.open("ab") as out:
            return await asyncio.create_subprocess_exec(
                *argv, stdin=DEVNULL, stdout=out, stderr=out, env=self._env, cwd="/", start_new_session=True
            )


def _put_aside(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(path.suffix + ".1"))


async def wait_served(daemon: Daemon, alive: Callable[[], bool], limit_s: float) -> bool:
    """Wait until the daemon accepts a connection, it is no longer alive, or the limit has come."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limit_s
    while loop.time() < until and alive():
        if await _accepts(daemon.door):
            return True
        await asyncio.sleep(0.02)
    return False


async def _accepts(door: Path | int) -> bool:
    try:
        if isinstance(door, int):
            _, writer = await asyncio.open_connection("127.0.0.1", door)
        else:
            _, writer = await asyncio.open_unix_connection(os.fspath(door))
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
