"""The agent's talk with the controller: its whole inventory whenever that changed, and the controller's terms, steps.

The agent works alone while the controller is away; a new session starts from a whole inventory, so nothing that was not
delivered is owed.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from slurm_plugin.agent.convert import terms_from_wire
from slurm_plugin.agent.runs import Runs
from slurm_plugin.agent.slices import Slices
from slurm_plugin.errors import NvmlError, VgpuError
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from slurm_plugin.wire import step_from_wire

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2  # before dialling again
LONGEST_PAUSE_S = 15.0
VERDICT_S = 0.5  # longest that an epilog waits for the controller
STEPS_MAX = 256  # steps waiting to be made
OUTBOX_MAX = 4096  # answers waiting to be sent


class Stream(Protocol):
    """An open, trusted session. Both raise a VgpuError when it is over."""

    async def send(self, message: pool_pb2.FromAgent) -> None: ...

    def __aiter__(self) -> AsyncIterator[pool_pb2.ToAgent]: ...


Dial = Callable[[], AbstractAsyncContextManager[Stream]]


class ControllerSession:
    def __init__(
        self, dial: Dial, *, runs: Runs, slices: Slices, inventory: Callable[[int], pool_pb2.Inventory]
    ) -> None:
        self._dial = dial
        self._runs = runs
        self._slices = slices
        self._inventory = inventory
        self._revision = 1
        self._told = 0  # the last revision this session's controller was sent
        self._outbox: deque[pool_pb2.FromAgent] = deque(maxlen=OUTBOX_MAX)
        self._overflowed = False  # of this session, and logged
        self._something = asyncio.Event()
        self._verdicts: dict[int, asyncio.Event] = {}
        self._steps: asyncio.Queue[pool_pb2.ToAgent] = asyncio.Queue(STEPS_MAX)
        self.connected = asyncio.Event()
        self._complaint = ""

    @property
    def owes(self) -> int:
        """Answers that wait to be sent."""
        return len(self._outbox)

    def changed(self) -> None:
        """The inventory differs from the one last sent."""
        self._revision += 1
        self._something.set()

    async def fence(self, job_id: int, slices: tuple[str, ...]) -> None:
        """Tell what was freed, and return when the controller has published what follows. Bound: VERDICT_S."""
        if not self.connected.is_set():
            return
        verdict = self._verdicts.setdefault(job_id, asyncio.Event())
        self._say(pool_pb2.FromAgent(released=pool_pb2.Released(job_id=job_id, slices=slices)))
        try:
            async with asyncio.timeout(VERDICT_S):
                await verdict.wait()
        except TimeoutError:
            log.warning("fence.no_verdict", extra={"job_id": job_id})
        finally:
            self._verdicts.pop(job_id, None)

    async def run(self) -> None:
        """Keep a session open, for ever."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                async with self._dial() as stream:
                    log.info("session.open")
                    opened_at = time.monotonic()
                    try:
                        await self._talk(stream)
                    finally:
                        if time.monotonic() - opened_at > LONGEST_PAUSE_S:
                            pause = FIRST_PAUSE_S  # it was a good one; one that is thrown out at once must not spin
            except* VgpuError as errors:
                self._complain(str(errors.exceptions[0]))
            finally:
                self.connected.clear()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads agents, keeps no secret
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _complain(self, why: str) -> None:
        """Once for each reason: a controller may be away for days."""
        log.log(logging.DEBUG if why == self._complaint else logging.WARNING, "session.over", extra={"error": why})
        self._complaint = why

    async def _talk(self, stream: Stream) -> None:
        self._told = 0
        self._outbox.clear()
        self._overflowed = False
        self._something.set()
        self.connected.set()
        self._complaint = ""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._speak(stream))
            group.create_task(self._make_steps())
            async for message in stream:
                await self._hear(message)

    async def _speak(self, stream: Stream) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            while self._told != self._revision or self._outbox:
                if self._told != self._revision:  # first: an answer speaks of what this inventory shows
                    self._told = self._revision
                    await stream.send(pool_pb2.FromAgent(inventory=self._inventory(self._told)))
                else:
                    await stream.send(self._outbox.popleft())

    async def _hear(self, message: pool_pb2.ToAgent) -> None:
        kind = message.WhichOneof("message")
        if kind == "offers":
            await self._runs.agree(terms_from_wire(message.offers))
        elif kind == "verdict":
            if verdict := self._verdicts.get(message.verdict.job_id):
                verdict.set()
        elif kind in ("step", "retry"):
            try:
                self._steps.put_nowait(message)
            except asyncio.QueueFull:
                self._answer(message.step.id, NvmlError(f"{STEPS_MAX} steps are waiting already"))

    async def _make_steps(self) -> None:
        """One after the other. A step under way is finished, whatever becomes of the session."""
        while not self._steps.empty():  # asked for by a session that is over
            self._steps.get_nowait()
        while True:
            message = await self._steps.get()
            step = message.step if message.WhichOneof("message") == "step" else None
            work = asyncio.create_task(self._slices.make(step_from_wire(step)) if step else self._slices.retry())
            work.add_done_callback(_looked_at)
            try:
                await asyncio.shield(work)
            except VgpuError as error:
                self._answer(message.step.id, error)
            else:
                if step:
                    self._answer(step.id, None)

    def _answer(self, step_id: int, error: VgpuError | None) -> None:
        result = pool_pb2.StepResult(id=step_id, error=str(error) if error else "", code=error.code if error else "")
        self._say(pool_pb2.FromAgent(result=result))

    def _say(self, message: pool_pb2.FromAgent) -> None:
        if len(self._outbox) == OUTBOX_MAX and not self._overflowed:
            log.warning("session.outbox_full", extra={"most": OUTBOX_MAX})
            self._overflowed = True
        self._outbox.append(message)
        self._something.set()


def _looked_at(work: "asyncio.Task[None]") -> None:
    """The session may be over by the time a step fails: the next inventory then tells."""
    if not work.cancelled() and work.exception() is not None:
        log.warning("step.failed", extra={"error": str(work.exception())})
