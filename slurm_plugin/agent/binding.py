"""Which run gets which slices, now or after a wait: the queue of the prolog calls that wait, and how it is served."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.cluster import ASK_PAUSE_S
from slurm_plugin.agent.ledger import Ledger
from slurm_plugin.agent.slices import Slices
from slurm_plugin.agent.terms import Want
from slurm_plugin.errors import NvmlError
from slurm_plugin.model import Grant, RunKey
from slurm_plugin.ports import JobRun

log = logging.getLogger(__name__)

CUTS_PER_RUN = 16  # steps tried for one waiting run before it waits for others to end
CHOOSY_S = 1.0  # a look at a slice takes some hundredths of that
WAITING_MAX = 1024  # runs that wait for a slice; beyond it they are turned away at once


class Outcome(StrEnum):
    BOUND = "bound"
    NONE_LEFT = "none left"
    GONE = "gone"  # the job ended, or its prolog did, while it waited


@dataclass(slots=True, kw_only=True, eq=False)
class Waiting:
    """A prolog that waits for a slice."""

    run: JobRun
    want: Want
    since: float  # Unix seconds
    outcome: asyncio.Future[Outcome]
    choosy_until: float  # loop's clock: so long it lets a slice lie that suits it worse than one that is looked at
    taking: bool = False  # its grant is being written
    expired: bool = False

    def end(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


def grant_of(run: JobRun, want: Want, slices: tuple[str, ...], now: float) -> Grant:
    return Grant(
        run=run.key,
        gres_class=want.gres_class,
        count=want.count,
        slices=slices,
        made_at=now,
        ends_at=run.ends_at,
    )


async def _no_fence(_job_id: int, _slices: tuple[str, ...]) -> None:
    """Without a controller a freed slice stays what it was."""


@dataclass(slots=True, kw_only=True)
class Rules:
    """What a node's runs are bound by."""

    node: str
    gres: str = "vgpu"
    pad: str = "pad"
    wait_s: float = 30.0  # longest wait of a prolog for a slice
    ask_pause_s: float = ASK_PAUSE_S
    fence: Callable[[int, tuple[str, ...]], Awaitable[None]] = _no_fence  # on release: wait for the verdict
    now: Callable[[], float] = time.time


class Binding:
    """`give_back` takes the slices of a run that left while they were being given to it."""

    def __init__(
        self,
        rules: Rules,
        book: Book,
        *,
        ledger: Ledger,
        slices: Slices,
        give_back: Callable[[RunKey], Awaitable[None]],
    ) -> None:
        self.waiting: list[Waiting] = []
        self._rules = rules
        self._book = book
        self._ledger = ledger
        self._slices = slices
        self._give_back = give_back
        self._wake = asyncio.Event()

    def stir(self) -> None:
        """Something moved: look at the waiting runs again."""
        self._wake.set()

    def gone(self, job_id: int) -> None:
        """Nobody waits for this job's slice any more."""
        for waiting in self.waiting:
            if waiting.run.key.job_id == job_id:
                waiting.end(Outcome.GONE)

    async def serve(self) -> None:
        """Serve the runs that wait, for ever, whenever something moved. First come, first served within a class."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            blocked: set[str] = set()
            for waiting in tuple(self.waiting):
                if waiting.want.gres_class not in blocked and not await self._serve(waiting):
                    blocked.add(waiting.want.gres_class)

    async def bind(self, run: JobRun, want: Want, *, wait_s: float) -> Outcome:
        """`wait_s`: longest wait for slices."""
        want = replace(want, begins_at=run.key.started_at, ends_at=run.ends_at)
        overtakes = any(other.want.gres_class == want.gres_class for other in self.waiting)
        if not await self._ledger.writable():
            return Outcome.NONE_LEFT
        choosy = len(self.waiting) < WAITING_MAX and self._book.better_soon(run.key.job_id, want)
        if not overtakes and not choosy and await self._take(run, want):
            return Outcome.BOUND
        if len(self.waiting) >= WAITING_MAX:
            log.warning("bind.too_many_wait", extra={"job_id": run.key.job_id, "most": WAITING_MAX})
        if self._ledger.fault or len(self.waiting) >= WAITING_MAX:
            return Outcome.NONE_LEFT
        loop = asyncio.get_running_loop()
        waiting = Waiting(
            run=run,
            want=want,
            since=self._rules.now(),
            outcome=loop.create_future(),
            choosy_until=loop.time() + CHOOSY_S,
        )
        self.waiting.append(waiting)
        stir = loop.call_at(waiting.choosy_until, self.stir)
        self._slices.moved()
        log.info("bind.waits", extra={"job_id": run.key.job_id, "class": want.gres_class, "count": want.count})
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(waiting.outcome)
        except TimeoutError:
            waiting.expired = True
            if not waiting.taking:
                waiting.end(Outcome.NONE_LEFT)
            return await waiting.outcome  # being written: a matter of milliseconds
        finally:
            stir.cancel()
            waiting.end(Outcome.GONE)
            self.waiting.remove(waiting)
            self._slices.moved()

    async def _serve(self, waiting: Waiting) -> bool:
        """Give a waiting run its slices, cutting where there is room. False: its class has to wait on."""
        job_id = waiting.run.key.job_id
        choosy = asyncio.get_running_loop().time() < waiting.choosy_until
        if choosy and self._book.better_soon(job_id, waiting.want):
            return False
        refused: set[tuple[str, str]] = set()
        try:
            for _ in range(CUTS_PER_RUN):
                if waiting.outcome.done() or await self._take_for(waiting):
                    return True
                soon = self._book.soon(job_id, waiting.want)
                step = None if soon else self._book.cut(job_id, waiting.want, refused)
                if step is None:
                    return False
                self._book.promise(job_id, self._book.pick(job_id, waiting.want))
                try:
                    await self._slices.make(step, cut=True)
                except NvmlError as error:
                    refused.add((step.gpu, step.create[0][0]))
                    log.warning("cut.refused", extra={"job_id": job_id, "gpu": step.gpu, "error": str(error)})
            return False
        finally:
            self._book.unpromise(job_id)

    async def _take_for(self, waiting: Waiting) -> bool:
        waiting.taking = True
        taken = await self._take(waiting.run, waiting.want)
        waiting.taking = False
        if taken and waiting.outcome.done():  # it left while its grant was written
            await self._give_back(waiting.run.key)
        elif taken or waiting.expired:
            waiting.end(Outcome.BOUND if taken else Outcome.NONE_LEFT)
        return taken

    async def _take(self, run: JobRun, want: Want) -> bool:
        """Give a run its slices if all of them are idle now."""
        slices = await self._sound(run.key.job_id, want)
        if len(slices) < want.count:
            return False
        grant = grant_of(run, want, slices, self._rules.now())
        self._book.add(grant)
        if not await self._ledger.keep(grant):
            self._book.drop(grant)
            for waiting in self.waiting if self._ledger.fault else ():
                waiting.end(Outcome.NONE_LEFT)
            return False
        self._slices.moved()
        log.info("bind.done", extra={"job_id": run.key.job_id, "class": want.gres_class, "slices": slices})
        return True

    async def _sound(self, job_id: int, want: Want) -> tuple[str, ...]:
        """Idle slices of GPUs that answer; fewer than wanted when there are not enough."""
        slices = self._book.pick(job_id, want)
        for _ in range(1 + len(self._book.gpus)):  # each time one GPU fewer is in question
            if len(slices) < want.count:
                return slices
            self._book.promise(job_id, slices)
            try:
                sound = await self._slices.sound(slices)
            finally:
                self._book.unpromise(job_id)
            again = self._book.pick(job_id, want)
            if sound and again == slices:
                return slices
            slices = again
        return ()
