"""A site as origin: what its users ask for, and what it does with their jobs by itself.

Every method is one transaction over the journal, and tells the effects that are wanted once it is durable.
"""

from dataclasses import dataclass, field, replace
from uuid import UUID

from federation.engine.attempts import MOST_RETRY_S, retry_s
from federation.engine.effects import Effect, Fault, FetchResults, PushInputs, Send
from federation.engine.owing import MOST_SIGNALS, message_of, owe, signals_of, superseded, waits
from federation.engine.sites import Sites
from federation.errors import Refused, StoreError, Unavailable
from federation.model.job import Job
from federation.model.messages import STATES, Follow, Submit
from federation.model.spec import JobSpec
from federation.model.states import AT_TARGET, End, Origin, OriginEvent, Outcome, Target
from federation.policy.choose import Ask, Rules, choose
from federation.ports import Now
from federation.store.store import Kind, Store

ANSWER_S = 10.0  # until a submit without an answer is sent again
RECHOOSE_S = 15.0  # until a job that fits no pool is looked at again, when nothing else wakes it; later if many wait
RECHOOSES_PER_S = 200.0  # of all of them, up to MOST_RETRY_S in all
FOLLOW_S = 5.0  # between heartbeats
FIRST_MOVE_S = 5.0  # until bytes that should be moving are asked for again
LEASE_MARGIN_S, LEASE_MARGIN = 30.0, 1.1  # how much longer than the target the origin waits
MOST_OPEN = 100_000  # jobs that are not done; more are refused
MOST_WOKEN = 1000  # waiting jobs that a link or new room wakes at once
WAKE_S = 1.0  # between wakings for new room, however often sites tell of some
MOST_DUE = 500  # jobs, or commands, of one pass
DAY_S = 86400
KEEP_S, KEEP_JOBS = 90 * 86400.0, 1_000_000  # finished jobs that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginRules:
    placing: Rules = field(default_factory=Rules)
    most_open: int = MOST_OPEN
    keep_s: float = KEEP_S
    keep_jobs: int = KEEP_JOBS


class OriginSide:
    def __init__(self, sites: Sites, rules: OriginRules) -> None:
        self.sites = sites
        self.rules = rules
        self.more_due = False  # the last pass was a full one
        self._waits = False  # a job found no pool, and may wait yet
        self._turn = 0.0  # Unix seconds: when the last of those that wait is looked at again

    # -- what users ask

    def accept(self, store: Store, token: UUID, spec: JobSpec, now: Now) -> Job:
        """The job, durable with this transaction; the same again for the same token. Where it goes is decided next.

        Raises Unavailable when the site drains, too many are open, or the journal is short of room.
        """
        if (known := store.job(token)) is not None:
            return known
        if store.draining:
            raise Unavailable("this site is draining: it takes no new jobs")
        if sum(store.jobs().values()) >= self.rules.most_open:
            raise Unavailable(f"{self.rules.most_open} jobs are open here", hint="wait until some have ended")
        if not store.may_accept():
            raise Unavailable("the journal is short of room: no new jobs", hint="make room on the disk of state_dir")
        job = Job(
            token=token,
            user=spec.user,
            account=spec.account,
            name=spec.name,
            lease=spec.lease,
            accepted_at=now.wall,
            due_at=now.wall,
        )
        store.add_job(job, spec)
        return job

    def cancel(self, store: Store, token: UUID, now: Now) -> list[Effect]:
        """Durable: it is tried until the target confirms. Raises Refused for a job that is over, or not known."""
        job = self._open(store, token)
        if job.state is Origin.STOPPING:
            return []
        if job.state is Origin.QUEUED:
            outcome = Outcome(end=End.CANCELLED, ended_at=now.wall)
            done(store, job.on(OriginEvent.CANCEL, outcome=outcome, due_at=None, why="cancelled"), job, now)
            return []
        store.save_job(job.on(OriginEvent.CANCEL, due_at=None, why="to be cancelled"), was=job)
        return [owe(store, job, Kind.CANCEL, now)]

    def give_up(self, store: Store, token: UUID, now: Now, *, by_admin: bool = False) -> list[Effect]:
        """What is not here yet of the output of a job that is over; by an admin, a job at a site that can't be reached,
        too: it is lost, and ended should that site come back. Raises Refused for every other job.
        """
        job = store.job(token)
        if job is None:
            raise Refused(f"no job {token} here", hint="fed jobs")
        if job.state in AT_TARGET and not self.sites.linked(job.site):
            if not by_admin:
                raise Refused(f"{job.site} can't be reached, and may run it", hint="an admin may give it up")
            lost = Outcome(end=End.LOST, started_at=job.started_at, ended_at=now.wall, reason=f"{job.site} is given up")
            done(store, job.on(OriginEvent.GIVEN_UP, outcome=lost, why=f"{lost.reason}: it may run there"), job, now)
            return [owe(store, job, Kind.CANCEL, now)]
        if job.state is not Origin.RESULTS_PENDING:
            raise Refused(f"the job is {job.state.value}: no output of it waits to be fetched", hint="fed cancel")
        why = f"what was not fetched of its output was given up; it was at {job.site}"
        done(store, job.on(OriginEvent.GIVEN_UP, why=why), job, now)
        return [owe(store, job, Kind.RELEASE, now)]

    def requeue(self, store: Store, token: UUID, now: Now) -> list[Effect]:
        """Another attempt, once this one is over. Raises Refused for a job that no target may have."""
        job = self._open(store, token)
        if job.state is Origin.REQUEUING:
            return []
        if job.state in (Origin.QUEUED, Origin.STOPPING):
            raise Refused(f"the job is {job.state.value}: there is no attempt to end")
        store.save_job(job.on(OriginEvent.REQUEUE, due_at=None, why="to be requeued"), was=job)
        return [owe(store, job, Kind.CANCEL, now)]

    def signal(self, store: Store, token: UUID, signal: int, now: Now) -> list[Effect]:
        """To this attempt and no other, in order. One of STATES until it is delivered, or a newer one is wanted;
        each other once at the most.

        Raises Refused for a job that is not running, Unavailable when too many wait.
        """
        job = self._open(store, token)
        if job.state is not Origin.RUNNING:
            raise Refused(f"the job is {job.state.value}, not running")
        waiting = signals_of(store, job.key)
        if signal in STATES:
            waiting = superseded(store, waiting, signal)
        elif len(waiting) >= MOST_SIGNALS:
            raise Unavailable(f"{MOST_SIGNALS} signals wait to reach it: {job.site} does not confirm them")
        job_after = replace(job, signals=job.signals + 1)
        store.save_job(job_after, was=job)
        said = owe(store, job_after, Kind.SIGNAL, now, number=job_after.signals, value=signal)
        return [] if waiting else [said]

    def _open(self, store: Store, token: UUID) -> Job:
        job = store.job(token)
        if job is None:
            raise Refused(f"no job {token} here", hint="fed jobs")
        if job.state in (Origin.RESULTS_PENDING, Origin.DONE):
            fetched = job.state is Origin.DONE
            hint = "" if fetched else f"its output is still at {job.site}: fed cancel --give-up ends it without that"
            raise Refused(f"the job is over: {job.outcome.end.value if job.outcome else 'done'}", hint=hint)
        return job

    # -- links

    def link(self, store: Store, site: str, up: bool, now: Now) -> list[Effect]:
        """A link came up: all that waits for it is due. One that went down is no verdict on anything."""
        if site not in self.sites:
            return []
        known = self.sites[site]
        known.linked, known.follow_at = up, now.mono
        if up:
            known.heard = now.mono
            store.wake_site(site, now.wall)
            store.wake_queued(now.wall, min(known.free_jobs(), MOST_WOKEN))
        return []

    # -- what is due

    def due(self, store: Store, now: Now) -> list[Effect]:
        """One pass: at most MOST_DUE jobs and as many commands."""
        effects: list[Effect] = []
        self._wake(store, now)
        jobs, commands = store.due_jobs(now.wall, MOST_DUE), store.due_commands(now.wall, MOST_DUE)
        self.more_due = MOST_DUE in (len(jobs), len(commands))
        for job in jobs:
            effects += self._alone(store, job, now)
        for command in commands:
            store.save_command(replace(command, due_at=now.wall + retry_s(command.tries), tries=command.tries + 1))
            if self.sites.linked(command.site) and not waits(store, command):
                effects.append(Send(site=command.site, message=message_of(command)))
        for site in self.sites.all():
            if site.linked and now.mono >= site.follow_at:
                site.follow_at = now.mono + FOLLOW_S
                effects.append(follow(store, site.name))
            effects += self._replace(store, site.name, now.mono - site.heard, now)
        return effects

    def _wake(self, store: Store, now: Now) -> None:
        """For each job that ended anywhere, and for new room, one that waits."""
        freed, self.sites.freed = self.sites.freed, 0
        wake_for_room(store, self.sites, now)
        if freed and self._waits:
            self._waits = store.wake_queued(now.wall, min(freed, MOST_WOKEN)) > 0

    def forget(self, store: Store, now: Now) -> int:
        store.forget_charges(int((now.wall - self.rules.keep_s) // DAY_S))
        return store.forget_done(now.wall - self.rules.keep_s, self.rules.keep_jobs, MOST_DUE)

    def _alone(self, store: Store, job: Job, now: Now) -> list[Effect]:
        """One that fails takes no other with it, and is looked at again later."""
        try:
            with store.part():
                return self._due(store, job, now)
        except StoreError:
            raise
        except Exception as error:
            later = replace(job, due_at=self._later(store, now), why="it can't be looked at: the daemon's log says why")
            store.save_job(later, was=job)
            return [Fault(about=f"job {job.token}", error=error)]

    def _due(self, store: Store, job: Job, now: Now) -> list[Effect]:
        linked = self.sites.linked(job.site)
        match job.state:
            case Origin.QUEUED:
                return self._place(store, job, now)
            case Origin.SENDING | Origin.UNKNOWN:
                unknown = job if job.state is Origin.UNKNOWN else job.on(OriginEvent.UNANSWERED)
                later = replace(unknown, due_at=now.wall + max(ANSWER_S, retry_s(job.tries)), tries=job.tries + 1)
                store.save_job(replace(later, why=f"sent to {job.site}, and no answer yet"), was=job)
                return self._submit(store, job) if linked else []
            case Origin.RESULTS_PENDING if job.far is None:
                store.save_job(_moving(job, now, ANSWER_S), was=job)
                return self._submit(store, job) if linked else []
            case Origin.ACCEPTED | Origin.RESULTS_PENDING if job.far is Target.STAGING:
                store.save_job(_moving(job, now), was=job)
                spec = store.spec(job.token)
                return [PushInputs(site=job.site, key=job.key, spec=spec)] if linked and spec else []
            case Origin.RESULTS_PENDING if job.outcome is not None:
                store.save_job(_moving(job, now), was=job)
                return [FetchResults(site=job.site, key=job.key, outcome=job.outcome)] if linked else []
        store.save_job(replace(job, due_at=None), was=job)
        return []

    def _place(self, store: Store, job: Job, now: Now) -> list[Effect]:
        spec = store.spec(job.token)
        if spec is None:
            gone = Outcome(end=End.LOST, reason="the journal does not have what was to run")
            done(store, job.on(OriginEvent.CANCEL, outcome=gone, why=gone.reason), job, now)
            return []
        day = int(now.wall // DAY_S)
        spent = 0.0 if self.rules.placing.budget(job.account) is None else store.spent(job.account, day)
        ask = Ask(spec=spec, avoid=job.avoid, spent=spent, now=now.wall)
        choice = choose(ask, self.sites.pools(store.jobs(), now), self.rules.placing)
        if choice.pool is None or choice.left is None:
            self._waits = True
            later = replace(job, due_at=self._later(store, now), reasons=choice.reasons, why=choice.why)
            store.save_job(later, was=job)
            return []
        chosen = job.on(
            OriginEvent.CHOSEN,
            site=choice.pool.site,
            pool=choice.pool.room.pool,
            cost=choice.cost,
            cost_day=day,
            reasons=choice.reasons,
            why=choice.why,
            due_at=now.wall + ANSWER_S,
        )
        store.save_job(chosen, was=job)
        self.sites.chose(choice.pool, choice.left)
        return [Send(site=chosen.site, message=Submit(key=chosen.key, pool=chosen.pool, spec=spec))]

    def _later(self, store: Store, now: Now) -> float:
        """When one that found no pool is looked at again: one after another, or all that wait would come at once."""
        waiting = sum(count for (state, _, _), count in store.jobs().items() if state is Origin.QUEUED)
        spread_s = min(waiting / RECHOOSES_PER_S, MOST_RETRY_S)
        first = now.wall + RECHOOSE_S
        self._turn = min(max(first, self._turn + spread_s / max(1, waiting)), first + spread_s)
        return self._turn

    def _submit(self, store: Store, job: Job) -> list[Effect]:
        """Again. Of one that is over only what it left is wanted."""
        if (spec := store.spec(job.token)) is None:
            return []
        over = job.state is Origin.RESULTS_PENDING
        return [Send(site=job.site, message=Submit(key=job.key, pool=job.pool, spec=spec, again=True, over=over))]

    def _replace(self, store: Store, site: str, silence_s: float, now: Now) -> list[Effect]:
        """Leases that ran out there a while ago: their target has stopped them, if it lives."""
        if silence_s <= LEASE_MARGIN_S:
            return []
        effects: list[Effect] = []
        for job in store.leases_over_at(site, (silence_s - LEASE_MARGIN_S) / LEASE_MARGIN, MOST_DUE):
            effects.append(owe(store, job, Kind.CANCEL, now))
            store.charge(job.account, job.cost_day, job.cost)  # it may have run all that time
            why = f"{site} was silent for {silence_s:.0f} s: another attempt"
            store.save_job(job.on(OriginEvent.REPLACE, due_at=now.wall, why=why), was=job)
        return effects


def wake_for_room(store: Store, sites: Sites, now: Now) -> None:
    if sites.more and now.mono - sites.woken_at >= WAKE_S:
        store.wake_queued(now.wall, min(sites.more, MOST_WOKEN))
        sites.more, sites.woken_at = 0, now.mono


def done(store: Store, job: Job, was: Job, now: Now) -> None:
    store.save_job(replace(job, ended_at=now.wall, due_at=None), was=was)
    store.drop_spec(job.token)


def follow(store: Store, site: str) -> Effect:
    known = store.followed(site)
    return Send(site=site, message=Follow(journal=known.journal if known else None, after=known.cursor if known else 0))


def _moving(job: Job, now: Now, least_s: float = FIRST_MOVE_S) -> Job:
    return replace(job, due_at=now.wall + max(least_s, retry_s(job.tries)), tries=job.tries + 1)
