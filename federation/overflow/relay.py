"""What a job writes, from what has come of it to the proxy that writes it to the job's own files.

Offsets count the bytes of the job's stream that there are: what was lost on the way is not counted. So much may be on
its way and not acknowledged; what was acknowledged is in the job's file.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from federation.errors import Refused
from federation.model.job import Job
from federation.model.states import Origin
from federation.overflow.frames import MOST_DATA, Stream, Welcome, data_head
from federation.policy.choose import LASTING
from federation.stage.mover import Mover
from federation.stage.pull import Pull

WINDOW_BYTES = 1 << 20  # of one stream
LOOK_S = 2.0  # between looks when nothing wakes us, such as at a link that was cut
_HAS_STARTED = frozenset({Origin.RUNNING, Origin.STOPPING, Origin.RESULTS_PENDING, Origin.DONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """So many bytes of a file from this one on."""

    file: BinaryIO
    at: int
    size: int


Send = Callable[[bytes, Part], Awaitable[None]]
"""The head of a frame, and what it announces."""


class Relay:
    """To one proxy, of one job. Who hears of the job, or of what was written, says so; all on one thread."""

    def __init__(self, mover: Mover, job: Job, begin: Welcome, send: Send) -> None:
        self._mover, self._send_part = mover, send
        self.job = job
        self._wake = asyncio.Event()
        self._pull: Pull | None = None
        self._sent = {Stream.STDOUT: begin.stdout, Stream.STDERR: begin.stderr}
        self._acknowledged = dict(self._sent)

    @property
    def written(self) -> Welcome:
        """What was acknowledged."""
        return Welcome(stdout=self._acknowledged[Stream.STDOUT], stderr=self._acknowledged[Stream.STDERR])

    @property
    def sent(self) -> Welcome:
        return Welcome(stdout=self._sent[Stream.STDOUT], stderr=self._sent[Stream.STDERR])

    def changed(self, job: Job) -> None:
        self.job = job
        self._wake.set()

    def acknowledged(self, stdout: int, stderr: int) -> None:
        """Raises ValueError for what was not sent."""
        for stream, upto in ((Stream.STDOUT, stdout), (Stream.STDERR, stderr)):
            if not self._acknowledged[stream] <= upto <= self._sent[stream]:
                raise ValueError(f"byte {upto} of {stream} was acknowledged, and was not sent")
            self._acknowledged[stream] = upto
        self._wake.set()

    async def run(self) -> Job:
        """Until the job is done, with all of its results, and its proxy has written all it wrote.

        Raises Refused: the one pool that it may run in will never take it.
        """
        try:
            while True:
                self._wake.clear()
                pull = self._followed()
                if pull is not None:
                    for stream in Stream:
                        await self._send(stream, pull)
                if self.job.state is Origin.DONE and self._sent == self._acknowledged:
                    return self.job
                if self.job.state is Origin.QUEUED:
                    self._check_hope()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()
        finally:
            self._watch(None)

    def _check_hope(self) -> None:
        """It is pinned to one pool. Raises Refused when that has refused it, or would for as long as it is as it is."""
        for pool, why in self.job.avoid:
            raise Refused(f"{pool} refused this job: {why}")
        for pool, why in self.job.reasons:
            if why.startswith(LASTING):
                raise Refused(f"{pool} can't run this job: {why}")

    def _followed(self) -> Pull | None:
        """What comes of its output, and that it does come, once there may be some."""
        job, mover = self.job, self._mover
        if not job.site or job.state not in _HAS_STARTED:
            return self._watch(None)
        if job.state is Origin.DONE:
            done = self._pull is not None and self._pull.ended
            return self._pull if done else self._watch(mover.pull(job.key))
        return self._watch(mover.follow(job.site, job.key) if mover.reaches(job.site) else mover.pull(job.key))

    def _watch(self, pull: Pull | None) -> Pull | None:
        if pull is not self._pull:
            if self._pull is not None:
                self._pull.watched.discard(self._wake)
            if pull is not None:
                pull.watched.add(self._wake)
            self._pull = pull
        return pull

    async def _send(self, stream: Stream, pull: Pull) -> None:
        """As much as there is, and as the window has room for."""
        known = pull.streams[stream.value]
        if self._sent[stream] >= known.written:
            return
        try:
            file = (pull.folder / stream.value).open("rb", buffering=0)
        except FileNotFoundError:
            return
        with file:
            while (room := self._acknowledged[stream] + WINDOW_BYTES - self._sent[stream]) > 0:
                at, most = lies_at(self._sent[stream], known.gaps)
                size = min(MOST_DATA, room, most, known.written - at)
                if size <= 0:
                    return
                head = data_head(stream, self._sent[stream], size)
                self._sent[stream] += size
                await self._send_part(head, Part(file=file, at=at, size=size))


def lies_at(offset: int, gaps: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """PURE: where in the file this byte of the stream is, and how many follow it before something is missing."""
    at = offset
    for begin, length in gaps:
        if begin > at:
            return at, begin - at
        at += length
    return at, 1 << 62
