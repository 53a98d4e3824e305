"""What happens to a burst on Slurm's side: a run of its job comes, hears a signal, ends.

Each step is written down before anything follows from it, and may be done again. Slurm is told what concerns its own
record of the job: our note, its time limit, where it may start. A slurmctld that does not answer decides nothing.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from federation.engine.effects import Effect
from federation.errors import Refused, Unavailable
from federation.model.job import Job
from federation.model.spec import JobSpec
from federation.model.states import Origin
from federation.model.token import RANDOM_BYTES, mint
from federation.overflow import notes
from federation.overflow.arrivals import Arrival, arrive
from federation.overflow.burst import (
    SLACK_S,
    Burst,
    Claim,
    Ending,
    Ends,
    Heard,
    Phase,
    SlurmJob,
    Way,
    ending,
    ends_at,
    left_behind,
    longest,
    put_off,
    same_job,
    same_run,
    shrunk,
    stopping,
    verdict,
)
from federation.overflow.bursts import OVER, burst_of, by_token, save
from federation.overflow.slurm_site import SlurmSite
from federation.ports import Now
from federation.runner import Runner
from federation.store.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

ASKS = 30  # of a slurmctld that does not answer, about one signal: a proxy that is to end has KillWait, 30 s by default
ASK_S = 1.0  # between them
LAST_NOTE_S = 3.0  # longest wait for the note before a job ends: its end does not wait for slurmctld

_WHY = {
    Ends.CANCEL: "cancelled in Slurm",
    Ends.TIMEOUT: "its time limit in Slurm was over",
    Ends.REQUEUE: "requeued in Slurm: the next run begins anew",
}
_CAN_T_CHANGE = "DB index is being set"
_SUSPEND, _RESUME = (20, 19), (18,)  # TSTP and STOP, as Slurm does it; CONT


class SlurmSide:
    """`longest_wait_s`: how long a job may wait elsewhere, added to its limit while it does."""

    def __init__(self, runner: Runner, site: SlurmSite, longest_wait_s: int, clock: Callable[[], Now]) -> None:
        self._runner, self._site, self._longest_wait_s, self._clock = runner, site, longest_wait_s, clock
        self._limits: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    # -- a run comes

    async def arrived(self, arrival: Arrival) -> tuple[Claim, Burst | None]:
        """What this proxy gets. With NEW and REATTACH what runs, or will, may be attached to: `accept` comes first.

        Raises Unavailable. Crash: the proxy says hello again, and finds the burst that was written down.
        """
        job, now = arrival.job, self._clock()
        token = mint(int(now.wall * 1000), secrets.token_bytes(RANDOM_BYTES))
        what, burst = await self._write(lambda store: arrive(store, arrival, token, int(now.wall)))
        if what is Claim.REUSED and burst is not None:
            log.warning("burst.reused", extra=facts(burst) | {"why": "its slurmctld gave its JobId to another job"})
            await self.stop(burst, "its slurmctld forgot it, and gave its JobId to another job")
            return Claim.WAIT, burst
        if what not in (Claim.NEW, Claim.REATTACH) or burst is None:
            return what, burst
        log.info("burst.begun" if what is Claim.NEW else "burst.reattached", extra=facts(burst))
        if '"open":1' not in job.note:
            await self._noted(burst, job)
        with suppress(Unavailable):
            fed = await self._runner.read(lambda store: store.job(burst.token))
            await self.tell_time(burst, job, fed)
        return what, burst

    async def _noted(self, burst: Burst, job: SlurmJob) -> None:
        """Raises Unavailable. A job that can start in our partition only needs no note that keeps other nodes from it;
        and of one whose slurmctld was killed as it asked slurmdbd for an index, Slurm lets nothing be changed any more.
        """
        try:
            await self._site.note(burst, notes.note(burst, None))
        except Unavailable as error:
            if len(job.partitions) > 1 or _CAN_T_CHANGE not in str(error):
                raise
            log.info("burst.not_noted", extra=facts(burst) | {"why": str(error)})

    async def accept(self, token: UUID, spec: JobSpec) -> Job:
        """The federation's job of this burst, durable; the same again for the same token.

        Raises Unavailable, StoreFull; Refused: the burst is not open any more.
        """

        def take(store: Store) -> Job:
            burst = by_token(store, token)
            if burst is None or burst.phase is not Phase.OPEN:
                raise Refused((burst.why if burst else "this job has not begun here") or "it is over in Slurm")
            if self._runner.draining and store.job(token) is None:
                raise Unavailable("this site is draining: it takes no new jobs")
            return self._runner.engine.origin.accept(store, token, spec, self._clock())

        return await self._write(take)

    # -- it hears a signal

    async def heard(self, job_id: int, heard: Heard) -> Ends:
        """What it means, and that is done: what runs is stopped, or gets the signal. Durable when it returns.

        Bound: ASKS seconds, while slurmctld does not answer.
        """
        burst = await self._runner.read(lambda store: burst_of(store, job_id))
        if burst is None or not heard.from_stepd:
            return Ends.NOTHING
        job, known = await self._asked(burst, heard)
        ends = verdict(heard, job, known=known)
        if job is not None and left_behind(burst, job):
            ends = Ends.NOTHING  # a slurmctld that forgot the start ends the first run, and the second one lives
        log.info("burst.signal", extra=facts(burst) | {"signal": heard.signal, "means": ends.value})
        match ends:
            case Ends.CANCEL | Ends.TIMEOUT | Ends.REQUEUE:
                await self.stop(burst, _WHY[ends])
            case Ends.SUSPEND | Ends.RESUME:
                await self.suspend(burst.token, ends is Ends.SUSPEND)
            case Ends.SIGNAL:
                with suppress(Refused):  # it does not run yet, or any more
                    await self._runner.signal(burst.token, heard.signal)
        return ends

    async def _asked(self, burst: Burst, heard: Heard) -> tuple[SlurmJob | None, bool]:
        for _ in range(ASKS):
            try:
                return await self._site.job(burst.job_id), True
            except Unavailable:
                if verdict(heard, None, known=False) is not Ends.NOTHING:
                    break  # that needs no answer
                await asyncio.sleep(ASK_S)
        return None, False

    async def job(self, job_id: int) -> SlurmJob | None:
        """What Slurm has under this id now. Raises Unavailable."""
        return await self._site.job(job_id)

    async def suspend(self, token: UUID, on: bool) -> None:
        """Let what runs stop for a while, or go on. Nothing for one that waits: it is told once it runs."""

        def tell(store: Store) -> list[Effect]:
            burst, job = by_token(store, token), store.job(token)
            if burst is None or job is None or job.state is not Origin.RUNNING or burst.suspended == on:
                return []
            save(store, replace(burst, suspended=on))
            origin, now = self._runner.engine.origin, self._clock()
            return [effect for one in (_SUSPEND if on else _RESUME) for effect in origin.signal(store, token, one, now)]

        await self._runner.act(tell)

    # -- it ends

    async def stop(self, seen: Burst, why: str) -> None:
        """Nothing of it is to run: durable, and tried until its site confirms.

        Not where another run of its job has come to own it since it was `seen`: that is not what was decided about.
        """

        def write(store: Store) -> list[Effect]:
            burst, job = by_token(store, seen.token), store.job(seen.token)
            if burst is None or burst.phase is not Phase.OPEN or not same_run(burst, seen):
                return []
            save(store, stopping(burst, why))
            if job is None or job.state in OVER:
                return []
            return self._runner.engine.origin.cancel(store, seen.token, self._clock())

        await self._runner.act(write)

    async def end(self, token: UUID) -> Ending:
        """The job is over where it ran: how it is to end here. Its note has all numbers then, which Slurm keeps.

        EXIT and SIGNAL are the proxy's. With every other way Slurm has been told to end the job, and its proxy hears
        TERM; where it does not, it exits with `value`. Raises Refused: it is not over. Bound: ASKS seconds, while
        slurmctld does not answer.
        """
        burst, fed = await self._runner.read(lambda store: (by_token(store, token), store.job(token)))
        if burst is None or fed is None or fed.outcome is None:
            raise Refused(f"job {token} is not over")
        try:
            async with asyncio.timeout(LAST_NOTE_S):
                await self._site.note(burst, notes.note(burst, fed))
        except (Refused, Unavailable, TimeoutError) as error:
            log.warning("burst.not_noted", extra=facts(burst) | {"why": str(error)})
        found = ending(fed.outcome)
        return found if found.way in (Way.EXIT, Way.SIGNAL) else await self._by_slurm(burst, found)

    async def _by_slurm(self, burst: Burst, found: Ending) -> Ending:
        for _ in range(ASKS):
            try:
                return await self._told(burst, found)
            except Unavailable:
                await asyncio.sleep(ASK_S)
            except Refused as error:
                log.warning("burst.ends_alone", extra=facts(burst) | {"way": found.way.value, "why": str(error)})
                break
        return replace(found, way=Way.EXIT)

    async def _told(self, burst: Burst, found: Ending) -> Ending:
        job = await self._site.job(burst.job_id)
        if job is None or not same_job(burst, job) or job.over or left_behind(burst, job):
            return found  # another run of it, if there is one, comes to the same end
        match found.way:
            case Way.TIMEOUT:
                async with self._limit(burst.token):
                    await self._site.set_limit(job.name, shrunk(job, int(self._clock().wall)))
            case Way.REQUEUE if not job.requeue:
                return replace(found, way=Way.EXIT)
            case Way.REQUEUE:
                await self.stop(burst, "it was lost where it ran: requeued, as Slurm does")
                await self._site.requeue(job)
            case Way.CANCEL:
                await self._site.cancel(job.name)
        return found

    # -- what Slurm's record says of it

    async def tell_time(self, burst: Burst, job: SlurmJob, fed: Job | None = None) -> None:
        """Its time limit counts from its start elsewhere. Crash: told again, to the same effect. Raises Unavailable.

        Its site keeps to it; Slurm only does once it is known that the site does not.
        """
        wanted = self._ends_at(burst, fed) or longest(burst, self._longest_wait_s)
        if job.state != "RUNNING" or wanted in (0, burst.told):
            return
        async with self._limit(burst.token):
            now = await self._runner.read(lambda store: by_token(store, burst.token))
            if now is None or now.phase is Phase.CLOSED or not same_run(now, burst) or now.written:
                return  # once written it is being ended, and its limit may be what it is ended by
            try:
                if ends_at(burst):
                    await self._site.set_end(job.name, wanted)
                else:
                    await self._site.set_limit(job.name, wanted)
            except Refused as error:
                log.warning("burst.limit_not_told", extra=facts(burst) | {"why": str(error)})
        await self.change(burst, lambda found, _: replace(found, told=wanted))

    def _limit(self, token: UUID) -> asyncio.Lock:
        """Held from a look at whether its limit is to be changed until it is: there is more than one who does."""
        return self._limits.setdefault(token, asyncio.Lock())

    def _ends_at(self, burst: Burst, fed: Job | None) -> int:
        if fed is None or not ends_at(burst):
            return ends_at(burst)
        now, sites = self._clock(), self._runner.engine.sites
        heard_at = now.wall - (now.mono - sites[fed.site].heard) if fed.site in sites else 0.0
        runs_on = fed.state is Origin.RUNNING and heard_at > ends_at(burst) + SLACK_S
        return max(ends_at(burst), burst.told) if runs_on else put_off(burst, int(now.wall), self._longest_wait_s)

    async def written(self, seen: Burst) -> None:
        """All that the job wrote is in its own files: nothing of it is kept here any more once it is closed."""
        await self.change(seen, lambda found, _: replace(found, written=True))

    async def change(self, seen: Burst, change: Callable[[Burst, Job | None], Burst]) -> Burst | None:
        """Write down what follows from what both of its jobs are by now. None: it is not what was `seen` any more.

        That is: it is closed, or another run of its job has come to own it.
        """

        def write(store: Store) -> Burst | None:
            burst = by_token(store, seen.token)
            if burst is None or burst.phase is Phase.CLOSED or not same_run(burst, seen):
                return None
            changed = change(burst, store.job(seen.token))
            if changed != burst:
                save(store, changed)
            return changed

        return await self._write(write)

    async def _write(self, step: Callable[[Store], T]) -> T:
        """One transaction, durable when it returns; what it makes due is gone on with."""
        found: list[T] = []

        def write(store: Store) -> list[Effect]:
            found[:] = [step(store)]
            return []

        await self._runner.act(write)
        return found[0]


def facts(burst: Burst) -> dict[str, object]:
    """What a line of the log says of it."""
    return {"job": burst.name, "token": str(burst.token), "node": burst.node, "pool": burst.pool}
