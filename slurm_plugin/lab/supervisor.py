"""The one process that keeps a lab's daemons alive: `python -m slurm_plugin.lab.supervisor FOLDER`.

It listens on a unix socket of root's: a line of JSON asks, a line of JSON answers, and the connection ends.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from slurm_plugin.errors import LabError
from slurm_plugin.lab.daemons import daemons_of, environment
from slurm_plugin.lab.keeper import Keeper, wait_served
from slurm_plugin.lab.site import FILE_NAME, Lab, from_text

_log = logging.getLogger(__name__)

SERVE_LIMIT_S = 20.0  # after that the next daemons start all the same: they too are restarted until it works
MAX_LINE = 4096  # bytes of a request
REQUEST_LIMIT_S = 60.0


class Supervisor:
    def __init__(self, lab: Lab, python: str) -> None:
        self._lab = lab
        self._keepers = {
            daemon.name: Keeper(daemon, environment(lab, daemon, python), lab.log) for daemon in daemons_of(lab, python)
        }
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Serve until told to end; then end every daemon, last started first."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._over.set)
        tasks = [asyncio.create_task(keeper.keep()) for keeper in self._keepers.values()]
        tasks.append(asyncio.create_task(self._start_in_order()))
        server = await asyncio.start_unix_server(self._serve, self._lab.control_socket, limit=MAX_LINE)
        self._lab.control_socket.chmod(0o600)
        async with server:
            await self._over.wait()
        await self._stop_all()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start_in_order(self) -> None:
        for keeper in self._keepers.values():
            keeper.start()
            if keeper.daemon.awaited and not await self._serves(keeper):
                _log.error("lab.daemon_serves_nobody", extra={"daemon": keeper.daemon.name, "waited_s": SERVE_LIMIT_S})

    async def _serves(self, keeper: Keeper) -> bool:
        wanted = lambda: keeper.status().wanted and not self._over.is_set()  # noqa: E731
        return await wait_served(keeper.daemon, wanted, SERVE_LIMIT_S)

    async def _stop_all(self) -> None:
        """Daemons of one kind end together, kinds one after the other: munged goes last, for all others need it."""
        kinds = list(dict.fromkeys(name.partition(":")[0] for name in self._keepers))
        for kind in reversed(kinds):
            keepers = [keeper for name, keeper in self._keepers.items() if name.partition(":")[0] == kind]
            await asyncio.gather(*(keeper.stop() for keeper in keepers))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                reply = await self._answer(await reader.readline())
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError) as error:
            _log.error("lab.request_failed", extra={"why": str(error)})
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, object]:
        verbs: dict[str, Callable[[dict[str, object]], Awaitable[dict[str, object]]]] = {
            "status": self._status,
            "start": self._start,
            "stop": self._stop,
            "kill": self._kill,
            "halt": self._halt,
        }
        request = json.loads(line)
        try:
            return await verbs[request["do"]](request)
        except KeyError as error:
            return {"error": f"no such daemon or verb: {error}"}

    async def _status(self, request: dict[str, object]) -> dict[str, object]:
        del request
        return {"pid": os.getpid(), "daemons": [asdict(keeper.status()) for keeper in self._keepers.values()]}

    async def _start(self, request: dict[str, object]) -> dict[str, object]:
        keeper, extra = self._keepers[str(request["daemon"])], request.get("extra", [])
        keeper.start([str(item) for item in extra] if isinstance(extra, list) else ())
        if request.get("wait") and not await self._serves(keeper):
            return {"error": f"{keeper.daemon.name} was started, and serves nobody yet"}
        return {}

    async def _stop(self, request: dict[str, object]) -> dict[str, object]:
        await self._keepers[str(request["daemon"])].stop()
        return {}

    async def _halt(self, request: dict[str, object]) -> dict[str, object]:
        """As a power cut: SIGKILL, and it stays down."""
        await self._keepers[str(request["daemon"])].stop(signal.SIGKILL)
        return {}

    async def _kill(self, request: dict[str, object]) -> dict[str, object]:
        if self._keepers[str(request["daemon"])].signal(signal.SIGKILL):
            return {}
        return {"error": f"{request['daemon']} does not run"}


class _Facts(logging.Formatter):
    """The event's name, then its facts."""

    _own = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        facts = [f"{key}={value}" for key, value in vars(record).items() if key not in self._own]
        return " ".join([super().format(record), *facts])


def main(argv: Sequence[str]) -> None:
    """Leave a supervisor behind as a process of its own session, and return."""
    folder = Path(argv[0])
    lab = from_text((folder / FILE_NAME).read_text())
    if os.fork():
        return
    os.setsid()
    os.umask(0o022)
    handler = logging.StreamHandler()
    handler.setFormatter(_Facts("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    asyncio.run(Supervisor(lab, sys.executable).run())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (LabError, OSError) as failure:
        sys.exit(f"error: {failure}")
