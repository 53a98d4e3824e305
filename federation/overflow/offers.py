"""PURE: what the pools behind the virtual nodes say to a waiting job, by the same judgement that places jobs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from federation.model.spec import Batch, JobSpec
from federation.overflow.facts import Offer
from federation.policy.choose import Ask, Pool, Rules, choose


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A pool that virtual nodes stand for, as it is known now."""

    pool: str  # SITE/POOL
    names: frozenset[str]  # what --burst=NAME may call it
    nodes: tuple[str, ...]  # the virtual ones
    known: Pool | None  # None: its site does not tell of it
    away_s: float = 0.0  # since its site was last heard of; 0: it is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a waiting job a pool looks at."""

    gres: str = ""  # as Slurm has it
    cpus: int = 1
    limit_s: int = 0
    account: str = ""
    pin: str = ""


@dataclass(slots=True)
class Market:
    """One look's: jobs that want the same get the same answer. Budgets are not looked at here."""

    behind: Sequence[Behind]
    rules: Rules
    now: float
    closed: str = ""  # why no virtual node takes jobs
    _said: dict[Wanted, tuple[Offer, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules = replace(self.rules, budget_per_day={})

    def offers(self, wanted: Wanted) -> tuple[Offer, ...]:
        """Of each pool that it may go to at all."""
        if wanted not in self._said:
            self._said[wanted] = tuple(self._offer(wanted, one) for one in self._meant(wanted))
        return self._said[wanted]

    def not_for(self, wanted: Wanted) -> tuple[str, ...]:
        """Virtual nodes that Slurm must not start it on: those of pools that take others, but never it."""
        meant = {one.pool for one in self._meant(wanted)}
        return tuple(node for one in self.behind if one.pool not in meant for node in one.nodes)

    def _meant(self, wanted: Wanted) -> Iterable[Behind]:
        return (
            one
            for one in self.behind
            if (not wanted.pin or wanted.pin in one.names) and self._lets(wanted.account, one.pool)
        )

    def _lets(self, account: str, pool: str) -> bool:
        names, allowed = {pool, pool.partition("/")[0]}, self.rules.allow.get(account)
        return (allowed is None or bool(names & set(allowed))) and not names & set(self.rules.deny.get(account, ()))

    def _offer(self, wanted: Wanted, one: Behind) -> Offer:
        if one.known is None:
            return Offer(pool=one.pool, no="its site does not tell of it", away_s=one.away_s)
        spec = JobSpec(
            user="",
            account=wanted.account,
            gres=wanted.gres,
            cpus=wanted.cpus,
            time_limit_s=wanted.limit_s,
            batch=Batch(),
        )
        choice = choose(Ask(spec=spec, now=self.now), [one.known], self.rules)
        said = dict(choice.reasons)[one.pool]
        if choice.pool is None or self.closed:  # which the daemon does itself while no pool takes anything
            return Offer(pool=one.pool, no=self.closed if choice.pool else said, away_s=one.away_s)
        return Offer(pool=one.pool, money=choice.cost, says=said.partition(": ")[2], away_s=one.away_s)
