"""An origin takes what a job writes, while it runs and after, and goes on at the byte where it was cut.

Bytes are durable before the far side hears that they came. Bytes that will never come leave a hole in the file and a
line about it: `gaps`. Who stops taking it waits for what a thread has begun with its files.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from federation.errors import Unavailable
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.far import Far
from federation.stage.spool import PRIVATE, STREAMS
from federation.stage.threads import in_thread
from federation.store.room import leave_room
from federation.tasks import ended
from federation.wire.convert import key_to_wire
from slurm_plugin import atomic

WINDOW_BYTES = 32 << 20  # that may be on their way or not durable yet, of one stream
MAX_MISSING = 1 << 40  # bytes of one gap
MOST_GAPS = 1000  # of one stream: a site that behaves tells of one, at the end
MOST_AHEAD = 4  # parts that wait to be written
MOST_WHY = 400  # characters of why the far side failed


@dataclass(slots=True)
class Stream:
    """One output. `gaps`: (offset, length)."""

    durable: int = 0
    written: int = 0
    ended: bool = False
    gaps: list[tuple[int, int]] = field(default_factory=list)


class Pull:
    """Both outputs of one attempt. `changed`, and each of `watched`, is set whenever more has come, or all there is."""

    def __init__(self, key: Key, folder: Path) -> None:
        """Synchronous, and reads a small file."""
        self._key = key
        self.folder = folder
        self.streams: dict[str, Stream] = {}
        self.caught_up: set[str] = set()  # all that there was has come
        self.changed = asyncio.Event()
        self.watched: set[asyncio.Event] = set()
        self._asks: asyncio.Queue[pb.OutputAsk | None] = asyncio.Queue()
        self._load()

    @property
    def ended(self) -> bool:
        return all(one.ended for one in self.streams.values())

    @property
    def all_there(self) -> bool:
        """Has all come that there is now?"""
        return all(one.ended or name in self.caught_up for name, one in self.streams.items())

    async def run(self, far: Far, most: int = 1 << 62) -> None:
        """Until both have ended, or have more than `most` bytes together.

        Raises Unavailable, Refused: what came until then is kept. Told again, it goes on.
        """
        self._asks = asyncio.Queue()
        self.caught_up.clear()
        handles: dict[str, int] = {}
        try:
            for name in STREAMS:
                handles[name] = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._load()
            for name, stream in self.streams.items():
                if not stream.ended:
                    self._ask(name)
            async with _ahead(far.outputs(self._asking())) as parts:
                while not self.ended:
                    await self._take(await parts(), handles)
                    if sum(one.written for one in self.streams.values()) > most:
                        raise Unavailable(f"it writes more than the {most} bytes that are taken from there")
        finally:
            self._asks.put_nowait(None)
            for handle in handles.values():
                os.close(handle)

    async def _asking(self) -> AsyncIterator[pb.OutputAsk]:
        """It ends with `run`: gRPC waits for what asks, also when the other end has given the call up."""
        while (ask := await self._asks.get()) is not None:
            yield ask

    def _ask(self, name: str) -> None:
        stream = pb.STREAM_STDOUT if name == "stdout" else pb.STREAM_STDERR
        offset = self.streams[name].durable
        self._asks.put_nowait(
            pb.OutputAsk(key=key_to_wire(self._key), stream=stream, offset=offset, credit=WINDOW_BYTES)
        )

    async def _take(self, part: pb.OutputPart, handles: dict[str, int]) -> None:
        name = "stdout" if part.stream == pb.STREAM_STDOUT else "stderr"
        stream = self.streams[name]
        kind = part.WhichOneof("part")
        if kind == "failed":
            raise Unavailable(part.failed[:MOST_WHY])
        if part.offset != stream.written:
            raise Unavailable(f"{name} went on at byte {part.offset}, and {stream.written} was next")
        if kind == "data":
            if part.data:
                await in_thread(_write_all, handles[name], part.data, stream.written)
                stream.written += len(part.data)
            else:
                self.caught_up.add(name)
        elif kind == "missing":
            if not 0 < part.missing <= MAX_MISSING:
                raise Unavailable(f"{part.missing} bytes of {name} can't be missing")
            if len(stream.gaps) >= MOST_GAPS:
                raise Unavailable(f"{name} has more than {MOST_GAPS} gaps")
            stream.gaps.append((stream.written, part.missing))
            stream.written += part.missing
        elif kind == "end":
            stream.ended = True
        if stream.ended or kind == "missing" or stream.written - stream.durable >= WINDOW_BYTES // 4:
            await self._settle(name, handles[name])
        for event in (self.changed, *self.watched):
            event.set()

    async def _settle(self, name: str, handle: int) -> None:
        stream = self.streams[name]
        durable = stream.written
        await in_thread(self._sync, name, handle, durable)
        stream.durable = durable
        if not stream.ended:
            self._ask(name)

    def _sync(self, name: str, handle: int, durable: int) -> None:
        """Raises Unavailable."""
        known = {one: (held.durable, held.ended, held.gaps) for one, held in self.streams.items()}
        known[name] = (durable, self.streams[name].ended, self.streams[name].gaps)
        try:
            os.truncate(handle, durable)  # makes a hole of what is missing at the end
            os.fsync(handle)
            atomic.write(self.folder / "pulled.json", json.dumps(known).encode("ascii"), mode=PRIVATE)
        except OSError as error:
            raise Unavailable(f"can't keep the output: {error.strerror}", hint="make room in state_dir") from None

    def _load(self) -> None:
        """What is durable, and nothing else."""
        self.streams = {name: Stream() for name in STREAMS}
        try:
            known = json.loads((self.folder / "pulled.json").read_bytes())
        except FileNotFoundError:
            return
        for name, (durable, over, gaps) in known.items():
            gaps = [(offset, length) for offset, length in gaps]
            self.streams[name] = Stream(durable=durable, written=durable, ended=over, gaps=gaps)


@asynccontextmanager
async def _ahead(parts: AsyncIterator[pb.OutputPart]) -> AsyncIterator[Callable[[], Awaitable[pb.OutputPart]]]:
    """What tells the next part: some come while one is being written. It raises what the stream raises, or its end."""
    came: asyncio.Queue[pb.OutputPart | None] = asyncio.Queue(MOST_AHEAD)

    async def read() -> None:
        try:
            async for part in parts:
                await came.put(part)
        finally:
            with suppress(asyncio.QueueFull):
                came.put_nowait(None)

    async def following() -> pb.OutputPart:
        if not reading.done() or not came.empty():
            part = await came.get()
            if part is not None:
                return part
        await reading
        raise Unavailable("the far side stopped telling")

    reading = asyncio.create_task(read())
    try:
        yield following
    finally:
        await ended(reading)


def _write_all(handle: int, data: bytes, offset: int) -> None:
    """Raises Unavailable when the disk is full: it is asked for again."""
    view = memoryview(data)
    while view:
        try:
            leave_room(handle, len(view))
            done = os.pwrite(handle, view, offset)
        except OSError as error:
            raise Unavailable(f"can't keep the output: {error.strerror}", hint="make room in state_dir") from None
        view, offset = view[done:], offset + done
