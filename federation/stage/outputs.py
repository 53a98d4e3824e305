"""A target tells what jobs write, as bytes from the file they wrote it to, from any byte on, while they run and after.

A part without bytes says: this is all there is now.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from federation.access.acting import Account, acting_as
from federation.access.paths import Folder
from federation.errors import FedError, Refused, Unavailable
from federation.model.job import Attempt
from federation.model.states import OPEN, Target
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.growth import Growth
from federation.stage.holdings import Holdings, Watching
from federation.stage.slots import Shares, Slots
from federation.stage.threads import in_thread
from federation.tasks import ended
from federation.wire.convert import key_from_wire

log = logging.getLogger(__name__)

PART_BYTES = 1 << 20
MOST_FEEDS = 256  # of one stream of asks
MOST_READY = 8  # parts of one stream that wait to be sent
STATE_S = 1.0  # without a byte between looks at whether the job is over
TOLD_STATE_S = 30.0  # the same where somebody tells that it is
LATE_S, LATE_LOOKS = 1.0, 10  # between looks for bytes that a job wrote, by its record, and that its files lack yet

_Source = tuple[Key, "pb.Stream.ValueType"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rig:
    """What feeds work with."""

    holdings: Holdings
    growth: Growth
    watching: Watching | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """What one stream has to send: of which pool, if it holds one of its slots, and what."""

    slots: Slots
    parts: "asyncio.Queue[tuple[str, pb.OutputPart]]"


class Outputs:
    def __init__(self, holdings: Holdings, watching: Watching | None = None) -> None:
        self._rig = _Rig(holdings=holdings, growth=Growth(), watching=watching)
        self._shares = Shares()

    async def serve(self, site: str, asks: AsyncIterator[pb.OutputAsk]) -> AsyncIterator[pb.OutputPart]:
        """Until the asks end, or every stream that was asked for has. Raises Refused for too many at once."""
        ready = _Ready(slots=Slots(self._shares, site), parts=asyncio.Queue(MOST_READY))
        feeds: dict[_Source, _Feed] = {}
        asking = asyncio.create_task(self._take(site, asks, feeds, ready))
        waiting = asyncio.create_task(ready.parts.get())
        try:
            while True:
                await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    pool, part = waiting.result()
                    yield part
                    ready.slots.give(pool)
                    waiting = asyncio.create_task(ready.parts.get())
                elif asking.done():
                    asking.result()
                    return
        finally:
            try:
                await ended(asking, waiting, *(feed.task for feed in feeds.values()))
            finally:
                ready.slots.close()

    async def _take(
        self,
        site: str,
        asks: AsyncIterator[pb.OutputAsk],
        feeds: dict[_Source, "_Feed"],
        ready: "_Ready",
    ) -> None:
        async for ask in asks:
            source = key_from_wire(ask.key), ask.stream
            feed = feeds.get(source)
            if feed is None or feed.task.done():
                if len(feeds) >= MOST_FEEDS:
                    raise Refused(f"more than {MOST_FEEDS} outputs on one stream")
                feeds[source] = feed = _Feed(self._rig, site, source, ready)
                feed.start(ask.offset)
            feed.allow(ask.offset + ask.credit)


class _Feed:
    """One output of one job."""

    def __init__(self, rig: _Rig, site: str, source: _Source, ready: _Ready) -> None:
        self._rig, self._site, self._ready = rig, site, ready
        self._key, self._stream = source
        self._limit = 0
        self._allowed = asyncio.Event()
        self._changed = False  # its attempt, since that was looked at
        self._woken = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None  # of its file
        self._pool = ""
        self.task: asyncio.Task[None]

    def start(self, offset: int) -> None:
        self.task = asyncio.create_task(self._run(offset))

    def allow(self, limit: int) -> None:
        self._limit = limit
        self._allowed.set()

    async def _run(self, offset: int) -> None:
        watching = self._rig.watching
        try:
            with watching(self._key, self._wake) if watching is not None else nullcontext():
                await self._follow(offset)
        except FedError as error:
            why = str(error)
        except Exception:  # a fault of ours, with one output: who reads it would wait for ever
            log.exception("output.failed", extra={"site": self._site, "key": str(self._key)})
            why = "a fault of the daemon's there: its log says which"
        else:
            return
        await self._tell(offset, pb.OutputPart(failed=why.encode("utf-8", "backslashreplace").decode("utf-8")))

    async def _follow(self, offset: int) -> None:
        handle, told, last, late = -1, False, False, 0
        held = await self._rig.holdings.of(self._site, self._key)
        place = await self._rig.holdings.place(held)
        self._threads, self._pool = place.threads, held.attempt.pool
        path = place.stdout if self._stream == pb.STREAM_STDOUT else place.stderr
        try:
            while True:
                if handle < 0:
                    last = held.attempt.state not in OPEN
                    handle = await in_thread(_open, path, held.account, unwanted=_close, threads=place.threads)
                await self._wait_allowed(offset)
                if size := await self._more(handle, path, offset):
                    offset, told = offset + size, False
                    continue
                if held.attempt.state not in OPEN:
                    missing = self._missing(held.attempt, offset)
                    if last and (not missing or late >= LATE_LOOKS):
                        return await self._end(offset, missing)
                    # What another host wrote last, a server of files need not tell of but to who opens a file anew.
                    if last:
                        late += 1
                        await asyncio.sleep(LATE_S)
                    _close(handle)
                    handle = -1
                    continue
                if not told:
                    await self._tell(offset, pb.OutputPart(data=b""))
                told = True
                if await self._idle(handle if handle >= 0 else path, offset):
                    held = await self._rig.holdings.of(self._site, self._key)
        finally:
            _close(handle)

    async def _more(self, handle: int, path: Path, offset: int) -> int:
        """How many bytes came and were told. They are held, in a slot, until they are sent."""
        await self._ready.slots.take(self._pool)
        size = 0
        try:
            most = min(PART_BYTES, self._limit - offset)
            if data := await in_thread(_read, handle, path, most, offset, threads=self._threads):
                await self._tell(offset, pb.OutputPart(data=data), self._pool)
                size = len(data)
        finally:
            if not size:
                self._ready.slots.give(self._pool)
        return size

    async def _idle(self, file: int | Path, offset: int) -> bool:
        """Until there may be more of it. Whether its attempt is to be looked at."""
        told = self._rig.watching is not None
        self._woken.clear()
        size = offset if isinstance(file, int) else -1
        with self._rig.growth.watching(self._woken, file, size, self._threads):
            try:
                async with asyncio.timeout(TOLD_STATE_S if told else STATE_S):
                    if not self._changed:
                        await self._woken.wait()
            except TimeoutError:
                return True
        changed, self._changed = self._changed, False
        return changed

    def _wake(self) -> None:
        self._changed = True
        self._woken.set()

    def _missing(self, attempt: Attempt, offset: int) -> int:
        """How many bytes from there on it wrote, by its record. Raises Refused: they were dropped."""
        if attempt.state is Target.RELEASED:
            raise Refused("its output was dropped")
        if (outcome := attempt.outcome) is None:
            return 0
        size = outcome.stdout_size if self._stream == pb.STREAM_STDOUT else outcome.stderr_size
        return max(0, size - offset)

    async def _end(self, offset: int, missing: int) -> None:
        if missing:
            await self._tell(offset, pb.OutputPart(missing=missing))
        await self._tell(offset + missing, pb.OutputPart(end=True))

    async def _wait_allowed(self, offset: int) -> None:
        while self._limit <= offset:
            self._allowed.clear()
            await self._allowed.wait()

    async def _tell(self, offset: int, part: pb.OutputPart, pool: str = "") -> None:
        key = pb.Key(token=self._key.token.bytes, attempt=self._key.attempt)
        part.MergeFrom(pb.OutputPart(key=key, stream=self._stream, offset=offset))
        await self._ready.parts.put((pool, part))


def _open(path: Path, account: Account) -> int:
    """-1: it is not there yet. Raises Refused for what is no plain file, Unavailable."""
    with suppress(FileNotFoundError):
        try:
            with acting_as(account), Folder(path.parent) as folder:
                return folder.open_to_read(os.fsencode(path.name))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unavailable(f"{account.name} can't read the output: {error.strerror}") from None
    return -1


def _close(handle: int) -> None:
    if handle >= 0:
        os.close(handle)


def _read(handle: int, path: Path, size: int, offset: int) -> bytes:
    """Raises Unavailable, such as for a file that its server no longer knows: opened again, it may be read."""
    try:
        return os.pread(handle, size, offset) if handle >= 0 else b""
    except OSError as error:
        raise Unavailable(f"can't read {path}: {error.strerror}") from None
