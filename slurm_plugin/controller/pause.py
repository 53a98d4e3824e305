"""Whether re-cutting is paused, by whom and why: a small file, so that a controller started anew knows it too.

While it is, no step goes to any agent, for the queue or for a layout of pool.yaml. Steps under way come to their end.
Offers, counts and starts of jobs go on.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from slurm_plugin import atomic
from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.state import Pause
from slurm_plugin.controller.wire import pause_message
from slurm_plugin.errors import RequestError
from slurm_plugin.history import Entry, What
from slurm_plugin.link.server import Caller
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

log = logging.getLogger(__name__)

REASON_MAX = 200  # characters
FILE_BYTES = 4096  # longest file that is read


class PauseFile:
    """Crash: the old state or the new one."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "paused.json"

    def load(self) -> Pause | None:
        """A file that can't be read stands for a pause: somebody asked for one."""
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(FILE_BYTES))
            return Pause(since=float(found["since"]), uid=int(found["uid"]), reason=str(found["reason"])[:REASON_MAX])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("pause.unreadable", extra={"path": str(self._path), "error": str(error)})
            return Pause(since=0.0, uid=0, reason=f"{self._path} can't be read")

    async def set(self, pause: Pause | None) -> None:
        """Raises RequestError: then it is as before."""
        if pause is not None and len(pause.reason) > REASON_MAX:
            raise RequestError(f"a reason has {REASON_MAX} characters at the most")
        try:
            await asyncio.to_thread(self._write, pause)
        except OSError as error:
            raise RequestError(f"{self._path} can't be written: {error.strerror}") from None

    def _write(self, pause: Pause | None) -> None:
        if pause is None:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            return
        if not self._path.parent.exists():
            self._path.parent.mkdir(parents=True, mode=0o700)
        atomic.write(self._path, json.dumps(asdict(pause)).encode(), mode=0o600)


class Pauses:
    def __init__(self, desk: Desk, state_dir: Path, note: Callable[[Entry], None]) -> None:
        self._desk = desk
        self._file = PauseFile(state_dir)
        self._note = note
        self._one = asyncio.Lock()
        desk.pause = self._file.load()

    async def follow(self, caller: Caller, *, wanted: bool, reason: str) -> pb.PauseReply:
        """Stop every re-cut, or let them go on; steps under way come to their end. Raises RequestError."""
        desk = self._desk
        async with self._one:
            changed = wanted != (desk.pause is not None)
            if changed:
                now = desk.clock()
                pause = Pause(since=now, uid=caller.uid, reason=reason) if wanted else None
                await self._file.set(pause)
                desk.pause = pause
                self._note(Entry(at=now, what=What.PAUSED if wanted else What.RESUMED, why=reason, uid=caller.uid))
                desk.wake.set()
            return pb.PauseReply(pause=pause_message(desk.pause), changed=changed)
