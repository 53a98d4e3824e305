"""One proxy's visit: what it says is taken in, what its job writes is relayed, and it is told how the job has ended."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from federation.access.local import Caller
from federation.errors import FedError
from federation.model.job import Job
from federation.model.states import End, Origin
from federation.overflow.burst import AHEAD_BYTES, KEEP_BYTES, Burst, Ending, Ends, Heard, Way, begins_at
from federation.overflow.frames import (
    HEAD,
    Acknowledged,
    Ended,
    Hello,
    Ping,
    Refusal,
    Signalled,
    Welcome,
    from_proxy,
    length,
    to_proxy,
)
from federation.overflow.holding import until_its_own
from federation.overflow.pacing import Pacer
from federation.overflow.relay import Part, Relay
from federation.overflow.slurm_side import SlurmSide
from federation.runner import Runner
from federation.stage.mover import Mover
from federation.tasks import ended, heed

log = logging.getLogger(__name__)

MOST_HEARD = 100  # signals, and pings, that wait to be dealt with; more are not read
ANSWERS_S = 60.0  # longest that what a proxy said before it went is still dealt with
BY_SLURM_S = 120.0  # longest wait for the TERM of a Slurm that was told to end the job
_STOPPED = frozenset({Ends.CANCEL, Ends.TIMEOUT, Ends.REQUEUE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Staff:
    """What visits are served with. `settled` is called when something is to be looked at on Slurm's side."""

    runner: Runner
    mover: Mover
    side: SlurmSide
    settled: Callable[[], None] = lambda: None
    ends: Pacer = field(default_factory=Pacer)


class Visit:
    """From a hello on. `served` begins once Slurm has confirmed what was said in it."""

    def __init__(self, staff: Staff, caller: Caller, hello: Hello, writer: asyncio.StreamWriter) -> None:
        self.staff, self.caller, self.hello = staff, caller, hello
        self._writer = writer
        self._turn = asyncio.Lock()  # one frame after another
        self.burst: Burst | None = None  # once its job is on record
        self._began = self._kept = Welcome(stdout=0, stderr=0)  # as it was welcomed; as it was written down
        self._relay: Relay | None = None
        self._answering: asyncio.Task[None] | None = None
        self._heard: asyncio.Queue[Signalled | Ping] = asyncio.Queue(MOST_HEARD)
        self._by_slurm = asyncio.Event()  # Slurm is ending the job
        self._may_end = asyncio.Event()  # there is a TERM that was not dealt with yet

    # -- what it says

    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Until it has gone. Raises ValueError for what no proxy says, and IncompleteReadError at the end."""
        while True:
            kind, size = length(await reader.readexactly(HEAD.size), most_hello=0)
            match from_proxy(kind, await reader.readexactly(size)):
                case Acknowledged() as message:
                    if self._relay is not None:
                        self._relay.acknowledged(message.stdout, message.stderr)
                        if max(message.stdout - self._kept.stdout, message.stderr - self._kept.stderr) >= KEEP_BYTES:
                            await self._keep(self._relay.written)
                    elif message != Acknowledged(stdout=self._began.stdout, stderr=self._began.stderr):
                        raise ValueError("nothing was sent, and something was acknowledged")
                case Signalled() | Ping() as message:
                    await self._heard.put(message)
                    if isinstance(message, Signalled) and message.number == signal.SIGTERM:
                        self._may_end.set()

    async def _answer(self) -> None:
        """Signals in their order; a ping behind one is answered once that was dealt with."""
        while True:
            message = await self._heard.get()
            if isinstance(message, Ping):
                with suppress(ConnectionError):  # signals that came before it went are behind this one
                    await self.say(to_proxy(message))
            elif message.number == signal.SIGCONT:
                await self._hears_if_not_ended(self._heard_as(message))
            else:
                await self.hears(self._heard_as(message))
                if message.number == signal.SIGTERM:
                    self._may_end.clear()
            self._heard.task_done()

    def _heard_as(self, message: Signalled) -> Heard:
        return Heard(signal=message.number, from_stepd=message.from_stepd, restarts=self.hello.restarts)

    async def _hears_if_not_ended(self, heard: Heard) -> None:
        """Slurm sends CONT before the TERM of an end, which must not wait for what a CONT means."""
        hears = asyncio.create_task(self.hears(heard))
        may_end = asyncio.create_task(self._may_end.wait())
        try:
            await asyncio.wait((hears, may_end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await ended(hears, may_end)

    async def hears(self, heard: Heard) -> None:
        try:
            ends = await self.staff.side.heard(self.hello.job_id, heard)
        except FedError as error:  # what Slurm has on record of it is looked at every few seconds
            heed()
            log.warning("burst.signal_lost", extra={"job": self.hello.job_id, "why": str(error)})
            return
        if ends in _STOPPED:
            self._by_slurm.set()
            self.staff.settled()

    # -- what it is told

    async def say(self, frame: bytes) -> None:
        async with self._turn:
            self._writer.write(frame)
            await self._writer.drain()

    async def _pass_on(self, head: bytes, part: Part) -> None:
        """Not by sendfile: asyncio hears nothing of who is there until all of that is on its way."""
        data = os.pread(part.file.fileno(), part.size, part.at)
        if len(data) != part.size:
            raise ConnectionResetError("the output that is here became shorter")
        await self.say(head + data)

    def cut(self) -> None:
        """Another one is there for its job."""
        self._writer.transport.abort()

    async def welcome(self, burst: Burst) -> None:
        """Its job is on record here: from now on its signals mean something. Said once."""
        if self.burst is None:
            self.burst = burst
            self._began = self._begin(burst)
            self._kept = Welcome(stdout=burst.stdout_most - AHEAD_BYTES, stderr=burst.stderr_most - AHEAD_BYTES)
            if self._began != self._kept:
                await self._keep(self._began)
            await self.say(to_proxy(self._began))
            self._answering = asyncio.create_task(self._answer())

    async def served(self, burst: Burst, job: Job) -> Ended:
        """How it ends, once the proxy has written all that the job wrote. Raises Refused: it never runs."""
        relay = self._relay = Relay(self.staff.mover, job, self._began, self._pass_on)
        with self.staff.runner.watching(burst.token, relay.changed):
            found = await self.staff.runner.read(lambda store: store.job(burst.token))
            if found is not None and relay.job is job:  # what was told meanwhile is newer
                relay.changed(found)
            done = await relay.run()
            await self.staff.side.written(burst)
            return await self._end(burst, done)

    async def _keep(self, written: Welcome, sent: Welcome | None = None) -> None:
        """Write down how much of its output is in its files, and how much may be: all `sent`, if no more will be.

        Nothing where another proxy of the job has come, and that is on record.
        """
        kept, most = self._kept, sent or _ahead(written)

        def keep(burst: Burst, _: Job | None) -> Burst:
            if Welcome(stdout=burst.stdout_most, stderr=burst.stderr_most) != _ahead(kept):
                return burst
            acked = replace(burst, stdout_acked=written.stdout, stderr_acked=written.stderr)
            return replace(acked, stdout_most=most.stdout, stderr_most=most.stderr)

        if self.burst is not None:
            with suppress(FedError):  # a disk that is full: its bytes may be taken for others'
                await self.staff.side.change(self.burst, keep)
                self._kept = written

    async def close(self, *, gone: bool = False) -> None:
        """`gone`: the proxy has, and what it has said is still worth something: KILL follows a TERM that takes long."""
        if gone and self._relay is not None:
            await self._keep(self._relay.written, self._relay.sent)
        if self._answering is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWERS_S if gone else 0):
                    await self._heard.join()
            await ended(self._answering)

    async def refused(self, why: str) -> bytes:
        """Nothing of it is to run. Its last frame: of a job that Slurm is ending, no word in its output."""
        await self.staff.ends.turn()
        if self.burst is not None:
            await self.staff.side.stop(self.burst, why)
            self.staff.settled()
            await until_its_own(self.staff.side, self.burst, self._by_slurm)
        if self._by_slurm.is_set():
            return to_proxy(Ended(by_signal=True, value=signal.SIGTERM))
        return to_proxy(Refusal(text=why))

    def _begin(self, burst: Burst) -> Welcome:
        """The first bytes that it wants: from where it was, or from what its files have beyond what they had before."""
        hello = self.hello
        if hello.stdout_next >= 0 and hello.stderr_next >= 0:
            return Welcome(stdout=hello.stdout_next, stderr=hello.stderr_next)
        stdout = hello.stdout_size - burst.stdout_base - burst.stdout_own
        stderr = hello.stderr_size - burst.stderr_base - burst.stderr_own
        return Welcome(
            stdout=begins_at(stdout, burst.stdout_acked, burst.stdout_most),
            stderr=begins_at(stderr, burst.stderr_acked, burst.stderr_most),
        )

    async def _end(self, burst: Burst, job: Job) -> Ended:
        await self.staff.ends.turn()
        if self._by_slurm.is_set():
            return _as_it_was(job)
        ending = await self.staff.side.end(burst.token)
        log.info("burst.over", extra={"job": burst.name, "token": str(burst.token), "way": ending.way.value})
        if ending.way not in (Way.EXIT, Way.SIGNAL):
            with suppress(TimeoutError):
                async with asyncio.timeout(BY_SLURM_S):
                    await self._by_slurm.wait()
                return _as_it_was(job)
        self.staff.settled()
        await until_its_own(self.staff.side, burst, self._by_slurm)
        return _as_it_was(job) if self._by_slurm.is_set() else _ended(ending)


def _ahead(written: Welcome) -> Welcome:
    return Welcome(stdout=written.stdout + AHEAD_BYTES, stderr=written.stderr + AHEAD_BYTES)


def _ended(ending: Ending) -> Ended:
    return Ended(by_signal=ending.way is Way.SIGNAL, value=ending.value)


def _as_it_was(job: Job) -> Ended:
    """Of a job that Slurm has ended, whose script may have had its own word about it."""
    outcome = job.outcome
    if outcome is not None and outcome.end is End.EXITED and job.state is Origin.DONE:
        return Ended(by_signal=False, value=outcome.exit_code or 0)
    by = outcome.signal if outcome is not None and outcome.signal else int(signal.SIGTERM)
    return Ended(by_signal=True, value=by)
