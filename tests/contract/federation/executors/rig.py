"""A pool with its daemon, as the suite drives it: jobs are handed over, looked at, and the daemon is restarted."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from federation.executors.spool import Spool
from federation.model.spec import JobSpec
from federation.model.states import Outcome
from federation.model.token import Key
from federation.ports import Executor, Place, Places, Seen, Sight

PATIENCE_S = 60.0
POLL_S = 0.1
USER = "alice"
NOBODY_NOW = "no-such-user"  # whom the pool would take


class Pool(Executor, Places, Protocol):
    """What implements one implements the other."""


@dataclass
class Rig:
    """`make` is a start of the daemon: nothing in memory passes from one to the next."""

    make: Callable[[], Pool]
    spool: Spool  # where the jobs' folders are, on whatever host
    executor: Pool = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.executor = self.make()

    async def submit(self, script: bytes, key: Key | None = None, **more: Any) -> Key:
        key = key or Key(uuid4(), 1)
        spec = JobSpec(user=USER, script=script, **more)
        await self.executor.place(key, USER)
        await self.executor.submit(key, spec, USER)
        return key

    async def until(self, key: Key, *sights: Sight) -> Seen:
        seen: Seen | None = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (seen := await self.seen(key)) is None or seen.sight not in sights:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            record = self.spool.record(key)
            raise AssertionError(f"{key} was {seen}, and not {sights}, for {PATIENCE_S:g} s: {record}") from None
        return seen

    async def seen(self, key: Key) -> Seen | None:
        return (await self.executor.look([key])).get(key)

    async def ended(self, key: Key) -> Outcome:
        seen = await self.until(key, Sight.EXITED)
        assert seen.outcome is not None
        return seen.outcome

    async def run(self, script: bytes, **more: Any) -> tuple[Outcome, bytes, bytes]:
        """A job, how it ended, and both of its streams."""
        key = await self.submit(script, **more)
        outcome = await self.ended(key)
        place = await self.place(key)
        out, err = place.stdout.read_bytes(), place.stderr.read_bytes()
        assert (len(out), len(err)) == (outcome.stdout_size, outcome.stderr_size)
        return outcome, out, err

    async def place(self, key: Key) -> Place:
        return await self.executor.place(key, USER)

    async def wrote(self, key: Key, name: str) -> Path:
        """A file of the job's, on the host where it runs, once it is there."""
        path = self.spool.folder(key) / "work" / name
        async with asyncio.timeout(PATIENCE_S):
            while not path.exists():  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        return path


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
