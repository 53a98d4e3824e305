"""Runs and their slices: what a prolog asks for, and what an epilog gives back.

A prolog asks Slurm which run this is, then takes idle slices, or has one cut, or waits for one. At the end of its wait
the job is turned away; the prolog itself never fails, since that drains the node. What a run has is on file before its
prolog returns, and so outlives the agent. An epilog takes it back; epilogs come twice, without a prolog, or never, so
all grants are held against Slurm's own list now and then.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from weakref import WeakValueDictionary

from slurm_plugin.agent.binding import Binding, Outcome, Rules, grant_of
from slurm_plugin.agent.book import MAX_WITHOUT, Book
from slurm_plugin.agent.cluster import AWAY_S, Boots, ask_run, is_over, turn_away
from slurm_plugin.agent.ledger import Ledger
from slurm_plugin.agent.slices import Slices
from slurm_plugin.agent.store import Store
from slurm_plugin.agent.terms import Terms, Want, wanted
from slurm_plugin.agent.threads import Threads
from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.model import Grant, RunKey
from slurm_plugin.ports import JobRun, Slurm

log = logging.getLogger(__name__)

START_ASK_S = 5.0  # longest that an agent asks whose something is that its files contradict, or say nothing of
EPILOG_ASK_S = 2.0  # longest that an epilog asks whether its job's run is over
LATE_S = 10.0  # longest that a task waits for Slurm's word on its run; its client waits a little longer
LATE_BIND_S = 5.0  # ... and then for its slices: what an older run of its job had is being looked at
HOLD_S = 20.0  # how long a batch script is kept for a Slurm that does not answer, or says that its job waits


class Runs:
    def __init__(
        self, rules: Rules, book: Book, *, slurm: Slurm, store: Store, slices: Slices, threads: Threads
    ) -> None:
        self.rules = rules
        self.book = book
        self._slurm = slurm
        self._boots = Boots(slurm)
        self._store = store
        self.ledger = Ledger(store, slices, threads, changed=lambda: slices.moved())
        self.binding = Binding(rules, book, ledger=self.ledger, slices=slices, give_back=self.release_lost)
        self.kept: set[RunKey] = set()  # an epilog came that may be an older run's: see endings
        self._aside: list[Grant] = []  # grants of an earlier agent that others contradict, until Slurm has spoken
        self._slices = slices
        self.claims = slices.claims
        self._threads = threads
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def start(self) -> None:
        """Take up where the last agent left off. Raises OSError when the state folder can't be used.

        Neither driver nor Slurm is waited for: hooks can be served from here on. Look at both soon.
        """
        grants, garbled, plain = await self.ledger.open()
        self.claims.garbled.update(garbled)
        self.book.terms = await self._threads.disk(self._store.terms)
        grants = tuple(sorted(grants, key=lambda grant: grant.made_at, reverse=True))
        slices = [slice_ for grant in grants for slice_ in grant.slices]
        if len(set(slices)) < len(slices):  # an old file could not be deleted, or came back
            alive = await self._alive(START_ASK_S) or set()
            grants = tuple(sorted(grants, key=lambda grant: grant.run not in alive))  # else the newest first
        for grant in grants:
            try:
                self.book.add(grant)
            except ValueError:
                log.exception("grant.contradicts", extra={"job_id": grant.run.job_id})
                self._aside.append(grant)
        for run in plain[-MAX_WITHOUT:]:
            if run.job_id not in self.book.grants and run.job_id not in garbled:
                self.book.note_without(run)
        self.book.doubted.update(self.book.grants, self.book.without)

    async def agree(self, terms: Terms) -> None:
        """Take in the controller's terms. What binding needs of them is kept on disk."""
        before, self.book.terms = self.book.terms, terms
        self._slices.note_new()  # at once: what has just become the pool's was not looked at
        if replace(before, offers={}) != replace(terms, offers={}):
            try:
                await self._threads.disk(self._store.save_terms, terms)
            except OSError:
                log.exception("terms.not_saved")
            await self._slices.settle_devices()
        if terms.changeable - before.changeable:
            await self._slices.repair()
        if terms.reset_gpus and not before.reset_gpus:
            await self._slices.retry()
        self.binding.stir()

    async def prolog(self, job_id: int) -> None:
        """Give this job's present run what it asked for on this node, within the site's `wait_s`, or turn it away."""
        async with self._lock(job_id):
            self.book.doubted.add(job_id)  # what is known of this id is an older run's, if Slurm does not say otherwise
            try:
                run = await self._ask(job_id)
                if run is not None and (left_s := await self._boots.left_s(run)):
                    log.info("bind.settles", extra={"job_id": job_id, "wait_s": left_s})
                    await asyncio.sleep(left_s)
                    run = await self._ask(job_id)
            except SlurmError:
                return  # its tasks ask again
            want = None if run is None else await self._still_wanted(run)
            self.claims.garbled.discard(job_id)  # nothing of this run has begun, and whatever was before it has ended
            if run is not None and run.elsewhere:
                log.warning("bind.elsewhere", extra={"job_id": job_id, "started_at": run.key.started_at})
                await self._send_back(run)
                return
            if run is None or want is None:
                return
            if await self.binding.bind(run, want, wait_s=self.rules.wait_s) is Outcome.NONE_LEFT:
                log.warning("bind.none", extra={"job_id": job_id, "class": want.gres_class, "count": want.count})
                why = f"no {want.gres_class} slice on {self.rules.node} within {self.rules.wait_s:g} s"
                await turn_away(self._slurm, run, f"vgpu: {self.ledger.fault or why}")

    async def _ask(self, job_id: int) -> JobRun | None:
        return await ask_run(self._slurm, job_id, pause_s=self.rules.ask_pause_s)

    async def _send_back(self, run: JobRun) -> None:
        """A job that may be running at another site: until Slurm takes it, or has another run of it, or none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(AWAY_S):
                while not await turn_away(self._slurm, run, "vgpu: this job may be running at another site"):
                    await asyncio.sleep(self.rules.ask_pause_s)
                    with suppress(SlurmError):
                        found = await self._ask(run.key.job_id)
                        if found is None or found.key != run.key:
                            return

    async def begin(self, job_id: int, is_there: Callable[[], bool]) -> bool:
        """`late` for a batch script, as long as it is there. To be refused ends its job, so Slurm is waited for.

        One that says that the job waits has forgotten its start. It ends what it then finds of it, and would else take
        what our refusal comes to for the end of the job's next start. Raises SlurmError. Bound: HOLD_S, and one `late`.
        """
        until = time.monotonic() + HOLD_S
        while is_there():
            try:
                run = await self._slurm.run_of(job_id)
                if run is None or run.state != "PENDING" or time.monotonic() >= until:
                    return await self.late(job_id, begins=True)
            except SlurmUnavailable:
                if time.monotonic() >= until:
                    raise
            log.warning("begin.waits", extra={"job_id": job_id})
            await asyncio.sleep(self.rules.ask_pause_s)
        return False

    async def late(self, job_id: int, *, begins: bool = False) -> bool:
        """A task of a run that has no entry: its prolog may have found no agent, or slurmd ran none, as it does for a
        job that slurmctld starts anew since it forgot its start. True: it now has all it asked for.

        `begins`: nothing of it has begun. It goes back into the queue when it can't have that: to be refused ends it.

        Raises SlurmError: Slurm does not say what it asked for. Bounds: LATE_S, LATE_BIND_S.
        """
        async with self._lock(job_id):
            if self.book.knows(job_id):
                return True  # another task of it was first
            try:
                async with asyncio.timeout(LATE_S):
                    run = await self._ask(job_id)
            except TimeoutError:
                raise SlurmUnavailable(f"Slurm said nothing of job {job_id} in {LATE_S:g} s") from None
            want = None if run is None else await self._still_wanted(run)
            if run is None or (want is None and not run.elsewhere):
                return run is not None
            outcome = Outcome.NONE_LEFT
            if want is not None and not run.elsewhere:
                outcome = await self.binding.bind(run, want, wait_s=min(LATE_BIND_S, self.rules.wait_s))
            if outcome is Outcome.NONE_LEFT and begins and (run.requeue or run.elsewhere):
                await turn_away(self._slurm, run, f"vgpu: no slice on {self.rules.node}")
            return outcome is Outcome.BOUND

    async def epilog(self, job_id: int, started_at: int = 0) -> None:
        """Take back what the job has, and let the controller publish what follows from it, within the fence's bound.

        `started_at`: of the run that ended; 0 when slurmd does not say. One that comes late takes nothing from a
        newer run of the same id.
        """
        key = self._known(job_id)
        if await self._keeps(key, started_at):
            return
        if self._known(job_id) == key:
            self.binding.gone(job_id)
        async with self._lock(job_id):
            now = self._known(job_id)
            if now != key and await self._keeps(now, started_at):
                return  # a newer run has begun meanwhile
            if self.book.without.pop(job_id, None):
                await self.ledger.unmark(job_id)
            if grant := self.book.grants.get(job_id):
                await self._release(grant)

    async def _keeps(self, key: RunKey | None, started_at: int) -> bool:
        """Does this run keep what it has, since the epilog is an older run's, or may be?"""
        if key is None or key.started_at == started_at or not await self._still_runs(key):
            return False
        log.warning("epilog.kept", extra={"job_id": key.job_id, "started_at": key.started_at})
        if not started_at:
            self.kept.add(key)
        return True

    def _known(self, job_id: int) -> RunKey | None:
        """The run of this job that has something here, or waits for it."""
        waiting = (one.run.key for one in self.binding.waiting if one.run.key.job_id == job_id)
        grant = self.book.grants.get(job_id)
        return next(waiting, grant.run if grant else self.book.without.get(job_id))

    async def _still_runs(self, key: RunKey) -> bool:
        """On this node: a job that shrinks goes on elsewhere. Silence is taken for yes, and reconciling finds out."""
        there = await self._there(EPILOG_ASK_S)
        return there is None or any(run.key == key and not is_over(run) for run in there)

    async def reconcile(self) -> None:
        """Release what belongs to runs that are over. No word from Slurm releases nothing."""
        before = [*(grant.run for grant in self.book.grants.values()), *self.book.without.values()]
        await self.settle_claims()
        if not self.book.grants and not self.book.doubted and not self._aside:
            return
        alive = await self._alive()
        if alive is None:
            return
        for key in before:
            if key not in alive:
                await self.release_lost(key)
            elif not self._lock(key.job_id).locked():  # else its prolog is finding out
                self.book.doubted.discard(key.job_id)
        self.book.doubted = {job_id for job_id in self.book.doubted if self._lock(job_id).locked()}
        await self._settle_aside(alive)

    async def settle_claims(self) -> None:
        """Whose are the slices that no grant tells of? No word from Slurm ends no claim."""
        there = await self._there(START_ASK_S) if self.claims.pending else None
        if there is None:
            return
        here = {run.key.job_id: run for run in there}
        for job_id in tuple(self.claims.garbled):
            if self._lock(job_id).locked():
                continue  # its prolog is finding out
            async with self._lock(job_id):
                if job_id in here:
                    await self._made_anew(here[job_id])
                else:
                    self.claims.garbled.discard(job_id)
                    await self.ledger.delete(RunKey(job_id=job_id, started_at=0, uid=0))
        if self.claims.release(run.key for run in there if self._is_unaccounted(run)):
            await self._slices.settle_devices()
        self._slices.moved()

    def _is_unaccounted(self, run: JobRun) -> bool:
        """May it have slices that are in no grant?"""
        grant, waiting = self.book.grants.get(run.key.job_id), {one.run.key for one in self.binding.waiting}
        if run.key.job_id in self.claims.garbled:
            return True
        asks = wanted(run.gres, name=self.rules.gres, pad=self.rules.pad) is not None
        return asks and run.key not in waiting and (grant is None or grant.run != run.key)

    async def _made_anew(self, run: JobRun) -> bool:
        """The grant of a run whose file can't be read, where it is certain what it has. With its job's lock."""
        want = wanted(run.gres, name=self.rules.gres, pad=self.rules.pad)
        slices = self.claims.had_by(run.key)
        if want is None or run.key.job_id in self.book.grants or len(slices) != want.count:
            return False
        grant = grant_of(run, want, slices, self.rules.now())
        self.claims.end(slices)
        self.book.unseen.difference_update(slices)
        self.book.add(grant)
        self.claims.garbled.discard(run.key.job_id)
        log.warning("grant.made_anew", extra={"job_id": run.key.job_id, "slices": slices})
        await self.ledger.keep(grant)  # if it can't be, the next agent makes it anew
        return True

    def alarms(self) -> list[str]:
        return [*self.ledger.alarms(), *self.ledger.garbled_alarms(self.claims.garbled)]

    async def let_go(self) -> None:
        """End the wait of whose run is over: a job that its owner has cancelled keeps its node closed until then."""
        waiting = [one.run.key for one in self.binding.waiting]
        there = await self._there() if waiting else None
        if there is None:
            return
        alive = {run.key for run in there if not is_over(run)}
        for key in waiting:
            if key not in alive:
                log.info("bind.over", extra={"job_id": key.job_id, "started_at": key.started_at})
                self.binding.gone(key.job_id)

    async def tend(self) -> None:
        """Is the state folder still good, and does it hold nothing that is over?"""
        await self.ledger.tend()

    async def _alive(self, limit_s: float | None = None) -> set[RunKey] | None:
        """What has not ended yet on this node, epilogs included, or None: Slurm does not say."""
        there = await self._there(limit_s)
        return None if there is None else {run.key for run in there}

    async def _there(self, limit_s: float | None = None) -> tuple[JobRun, ...] | None:
        try:
            async with asyncio.timeout(limit_s):
                return await self._slurm.runs_on(self.rules.node)
        except (SlurmError, TimeoutError) as error:
            log.warning("reconcile.no_answer", extra={"error": str(error)})
            return None

    async def _settle_aside(self, alive: set[RunKey]) -> None:
        aside, self._aside = self._aside, []
        for grant in aside:
            if grant.run not in alive:
                await self.ledger.delete_of(grant.run)
                continue
            try:
                self.book.add(grant)
            except ValueError:
                log.exception("grant.contradicts", extra={"job_id": grant.run.job_id})

    async def _still_wanted(self, run: JobRun) -> Want | None:
        """What is still to be bound for this run, or None. An older run of the same id loses what it had."""
        want = wanted(run.gres, name=self.rules.gres, pad=self.rules.pad)
        grant = self.book.grants.get(run.key.job_id)
        if grant is not None and grant.run == run.key:
            await self._threads.disk(self._slices.hand_over, grant)
            self.book.doubted.discard(run.key.job_id)
            return None
        if grant is not None:
            await self._release(grant)
        self.book.without.pop(run.key.job_id, None)
        self.book.doubted.discard(run.key.job_id)
        if run.key.job_id in self.claims.garbled and await self._made_anew(run):
            return None
        if want is None and not run.elsewhere:
            self.book.note_without(run.key)
            await self.ledger.note_without(run.key)
        return want

    async def _release(self, grant: Grant) -> None:
        """See Ledger.forget."""
        job_id = grant.run.job_id
        await self.ledger.forget(grant)
        asks = any(offer.ask for slice_ in grant.slices if (offer := self.book.terms.offers.get(slice_)))
        self.book.drop(grant)
        self._slices.freed(grant.slices)
        self._slices.moved()
        log.info("release.done", extra={"job_id": job_id, "slices": grant.slices})
        if asks:
            await self.rules.fence(job_id, grant.slices)

    async def release_lost(self, key: RunKey) -> None:
        async with self._lock(key.job_id):
            grant = self.book.grants.get(key.job_id)
            if self.book.without.get(key.job_id) == key:
                del self.book.without[key.job_id]
                await self.ledger.unmark(key.job_id)
            if grant is not None and grant.run == key:
                log.warning("release.without_epilog", extra={"job_id": key.job_id, "started_at": key.started_at})
                await self._release(grant)

    def _lock(self, job_id: int) -> asyncio.Lock:
        lock = self._locks.get(job_id)
        if lock is None:
            lock = self._locks[job_id] = asyncio.Lock()
        return lock
