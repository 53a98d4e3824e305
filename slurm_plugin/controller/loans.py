"""PURE: what a pending job has claimed is lent to it, and for a short while only.

A job may never start, whatever is offered to it: features no node has, a reservation to come, a limit of its account.
Slurm's reason does not tell, since the wait partition's is written over it. So a job whose claim is not taken within
CLAIM_S, on nodes where Slurm could have started it, is passed over: others claim first, it gets what they leave. After
a pause, longer each time, it comes in its priority's order again. Slurm looks at jobs by priority: one that it had no
time to look at loses nothing to lower ones, since it had no time for those either.

A user can submit thousands of such jobs at once, or cancel each and submit another. So the user whose job did not start
is passed over too, until a pause is over or a job of theirs has started on what was lent. Slices that are withheld for
a job until it has all it needs are lent as well, for longer, since running jobs have to end first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from slurm_plugin.controller.wants import Demand, Key
from slurm_plugin.ports import QueuedJob

CLAIM_S = 4.0  # slurmctld schedules at once when a node's Gres changes, and again each second or two
GATHER_S = 600.0  # without one slice more
PAUSE_S = 60.0
DOUBLINGS = 4  # terms and pauses grow so often
TICK_S = 1.0  # two passes further apart count as so far: nobody was looking in between
FORGET_S = 3600.0  # a user who was not passed over for so long is as good as new
KINDS = 16  # of what a user's jobs asked for in vain that are remembered
LOANS = 100_000  # jobs, and users, remembered; of more, those whose pause ends first are forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What is lent after one pass."""

    claims: Mapping[int, bool]  # job that found all it needs, for one element at least -> could Slurm start it now
    gathering: int = 0  # the job that slices are withheld for; 0: none
    gathered: int = 0  # how many
    opened: Mapping[int, frozenset[str]] = field(default_factory=dict)  # job -> what was kept for its account until now


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """One job's: seconds its present loan has lasted, and how often one was in vain."""

    uid: int
    array_id: int
    asks: Key
    started: int  # when the youngest running element of its array started, as last seen
    claimed_s: float = 0.0
    gathered_s: float = 0.0
    gathered: int = 0
    strikes: int = 0
    back_at: float = 0.0  # passed over until then
    opened: frozenset[str] = frozenset()  # slices kept for its account that were offered for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One user's."""

    strikes: int = 0
    back_at: float = 0.0
    gathers_at: float = 0.0  # nothing is withheld for this user's jobs until then
    asks: tuple[Key, ...] = ()  # what those asked for that did not start, the last first


_T = TypeVar("_T", Loan, Account)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loans:
    jobs: Mapping[int, Loan] = field(default_factory=dict)
    users: Mapping[int, Account] = field(default_factory=dict)
    at: float = 0.0  # when they were followed last

    def ranked(self, demand: Demand, now: float) -> Demand:
        """The same demand, with the place among others that its history gives it."""
        loan, user = self.jobs.get(demand.job_id), self.users.get(demand.uid)
        if (loan is None and user is None) or self._set_back(now):
            return demand
        user = user or Account()
        if loan is not None and loan.asks != demand.key:
            loan = None  # it asks for something else now
        own = loan is not None and loan.back_at > now
        behind = own or user.back_at > now
        return replace(
            demand,
            behind=behind,
            strikes=loan.strikes if loan else 0,
            gathers=not own and user.gathers_at <= now,
            passed=own or (behind and demand.key in user.asks),
            opened=loan.opened if loan else frozenset(),
        )

    def passed_over_until(self, demand: Demand, now: float) -> float:
        """Unix seconds; 0 when it has its turn. `demand` as `ranked` gave it."""
        if not demand.behind:
            return 0.0
        loan, user = self.jobs.get(demand.job_id), self.users.get(demand.uid)
        return max(one.back_at for one in (loan, user) if one is not None and one.back_at > now)

    def taken(self, slices: Mapping[str, bool], now: float) -> "Loans":
        """The same, now that these slices are held: by somebody whom they were not kept for?

        Slurm gives a slice to the first job that it can start. So one that was opened for a job, and went to another's
        while that waits, is not lost to a second one.
        """
        if not slices:
            return self
        jobs, users = dict(self.jobs), dict(self.users)
        for job_id, loan in self.jobs.items():
            if loan.opened and not loan.opened.isdisjoint(slices):
                left = replace(loan, opened=loan.opened - slices.keys())
                lost = any(slices.get(uuid) for uuid in loan.opened)
                jobs[job_id] = _in_vain(left, users, now) if lost else left
        return replace(self, jobs=jobs, users=users)

    def follow(self, demands: Iterable[Demand], lent: Lent, jobs: Iterable[QueuedJob], now: float) -> "Loans":
        """The loans after a pass that has lent this. `demands` as `ranked` gave them, `jobs` as the pass read them."""
        if self._set_back(now) or not (self.jobs or self.users or lent.claims or lent.gathering):
            return Loans(at=now)
        started, pending = _queue(jobs)
        step = min(max(0.0, now - self.at), TICK_S)
        loans = {job_id: loan for job_id, loan in self.jobs.items() if job_id in pending}
        users = {uid: one for uid, one in self.users.items() if _last(one) + FORGET_S > now}
        for loan in self.jobs.values():
            if started.get(loan.array_id, 0) > loan.started and (user := users.get(loan.uid)):
                users[loan.uid] = replace(user, strikes=user.strikes // 2, back_at=now)
        for demand in demands:
            opened = lent.opened.get(demand.job_id, demand.opened)
            if demand.job_id in lent.claims or demand.job_id == lent.gathering:
                loan = _ticked(loans.get(demand.job_id), demand, lent, step, started.get(demand.array_id, 0))
                loans[demand.job_id] = _judged(replace(loan, opened=opened), demand, users, now)
            elif (known := loans.get(demand.job_id)) is not None and known.opened != opened:
                loans[demand.job_id] = replace(known, opened=opened)
        return Loans(jobs=_bounded(loans), users=_bounded(users), at=now)

    def _set_back(self, now: float) -> bool:
        """The clock was: how long anybody has still to wait is not known, and so nobody has."""
        return now < self.at - TICK_S


def _ticked(loan: Loan | None, demand: Demand, lent: Lent, step: float, started: int) -> Loan:
    if loan is None or loan.asks != demand.key:
        return Loan(uid=demand.uid, array_id=demand.array_id, asks=demand.key, started=started)
    if started > loan.started:  # it is being used
        return Loan(uid=loan.uid, array_id=loan.array_id, asks=loan.asks, started=started)
    gathering = demand.job_id == lent.gathering
    more = gathering and lent.gathered > loan.gathered
    return replace(
        loan,
        claimed_s=loan.claimed_s + (step if lent.claims.get(demand.job_id) else 0.0),
        gathered_s=loan.gathered_s + step if gathering and not more else 0.0,
        gathered=lent.gathered if gathering else 0,
    )


def _judged(loan: Loan, demand: Demand, users: dict[int, Account], now: float) -> Loan:
    """End what has lasted too long."""
    grown = 1 << min(loan.strikes, DOUBLINGS)
    if loan.claimed_s >= CLAIM_S * (grown if demand.behind else 1):
        return _in_vain(loan, users, now, again=demand.behind)
    if loan.gathered_s >= GATHER_S * grown:
        back_at = now + GATHER_S * grown
        users[loan.uid] = replace(users.get(loan.uid, Account()), gathers_at=back_at)
        return replace(loan, gathered_s=0.0, gathered=0, strikes=loan.strikes + 1, back_at=back_at)
    return loan


def _in_vain(loan: Loan, users: dict[int, Account], now: float, *, again: bool = False) -> Loan:
    """It had its turn and did not start. `again`: when it had been passed over already, its user is none the worse."""
    if not again:
        user = users.get(loan.uid, Account())
        pause_s = PAUSE_S * (1 << min(user.strikes, DOUBLINGS))
        asks = tuple(dict.fromkeys((loan.asks, *user.asks)))[:KINDS]
        users[loan.uid] = replace(user, strikes=user.strikes + 1, back_at=now + pause_s, asks=asks)
    back_at = now + PAUSE_S * (1 << min(loan.strikes, DOUBLINGS))
    return replace(loan, claimed_s=0.0, strikes=loan.strikes + 1, back_at=back_at, opened=frozenset())


def _queue(jobs: Iterable[QueuedJob]) -> tuple[dict[int, int], set[int]]:
    """When the youngest element of each array, or the job, started; and which jobs wait."""
    started: dict[int, int] = {}
    pending: set[int] = set()
    for job in jobs:
        if job.on_nodes:
            array = job.array_id or job.job_id
            started[array] = max(started.get(array, 0), job.started_at)
        else:
            pending.add(job.job_id)
    return started, pending


def _last(one: Loan | Account) -> float:
    return max(one.back_at, one.gathers_at) if isinstance(one, Account) else one.back_at


def _bounded(kept: dict[int, _T]) -> dict[int, _T]:
    if len(kept) <= LOANS:
        return kept
    return dict(sorted(kept.items(), key=lambda one: _last(one[1]))[-LOANS:])
