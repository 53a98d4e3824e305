"""All open bursts against Slurm, every few seconds: what Slurm ended is stopped, what is over is closed.

A job that Slurm put back is pinned to our partition before it may start anywhere else, which takes Slurm two minutes.
A burst whose job a slurmctld forgot, or whose JobId is another job's, leaves nothing running. What a job's note, its
time limit and its place in the queue should be is compared with what Slurm has, and told again until it is so.

A slurmctld that does not answer decides nothing. Crash: the next pass sees the same and does the same.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from federation.errors import Refused, Unavailable
from federation.model.job import Job
from federation.overflow import notes
from federation.overflow.arrivals import is_over
from federation.overflow.burst import (
    LOOKS,
    Burst,
    Ends,
    Phase,
    SlurmJob,
    closed,
    left_behind,
    same_job,
    to_pin,
    to_suspend,
    without_proxy,
)
from federation.overflow.bursts import MOST_OPEN, by_token, drop_closed, open_bursts, save
from federation.overflow.loop import Loop, fault
from federation.overflow.pacing import apart_s
from federation.overflow.slurm_side import SlurmSide, facts
from federation.overflow.slurm_site import SlurmSite
from federation.ports import Now
from federation.runner import Runner
from federation.store.store import Store

log = logging.getLogger(__name__)

EVERY_S = 3.0  # between passes
APART_S = 0.5  # the least, however often somebody asks for one
AT_ONCE = 4  # bursts of which Slurm is told something; more would leave slurmctld no time for others
SAVED_S = 10.0  # after which a slurmctld has written down what it knows: 5, and some to write
ALONE_S = 60.0  # that what is over elsewhere waits for its proxy; one that lives comes again within seconds
FORGET_S = 3600.0  # between looks at what was closed long ago


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in Slurm jobs go that run elsewhere: the virtual nodes' partition, which nodes they are, who is there.

    And what of their files is under way.
    """

    partition: str
    serves: Callable[[str], bool]
    attended: Callable[[int], bool]  # does the proxy of a run of this JobId talk to us?
    moving: Callable[[Burst, Job | None], str] = lambda _burst, _fed: ""  # what of its files does, as its note has it


class Reconcile:
    def __init__(
        self, runner: Runner, site: SlurmSite, side: SlurmSide, place: Place, clock: Callable[[], Now]
    ) -> None:
        self._runner, self._site, self._side, self._place, self._clock = runner, site, side, place, clock
        self._unknown: dict[UUID, int] = {}  # looks in a row that did not find the job
        self._ended: dict[UUID, float] = {}  # since when one is over in Slurm; monotonic, as is the next
        self._missing: dict[UUID, float] = {}  # since when one that is over elsewhere has no proxy
        self._said: dict[UUID, str] = {}  # why one waits, as the log has it
        self._wake = asyncio.Event()
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._answers = True  # Slurm did, when it was asked last
        self.loop = Loop("jobs that run elsewhere", self.look, self._rest)
        self.forgets = Loop("jobs that ran elsewhere", self.forget, lambda _: asyncio.sleep(FORGET_S))

    def poke(self) -> None:
        """Something has just changed: look soon."""
        self._wake.set()

    async def _rest(self, took_s: float) -> None:
        """What a slurmctld that comes back has forgotten is looked for soon, however long it took not to answer."""
        rest_s = apart_s(APART_S, took_s if self._answers else 0.0)
        await asyncio.sleep(rest_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, EVERY_S - rest_s)):
                await self._wake.wait()
        self._wake.clear()

    async def look(self) -> str:
        """One pass. Tells of a fault of ours. Raises FedError: Slurm does not answer, or the journal can't be read."""
        bursts = await self._runner.read(_open, long=True)
        self._unknown = {one.token: self._unknown.get(one.token, 0) for one, _ in bursts}
        self._said = {token: why for token, why in self._said.items() if token in self._unknown}
        for times in (self._ended, self._missing):
            for token in times.keys() - self._unknown.keys():
                del times[token]
        if len(bursts) >= MOST_OPEN:
            log.warning("bursts.too_many", extra={"open": len(bursts), "looked_at": MOST_OPEN})
        if not bursts:
            return ""
        self._answers = False
        found = await self._site.jobs([one.job_id for one, _ in bursts])
        self._answers = True
        await self._pin([(one, job) for one, fed in bursts if (job := found.get(one.job_id)) and not _done(one, fed)])
        told = await asyncio.gather(*(self._alone(one, fed, found.get(one.job_id)) for one, fed in bursts))
        return next(filter(None, told), "")

    async def _pin(self, seen: list[tuple[Burst, SlurmJob]]) -> None:
        """All in one call. What it asked for is written down first: it gets that back once nothing of it is open."""
        seen = [(burst, job) for burst, job in seen if to_pin(burst, job, self._place.partition)]
        lost = await self._runner.read(lambda store: [one for one in seen if _asked(store, *one)]) if seen else []
        if not lost:
            return
        with suppress(Unavailable):
            refused = await self._site.widen([job.name for _, job in lost], (self._place.partition,))
            for burst, job in lost:
                log.info("burst.pinned", extra=facts(burst) | {"refused": job.name in refused})

    async def _alone(self, burst: Burst, fed: Job | None, job: SlurmJob | None) -> str:
        """One that fails takes no other with it, and is looked at again in the next pass. Tells of a fault of ours."""
        async with self._gate:
            before = self._said.get(burst.token)
            try:
                await self._settle(burst, fed, job)
            except (Unavailable, Refused) as error:
                self._said[burst.token] = why = str(error)
                if why != before:
                    log.warning("burst.waits", extra=facts(burst) | {"why": why})
            except Exception as error:
                self._said[burst.token] = why = fault(error)
                if why != before:
                    log.exception("burst.failed", extra=facts(burst))
                return f"job {burst.name}: {why}"
            return ""

    async def _settle(self, burst: Burst, fed: Job | None, job: SlurmJob | None) -> None:
        self._unknown[burst.token] = looks = self._unknown[burst.token] + 1 if job is None else 0
        mine = job if job is not None and same_job(burst, job) else None
        over = is_over(fed)
        if job is not None and self._astray(burst, job) and not _done(burst, fed):
            await self._send_back(burst)
            return
        if burst.phase is Phase.OPEN:
            ends = without_proxy(burst, job, looks)
            if ends is Ends.NOTHING:
                if mine is not None and mine.lives and not self._requeued(burst, mine):
                    await self._bring_back(burst, fed, mine)
                    await self._goes_on(burst, fed, mine)
                    return
                if mine is None or not mine.lives:
                    return
            elif not (over and mine is not None):
                await self._stop(burst, job)
        if over and (mine is None or left_behind(burst, mine) or self._is_saved(burst, mine)):
            await self._close(burst, fed, mine)

    def _is_saved(self, burst: Burst, job: SlurmJob) -> bool:
        """Slurm ended it long enough ago to know it still when it is killed: else it would be begun anew."""
        if not job.over:
            return False
        now = self._clock().mono
        return now - self._ended.setdefault(burst.token, now) >= SAVED_S

    def _requeued(self, burst: Burst, job: SlurmJob) -> bool:
        """By its user, after its end. One that is as it was before that end was forgotten by a slurmctld."""
        if burst.token in self._ended and job.restarts > burst.restarts:
            return True  # still, when it can't be closed in this pass
        self._ended.pop(burst.token, None)
        return False

    async def _stop(self, burst: Burst, job: SlurmJob | None) -> None:
        """Slurm ended it, or does not know it any more: nothing of it is to run."""
        if job is None:
            event, why = "burst.forgotten", f"its slurmctld does not know it: asked {LOOKS} times"
        elif not same_job(burst, job):
            event, why = "burst.reused", "its slurmctld forgot it, and gave its JobId to another job"
        else:
            event, why = "burst.ended", f"it is {job.state} in Slurm"
        log.warning(event, extra=facts(burst) | {"why": why})
        await self._side.stop(burst, why)

    async def _send_back(self, seen: Burst) -> None:
        """Slurm has started it where its own script would run, beside what runs elsewhere, or did.

        Who has sent it back since may have brought it to us again: to requeue that would end what runs elsewhere.
        """
        job = await self._site.job(seen.job_id)
        burst, fed = await self._runner.read(lambda store: (by_token(store, seen.token), store.job(seen.token)))
        if job is None or burst is None or burst.phase is Phase.CLOSED or _done(burst, fed):
            return
        if self._astray(burst, job):
            log.error("burst.started_here", extra=facts(burst) | {"on": ",".join(job.nodes)})
            await self._site.requeue(job)

    def _astray(self, burst: Burst, job: SlurmJob) -> bool:
        return same_job(burst, job) and job.lives and not all(map(self._place.serves, job.nodes))

    async def _goes_on(self, burst: Burst, fed: Job | None, job: SlurmJob) -> None:
        if _runs(fed) != bool(burst.began_at):
            now = int(self._clock().wall)
            changed = await self._side.change(burst, lambda found, fed: _began(found, fed, now))
            if changed is None:
                return
            burst = changed
        if (wanted := to_suspend(burst, job)) is not None:
            await self._side.suspend(burst.token, wanted)
        await self._side.tell_time(burst, job, fed)
        files = self._place.moving(burst, fed)
        if (fed is not None or files) and (note := notes.note(burst, fed, files)) != job.note:
            await self._site.note(burst, note)

    async def _bring_back(self, burst: Burst, fed: Job | None, job: SlurmJob) -> None:
        """A proxy that was lost with its slurmstepd, as its end is there to be told. Slurm misses neither by itself
        until their node registers, which can take half an hour.
        """
        now = self._clock().mono
        if job.state != "RUNNING" or fed is None or not is_over(fed) or self._place.attended(job.job_id):
            self._missing.pop(burst.token, None)
        elif now - self._missing.setdefault(burst.token, now) >= ALONE_S and job == await self._site.job(job.job_id):
            self._missing[burst.token] = now
            log.warning("burst.proxy_lost", extra=facts(burst))
            await self._site.requeue(job)

    async def _close(self, burst: Burst, fed: Job | None, job: SlurmJob | None) -> None:
        """Nothing of it is open anywhere. A job that goes on in Slurm gets back what was its own first.

        Not one that runs on a virtual node: its own limit, which counts from its start, could end it there. So its
        next burst is told what is its own.
        """
        known = await self._runner.read(lambda store: by_token(store, burst.token))
        if known is None or known.phase is Phase.CLOSED:
            return  # its job may have another by now, which is open
        now = int(self._clock().wall)
        owing = None if job is None or job.over or await self._given_back(burst, fed, job) else job

        def close(found: Burst, fed: Job | None) -> Burst:  # its proxy may have had it accepted since it was looked at
            return closed(found, now, owing) if is_over(fed) else found

        found = await self._side.change(burst, close)
        if found is not None and found.phase is Phase.CLOSED:
            log.info("burst.closed", extra=facts(found) | {"why": found.why})

    async def _given_back(self, burst: Burst, fed: Job | None, job: SlurmJob) -> bool:
        """False: not all of it."""
        here = job.waits or not all(map(self._place.serves, job.nodes))
        if here and burst.limit_s not in (0, job.limit_s):
            await self._site.set_limit(job.name, burst.limit_s)
        await self._site.note(burst, notes.note(replace(burst, phase=Phase.CLOSED), fed))
        if not job.waits:
            return False
        return not burst.partitions or not await self._site.widen([job.name], burst.partitions)

    async def forget(self) -> None:
        """Drop what was closed as long ago as finished jobs are remembered."""
        before = self._clock().wall - self._runner.engine.origin.rules.keep_s
        while await self._runner.read(lambda store: drop_closed(store, before)):
            pass


def _open(store: Store) -> list[tuple[Burst, Job | None]]:
    return [(one, store.job(one.token)) for one in open_bursts(store)]


def _asked(store: Store, burst: Burst, job: SlurmJob) -> bool:
    """Write down which partitions its user asked for. False: nothing of it is open any more."""
    found = by_token(store, burst.token)
    if found is None or found.phase is Phase.CLOSED:
        return False
    if not found.partitions:
        save(store, replace(found, partitions=job.partitions))
    return True


def _runs(fed: Job | None) -> bool:
    return fed is not None and fed.started_at is not None


def _began(burst: Burst, fed: Job | None, now: int) -> Burst:
    return replace(burst, began_at=(burst.began_at or now) if _runs(fed) else 0)


def _done(burst: Burst, fed: Job | None) -> bool:
    """All that is left is to close it."""
    return burst.phase is Phase.STOPPING and is_over(fed)
