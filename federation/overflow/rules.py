"""PURE: which waiting jobs may go to the cloud partition, which are taken back, and why the others stay.

A job that may go is *widened*: the cloud partition comes behind its own, and Slurm starts it wherever it can first. One
that waits, and was widened here, is *recalled* when local room comes first, or when nobody it could go to is there.

What holds of every answer: jobs are taken oldest first; no cap is passed, since what was widened counts from then on
with the price of its whole time limit; the same facts give the same answer, in whatever order jobs come; and once it is
carried out, the same facts change nothing more.
"""

from collections.abc import Mapping, Sequence
from math import inf

from federation.overflow.facts import Decision, Facts, Offer, Opt, Rule, Verdict, Waiting, Wish

AWAY_S = 60  # so long without a word of a site, and what could go there only is taken back
MOST_POOLS = 3  # that a reason names


def decide(jobs: Sequence[Waiting], facts: Facts) -> tuple[Decision, ...]:
    """One a job, oldest first."""
    ordered = sorted(jobs, key=lambda job: (job.since, job.job_id))
    waiting: dict[str, int] = {}
    for job in ordered:
        if not job.held:
            rule = rule_of(job, facts)
            waiting[rule] = waiting.get(rule, 0) + job.tasks
    purse = _Purse(facts, ordered)
    return tuple(_decided(job, facts, purse, waiting) for job in ordered)


def rule_of(job: Waiting, facts: Facts) -> str:
    """The partition whose rule is the job's; "": none is."""
    if ours(job, facts):
        return facts.widened[job.root].rule
    return next((name for name in job.partitions if name in facts.rules), "")


def ours(job: Waiting, facts: Facts) -> bool:
    """It was widened here, and is so still."""
    known = facts.widened.get(job.root)
    return known is not None and known.uid == job.uid and facts.cloud in job.partitions


class _Purse:
    """What is left of the caps, after what was widened before, and then after each that is."""

    def __init__(self, facts: Facts, jobs: Sequence[Waiting]) -> None:
        rules = facts.rules
        self._jobs = {name: rule.most_jobs - facts.running.get(name, 0) for name, rule in rules.items()}
        self._money = {
            name: rule.spend_per_day - facts.spent.get(name, 0.0)
            for name, rule in rules.items()
            if rule.spend_per_day is not None
        }
        self._accounts = dict(facts.left)
        self._pools = dict(facts.room)
        for job in jobs:
            if ours(job, facts):
                known = facts.widened[job.root]
                self.take(known.rule, known.account, job.tasks, known.price)
                self.fill(_held_by(job, facts.offers.get(job.job_id, ())), job.tasks)

    def fill(self, pools: Sequence[str], tasks: int) -> None:
        """Each of them, since Slurm chooses."""
        for pool in pools:
            if pool in self._pools:
                self._pools[pool] -= tasks

    def take(self, rule: str, account: str, tasks: int, price: float) -> None:
        if rule in self._jobs:
            self._jobs[rule] -= tasks
        if rule in self._money:
            self._money[rule] -= tasks * price
        if account in self._accounts:
            self._accounts[account] -= tasks * price

    def room(self, rule: str, account: str, tasks: int, price: float, pools: Sequence[str]) -> tuple[float, str]:
        """For how many elements there is, and what is in the way of more."""
        jobs, room, no = max(0, self._jobs[rule]), float(tasks), ""
        if jobs < tasks:
            room, no = jobs, f"as many of {rule} as most_jobs says are widened or run there"
        for pool in pools:
            if (free := max(0, self._pools.get(pool, tasks))) < room:
                room, no = free, f"as many jobs as {pool} takes now are widened"
        of_account = f"today's budget of account {account or '(none)'}"
        for left, whose in (
            (self._money.get(rule), f"today's money of {rule}"),
            (self._accounts.get(account), of_account),
        ):
            if left is not None and (most := _times(left, price)) < room:
                room, no = most, f"{whose} has {max(0.0, left):.2f} left, and it costs {price:.2f}"
        return room, no


def _held_by(job: Waiting, offers: Sequence[Offer]) -> tuple[str, ...]:
    """Pools whose room holds it: jobs with slices are held by those that virtual nodes offer."""
    return () if job.slices else tuple(offer.pool for offer in offers)


def _times(money: float, price: float) -> float:
    """How often it can be paid."""
    if price <= 0 or money <= 0:
        return inf if price <= 0 else 0
    if (times := money / price) == inf:
        return inf
    most = int(times)
    return most if most * price <= money else most - 1


def _decided(job: Waiting, facts: Facts, purse: _Purse, waiting: Mapping[str, int]) -> Decision:
    name = rule_of(job, facts)
    if job.open:
        return _stays(job, name, "what it last started elsewhere is not over yet")
    if ours(job, facts):
        return _of_widened(job, facts, name)
    if facts.cloud in job.partitions:
        return _stays(job, name, _itself(job, facts))
    if not name:
        return _stays(job, name, f"no rule for {' or '.join(job.partitions) or 'its partition'}")
    rule = facts.rules[name]
    if never := _never(job, rule):
        return _stays(job, name, never, word=f"stays: {never}")
    if not_yet := _not_yet(job, name, rule, facts, waiting.get(name, 0)):
        return _stays(job, name, not_yet)
    offers = facts.offers.get(job.job_id, ())
    takers = [offer for offer in offers if not offer.no]
    if not takers:
        return _stays(job, name, _refusals(offers))
    price = max(offer.money for offer in takers)  # Slurm chooses the node
    pools = _held_by(job, takers)
    room, no = purse.room(name, job.account, job.tasks, price, pools)
    if room < 1:
        return _stays(job, name, no)
    tasks = int(room)
    purse.take(name, job.account, tasks, price)
    purse.fill(pools, tasks)
    part = f"; {tasks} of {job.tasks} elements: {no}" if tasks < job.tasks else ""
    return Decision(
        job=job,
        verdict=Verdict.WIDEN,
        why=f"may run in {_pools(takers)} for {price:.2f}: {_because(job, facts.now)}{part}",
        rule=name,
        tasks=tasks,
        partitions=(*job.partitions, facts.cloud),
        price=price,
        word=f"may run in {_pools(takers)}",
    )


def _itself(job: Waiting, facts: Facts) -> str:
    """Of one that asked for the partition: what it waits for there."""
    asked, offers = f"it asked for {facts.cloud} itself", facts.offers.get(job.job_id, ())
    if job.held:
        return f"{asked}, and {job.held}"
    takers = [offer for offer in offers if not offer.no]
    if not takers:
        return f"{asked}, and no pool takes it now: {_refusals(offers)}"
    return f"{asked}: Slurm starts it as soon as there is room for it in {_pools(takers)}"


def _of_widened(job: Waiting, facts: Facts, name: str) -> Decision:
    known, rule, offers = facts.widened[job.root], facts.rules.get(name), facts.offers.get(job.job_id, ())
    if rule is None:
        why = word = f"no rule for {name} any more"
    elif never := _never(job, rule):
        why = word = never
    elif offers and all(offer.away_s >= AWAY_S for offer in offers):
        word = f"no word of {_pools(offers)}"
        why = f"{word} for {min(offer.away_s for offer in offers):.0f} s"
    elif rule.recall and _starts_here(job, rule, facts.now):
        word = "it is expected to start here first"
        why = f"it is expected to start here in {_in(job, facts.now)}"
    else:
        return _stays(job, name, f"may run in {facts.cloud}: widened {max(0.0, facts.now - known.at):.0f} s ago")
    rest = tuple(one for one in job.partitions if one != facts.cloud)
    return Decision(
        job=job,
        verdict=Verdict.RECALL,
        why=f"taken back: {why}",
        rule=name,
        partitions=rest or known.partitions,
        word=f"taken back: {word}",
    )


def _never(job: Waiting, rule: Rule) -> str:
    """Why it does not go as it is, however long it waits."""
    if job.wish is Wish.NEVER:
        return "it was submitted with --burst=never"
    if rule.opt is Opt.IN and job.wish is Wish.NONE:
        return "it was submitted without --burst"
    if job.obstacle:
        return job.obstacle
    if rule.qos and job.qos not in rule.qos:
        return f"QOS {job.qos or '(none)'} is not one of the rule's"
    if rule.accounts and job.account not in rule.accounts:
        return f"account {job.account or '(none)'} is not one of the rule's"
    if job.input_bytes > rule.most_input_bytes:
        return f"its input is {job.input_bytes >> 20} MiB, and the most is {rule.most_input_bytes >> 20}"
    return ""


def _not_yet(job: Waiting, name: str, rule: Rule, facts: Facts, waiting: int) -> str:
    if job.held:
        return job.held
    if job.priority < rule.least_priority:
        return f"its priority is {job.priority}, and the least is {rule.least_priority}"
    if job.wish is Wish.ALWAYS:
        return ""
    waited = max(0.0, facts.now - job.since)  # slurmctld's clock may be ahead
    if waited < rule.after_s:
        return f"it has waited {waited:.0f} s of {rule.after_s}"
    if rule.start_later_s and job.starts_at is not None and job.starts_at - facts.now < rule.start_later_s:
        return (
            f"it is expected to start here in {_in(job, facts.now)}, and only later than {rule.start_later_s} s counts"
        )
    if waiting < rule.least_waiting:
        return f"{waiting} jobs wait in {name}, and the least is {rule.least_waiting}"
    return ""


def _starts_here(job: Waiting, rule: Rule, now: float) -> bool:
    """So much sooner than what a job is widened for that an estimate that sways takes none back and forth."""
    return job.wish is not Wish.ALWAYS and job.starts_at is not None and job.starts_at - now < rule.start_later_s / 2


def _stays(job: Waiting, rule: str, why: str, *, word: str = "") -> Decision:
    return Decision(job=job, verdict=Verdict.LEAVE, why=why, rule=rule, word=word)


def _because(job: Waiting, now: float) -> str:
    if job.wish is Wish.ALWAYS:
        return "it was submitted with --burst=always"
    later = f", and is expected to start here in {_in(job, now)}" if job.starts_at is not None else ""
    return f"it has waited {max(0.0, now - job.since):.0f} s{later}"


def _in(job: Waiting, now: float) -> str:
    return f"{max(0.0, (job.starts_at or now) - now):.0f} s"


def _pools(offers: Sequence[Offer]) -> str:
    return " or ".join(sorted({offer.pool for offer in offers})[:MOST_POOLS])


def _refusals(offers: Sequence[Offer]) -> str:
    if not offers:
        return "no pool is one that it may go to: what --burst names, and placing in fed.yaml, leave none"
    return "; ".join(f"{offer.pool}: {offer.no}" for offer in offers[:MOST_POOLS])
