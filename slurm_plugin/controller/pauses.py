"""Pausing re-cutting, and letting it go on."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.pause import Pause, PauseFile
from slurm_plugin.controller.wire import pause_message
from slurm_plugin.history import Entry, What
from slurm_plugin.link.server import Caller
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb


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
