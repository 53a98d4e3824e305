"""What an origin makes of what targets tell: the only way by which a job that was sent anywhere changes its state."""

from dataclasses import replace
from uuid import UUID

from federation.engine.effects import Dropped, Effect, FetchResults, LetGo, PushInputs, Send
from federation.engine.origin import done, follow, wake_for_room
from federation.engine.orphans import is_old
from federation.engine.owing import next_signal, owe
from federation.engine.sites import Sites
from federation.model.job import Job
from federation.model.messages import MOST_CHANGES, Busy, Changes, FromTarget, Record, Release, Rooms, Told
from federation.model.spec import JobSpec, OnSilence
from federation.model.states import NEVER_LET_IN, End, Origin, OriginEvent, Outcome, Target
from federation.model.token import Key
from federation.policy.money import settled
from federation.ports import Now
from federation.store.store import Followed, Kind, Store

MOST_REASON = 400  # characters of a refusal that are kept with its job
MOST_FORGOTTEN = 500  # jobs of one page, when a target's journal is new
OVER = (Target.ENDED, Target.RELEASED)
_FIRST = UUID(int=0)
_SENT = (Origin.SENDING, Origin.UNKNOWN)
_FAILURES = frozenset({End.LOST, End.NODE_FAIL})  # a refusal says something of that job: others may be welcome there


class Follower:
    """Every method is one transaction over the journal, and tells the effects that are wanted once it is durable."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites

    def message(self, store: Store, site: str, message: FromTarget, now: Now) -> list[Effect]:
        if site not in self.sites:
            return []
        self.sites[site].heard = now.mono
        match message:
            case Rooms():
                self.sites.offered(site, message, now)
                wake_for_room(store, self.sites, now)
                return []
            case Busy():
                return self._busy(store, site, message)
            case Told():
                known = store.followed(site)
                if known is not None and known.journal != message.journal:
                    return [follow(store, site)]
                return self._take(store, site, message.record, now)
            case Changes():
                return self._changes(store, site, message, now)

    def fetched(self, store: Store, key: Key, now: Now, remark: str = "") -> list[Effect]:
        """All results of this attempt are here, durable: the job is done, and the target may forget it."""
        job = store.job(key.token)
        if job is None or job.attempt != key.attempt or job.state is not Origin.RESULTS_PENDING:
            return []
        done(store, job.on(OriginEvent.FETCHED, why=remark), job, now)
        return [owe(store, job, Kind.RELEASE, now)]

    def _busy(self, store: Store, site: str, busy: Busy) -> list[Effect]:
        job = store.job(busy.key.token)
        asked = job is not None and (job.state in _SENT or (job.state is Origin.RESULTS_PENDING and job.far is None))
        if job is not None and asked and (job.key, job.site) == (busy.key, site):
            store.save_job(replace(job, why=f"{site} can't take it now: {busy.why}"), was=job)
        return []

    def _changes(self, store: Store, site: str, changes: Changes, now: Now) -> list[Effect]:
        known = store.followed(site)
        if known is not None and known.journal != changes.journal:
            if not self.sites[site].takes_new_journal(now):
                return [Dropped(what=f"new journal of {site}")]  # it says so again whenever it is followed
            self._forgotten(store, site, now)
            known = None
        if known is None:
            known = Followed(site=site, journal=changes.journal, cursor=0)
            store.save_followed(known)
        if changes.after > known.cursor:
            return [follow(store, site)]  # something before it was not heard
        before = store.changes()
        effects: list[Effect] = []
        for record in changes.records:
            if record.revision > known.cursor:
                effects += self._take(store, site, record, now)
        if changes.upto > known.cursor:
            # to hear again of what changed nothing here does no harm: no commit is worth it
            lasting = store.changes() != before
            store.save_followed(replace(known, cursor=changes.upto), lasting=lasting)
            if len(changes.records) >= MOST_CHANGES:
                effects.append(follow(store, site))  # there may be more
        return effects

    def _forgotten(self, store: Store, site: str, now: Now) -> None:
        """The target has a new journal: what it had may still run there, and its claims tell. All are sent again."""
        after = _FIRST
        while page := store.at_target(site, after, MOST_FORGOTTEN):
            for job in page:
                after = job.token
                asked = replace(job, revision=0, far=None, why=f"{site} has lost its journal: asked again")
                if job.state in (Origin.ACCEPTED, Origin.RUNNING):
                    asked = asked.on(OriginEvent.FORGOTTEN, due_at=now.wall)
                elif job.state is Origin.RESULTS_PENDING:
                    asked = replace(asked, due_at=now.wall, tries=0)
                store.save_job(asked, was=job)

    def _take(self, store: Store, site: str, record: Record, now: Now) -> list[Effect]:
        """One record, of any age. What it confirms is no longer owed, whatever has become of the job."""
        return [*self._confirmed(store, site, record, now), *self._told(store, site, record, now)]

    def _told(self, store: Store, site: str, record: Record, now: Now) -> list[Effect]:
        job = store.job(record.key.token)
        if job is None and record.state is Target.ENDED and record.outcome and is_old(record.outcome.ended_at, now):
            # An older journal knew it: nobody here can ask for what it left.
            return [LetGo(site=site, key=record.key), Send(site=site, message=Release(key=record.key))]
        if job is None or (job.attempt == record.key.attempt and job.site != site):
            return []
        if record.key.attempt != job.attempt or job.state is Origin.DONE:
            return self._release(store, site, job, record, now)
        if record.revision <= job.revision:
            return []
        if record.state in OVER:
            return self._over(store, job, record, now)
        return self._goes_on(store, job, record, now)

    def _confirmed(self, store: Store, site: str, record: Record, now: Now) -> list[Effect]:
        signalled = False
        for command in store.commands_of(record.key):
            if command.site != site:
                continue
            over = record.state in OVER
            if (
                (command.kind is Kind.CANCEL and over)
                or (command.kind is Kind.RELEASE and record.state is Target.RELEASED)
                or (command.kind is Kind.SIGNAL and (over or record.signals >= command.number))
            ):
                store.drop_command(record.key, command.kind, command.number)
                signalled |= command.kind is Kind.SIGNAL
        return next_signal(store, record.key, now) if signalled else []

    def _release(self, store: Store, site: str, job: Job, record: Record, now: Now) -> list[Effect]:
        """An attempt that is not the job's any more, and over: its output is of no use."""
        if record.state is not Target.ENDED or record.key.attempt > job.attempt or store.commands_of(record.key):
            return []
        old = replace(job, attempt=record.key.attempt, site=site)
        return [owe(store, old, Kind.RELEASE, now)]

    def _goes_on(self, store: Store, job: Job, record: Record, now: Now) -> list[Effect]:
        changed = job
        if job.state in _SENT:
            self.sites.took(job.site, job.pool)
        if record.state is Target.RUNNING and job.state in (*_SENT, Origin.ACCEPTED):
            self.sites.breaker(f"{job.site}/{job.pool}").worked()
            changed = job.on(OriginEvent.STARTED, started_at=record.started_at, due_at=None, tries=0, why="")
        elif job.state in _SENT:
            changed = job.on(OriginEvent.ACCEPTED, due_at=None, tries=0, why=_waits(job, record))
        elif job.state is Origin.ACCEPTED and job.why != (why := _waits(job, record)):
            changed = replace(job, why=why)
        effects: list[Effect] = []
        if record.state is Target.STAGING and job.far is not Target.STAGING:
            changed = replace(changed, due_at=now.wall + 1.0)
            if (spec := store.spec(job.token)) is not None:
                effects.append(PushInputs(site=job.site, key=job.key, spec=spec))
        if changed is not job or job.far is Target.STAGING:
            store.save_job(replace(changed, revision=record.revision, far=record.state), was=job)
        return effects

    def _over(self, store: Store, job: Job, record: Record, now: Now) -> list[Effect]:
        outcome = record.outcome or Outcome(end=End.LOST, reason=f"{job.site} does not tell how it ended")
        if job.state is Origin.RESULTS_PENDING:
            return self._found(store, job, record, now) if job.far is None else []
        breaker = self.sites.breaker(f"{job.site}/{job.pool}")
        if outcome.end is End.NO_ROOM:
            self.sites.full(job.site, job.pool, outcome.reason[:MOST_REASON], now)
        elif outcome.end in _FAILURES:
            breaker.failed(now.mono)
        elif outcome.started_at is not None:
            breaker.worked()
        by_cancel = job.state is Origin.STOPPING and job.far is None  # which may be all that it knows: see `_found`
        job = replace(job, revision=record.revision, far=None if by_cancel else record.state)
        kept = record.state is Target.ENDED
        if outcome.end in NEVER_LET_IN:
            return self._refused(store, job, outcome, kept, now)
        spec = store.spec(job.token)
        self.sites.ended(job.site, job.pool, spec.cpus if spec else 1)
        cost = settled(job.cost, spec, outcome, now.wall - job.accepted_at) if spec else job.cost
        replaced = outcome.end in (End.LOST, End.LEASE) and job.lease.on_silence is OnSilence.REPLACE
        if job.state is Origin.REQUEUING or (replaced and job.state is not Origin.STOPPING):
            event = OriginEvent.ENDED if job.state is Origin.REQUEUING else OriginEvent.REPLACE
            store.charge(job.account, job.cost_day, cost)
            store.save_job(job.on(event, due_at=now.wall, why=f"attempt {job.attempt} is over"), was=job)
            return [owe(store, job, Kind.RELEASE, now)] if kept else []
        pending = job.on(
            OriginEvent.ENDED,
            outcome=outcome,
            cost=cost,
            started_at=outcome.started_at,
            due_at=now.wall,
            tries=0,
            why="its output is being fetched",
        )
        return self._results(store, pending, job, now, spec)

    def _results(self, store: Store, pending: Job, was: Job, now: Now, spec: JobSpec | None) -> list[Effect]:
        outcome = pending.outcome
        if outcome is None:
            return []
        if not (outcome.wrote or (outcome.started_at is not None and spec and spec.outputs)):
            done(store, pending.on(OriginEvent.FETCHED, why=outcome.reason), was, now)
            return [owe(store, pending, Kind.RELEASE, now)]
        if pending.far is None:
            store.save_job(pending, was=was)
            return []
        store.save_job(replace(pending, due_at=now.wall + 1.0), was=was)
        return [FetchResults(site=pending.site, key=pending.key, outcome=outcome)]

    def _found(self, store: Store, job: Job, record: Record, now: Now) -> list[Effect]:
        """A target that had lost its journal, or may have known of a cancel alone, has heard whose what a job left is,
        and has looked for it. How it ended is known here.
        """
        known = job.outcome
        again = replace(job, revision=record.revision, far=record.state)
        if known is None or not _is_there(record, known):
            why = f"its output is gone: {job.site} has lost its journal, and does not have it any more"
            done(store, again.on(OriginEvent.GIVEN_UP, why=why), job, now)
            return [owe(store, job, Kind.RELEASE, now)] if record.state is Target.ENDED else []
        store.save_job(replace(again, due_at=now.wall + 1.0, tries=0, why="its output is being fetched"), was=job)
        return [FetchResults(site=job.site, key=job.key, outcome=known)]

    def _refused(self, store: Store, job: Job, outcome: Outcome, kept: bool, now: Now) -> list[Effect]:
        if job.state is Origin.STOPPING:
            cancelled = Outcome(end=End.CANCELLED, ended_at=now.wall)
            done(store, job.on(OriginEvent.REFUSED, outcome=cancelled, cost=0.0, why="cancelled"), job, now)
        else:
            pool = f"{job.site}/{job.pool}"
            why = f"{pool} refused it: {outcome.reason}"
            refused = (pool, outcome.reason[:MOST_REASON])
            avoid = (*job.avoid, refused) if outcome.end is End.REFUSED else job.avoid
            store.save_job(job.on(OriginEvent.REFUSED, avoid=avoid, due_at=now.wall, why=why), was=job)
        return [owe(store, job, Kind.RELEASE, now)] if kept else []


def _waits(job: Job, record: Record) -> str:
    """What its user is told, with why its backend was not given it when that was last tried."""
    why = f": {record.why[:MOST_REASON]}" if record.state is Target.READY and record.why else ""
    return f"waits at {job.site}{why}"


def _is_there(record: Record, known: Outcome) -> bool:
    """Whether all of the output still is."""
    found = record.outcome
    if record.state is not Target.ENDED or found is None or found.started_at is None:
        return False
    return found.stdout_size >= known.stdout_size and found.stderr_size >= known.stderr_size
