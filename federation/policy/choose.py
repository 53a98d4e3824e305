"""Which pool a job goes to, and why not to the others.

Hard rules first, each with a reason that the user is told: pin, allow and deny lists, a peer that can't be heard, fit
(the same grammar of requests as the pool's own), room for one more job, time limit, budget. Among what is left the
lowest cost wins, where cost is seconds: until the start, to move what has to be moved, and money at the exchange rate
that the site's file sets. A pool that would miss the deadline is used only when all would.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from federation.model.messages import Room
from federation.model.spec import JobSpec
from federation.policy.money import limit_s
from slurm_plugin import catalogue, job_request, request
from slurm_plugin.errors import ConfigError

MAX_REASONS = 64  # pools that an explanation names
EACH = "*"
_PINNED = "the job is pinned to "
_TOO_OLD, _TOO_LONG = "its daemon is too old for jobs of Slurm's", "its longest time limit is "
_ACCOUNT = "account "  # of who may not go there
NO_SLICES = "it has no slices"
LASTING = (_TOO_OLD, _TOO_LONG, _ACCOUNT)
"""How reasons begin that no waiting changes."""
UNTOLD_S = 3600.0  # what a wait is taken for whose end its pool does not tell: there is one, so it is never 0
MOST_NODES = 64  # of another site's catalogue, which has one of each build
_EIGHTHS = 8  # of a GPU's memory: a class's weight counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool as this site knows it now. What is free in `room` is less what we have sent there, but for `sent`."""

    site: str
    room: Room
    linked: bool = True
    local: bool = False
    cools_for_s: float = 0.0
    sent: int = 0  # our jobs that it may have, and that `room.free_jobs` does not count yet
    bytes_per_s: float = 10e6  # how fast the link moves bytes

    @property
    def name(self) -> str:
        return f"{self.site}/{self.room.pool}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What this site's file says about where jobs may go. Empty lists allow all and deny none."""

    allow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # account -> SITE or SITE/POOL
    deny: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    budget_per_day: Mapping[str, float] = field(default_factory=dict)  # account -> money; EACH: any that is not named
    seconds_per_money: float = 600.0
    local_bonus_s: float = 60.0  # how much later a start at home may be

    def budget(self, account: str) -> float | None:
        """Its money of a day; None: any."""
        return self.budget_per_day.get(account, self.budget_per_day.get(EACH))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`pool` is None when none fits; `reasons` has one line a pool either way."""

    pool: Pool | None
    left: Room | None = None  # what is free there beside this job
    cost: float = 0.0  # money, reserved against the budget
    reasons: tuple[tuple[str, str], ...] = ()

    @property
    def why(self) -> str:
        """One line for the user: where it goes, or why it waits."""
        if self.pool is not None:
            return f"sent to {self.pool.name}"
        meant = [one for one in self.reasons if not one[1].startswith(_PINNED)] or self.reasons
        if len(meant) == 1:
            return f"no pool fits now: {': '.join(meant[0])}"
        return f"none of {len(self.reasons)} pools fits now: fed explain" if self.reasons else "no pool is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is to be placed. `avoid`: pools that refused it for good, and why; `spent`: its account's money of today."""

    spec: JobSpec
    avoid: tuple[tuple[str, str], ...] = ()
    spent: float = 0.0
    now: float  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    starts_in_s: float
    per_hour: float  # money
    lacks: str = ""  # what of it is not free now; empty: all is
    slices: tuple[str, int] | None = None  # class and count of those that it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    pool: Pool
    move_s: float
    money: float
    late: bool
    score: float
    fit: Fit

    @property
    def reason(self) -> str:
        late = ", after its deadline" if self.late else ""
        lacks = f"; {self.fit.lacks}" if self.fit.lacks else ""
        start = f"start in {self.fit.starts_in_s:.0f} s"
        return f"{start}, {self.move_s:.0f} s to move, price {self.money:.2f}{late}{lacks}"


def choose(ask: Ask, pools: Sequence[Pool], rules: Rules) -> Choice:
    """Ties go to the pool that was named first."""
    judged = [(pool, _judge(ask, pool, rules)) for pool in pools]
    offers = [offer for _, offer in judged if isinstance(offer, _Offer)]
    best = min(offers, key=lambda one: (one.late, one.score), default=None)
    reasons = tuple(
        (
            pool.name,
            verdict if isinstance(verdict, str) else f"{'chosen' if verdict is best else 'fits'}: {verdict.reason}",
        )
        for pool, verdict in judged[:MAX_REASONS]
    )
    if best is None:
        return Choice(pool=None, reasons=reasons)
    return Choice(pool=best.pool, left=_left(ask.spec, best), cost=best.money, reasons=reasons)


def _left(spec: JobSpec, offer: _Offer) -> Room:
    room = offer.pool.room
    taken = dict([offer.fit.slices] if offer.fit.slices else [])
    slices = tuple((name, max(0, free - taken.get(name, 0))) for name, free in room.slices)
    return replace(room, free_cpus=max(0, room.free_cpus - spec.cpus), slices=slices)


def _judge(ask: Ask, pool: Pool, rules: Rules) -> _Offer | str:
    spec, room = ask.spec, pool.room
    if no := _barred(ask, pool, rules):
        return no
    if spec.batch is not None and not room.batch:
        return _TOO_OLD
    if room.free_jobs - pool.sent <= 0:
        return room.why or "full: it takes no more jobs now"
    if room.longest_s and spec.time_limit_s > room.longest_s:
        return f"{_TOO_LONG}{room.longest_s} s"
    fit = fits(spec, pool)
    if isinstance(fit, str):
        return fit
    run_s, wait_s = limit_s(spec), fit.starts_in_s
    money = fit.per_hour * run_s / 3600
    budget = rules.budget(spec.account)
    if budget is not None and money > 0 and ask.spent + money > budget:
        return f"over budget: {money:.2f} more than the {max(0.0, budget - ask.spent):.2f} left of today's {budget:.2f}"
    move_s = 0.0 if pool.local else spec.input_bytes / pool.bytes_per_s
    late = spec.deadline_at is not None and ask.now + wait_s + move_s + run_s > spec.deadline_at
    score = wait_s + move_s + money * rules.seconds_per_money - (rules.local_bonus_s if pool.local else 0.0)
    return _Offer(pool=pool, move_s=move_s, money=money, late=late, score=score, fit=fit)


def _barred(ask: Ask, pool: Pool, rules: Rules) -> str:
    spec = ask.spec
    if spec.pin and spec.pin not in (pool.site, pool.name):
        return f"{_PINNED}{spec.pin}"
    if no := forbidden(spec.account, pool, rules):
        return no
    refused = dict(ask.avoid).get(pool.name)
    if refused is not None:
        return f"it refused this job: {refused}"
    if not pool.linked:
        return "no link now"
    if pool.cools_for_s > 0:
        return f"left alone for {pool.cools_for_s:.0f} s after failures"
    return ""


def forbidden(account: str, pool: Pool, rules: Rules) -> str:
    """Why this site lets no job of that account go there; "": it does."""
    names, allowed = {pool.site, pool.name}, rules.allow.get(account)
    if allowed is not None and not names & set(allowed):
        return f"{_ACCOUNT}{account or '(none)'} may not go there"
    if names & set(rules.deny.get(account, ())):
        return f"{_ACCOUNT}{account or '(none)'} is denied there"
    return ""


def fits(spec: JobSpec, pool: Pool) -> Fit | str:
    """When the job could start there and what an hour of it costs, or why it never can."""
    room = pool.room
    lacks = "" if room.free_cpus >= spec.cpus else f"{room.free_cpus} CPUs are free now"
    plain = _waiting(room, Fit(starts_in_s=0.0, per_hour=room.price_per_hour * max(1, spec.cpus), lacks=lacks))
    if not spec.gres:
        return plain
    asked = request.parse(spec.gres)
    if isinstance(asked, request.Refusal):
        return asked.text
    if asked is None:  # no slices: what a pool has of other resources is not told
        return plain if spec.pin else f"what it has of {spec.gres} is not known: name a site with --to"
    offered = _catalogue(room.catalogue) if room.catalogue else None
    if offered is None:
        return "its catalogue can't be read" if room.catalogue else NO_SLICES
    return _slices(spec, room, offered, lacks)


def _waiting(room: Room, fit: Fit) -> Fit:
    """When it starts there if it lacks anything now."""
    if not fit.lacks:
        return fit
    if room.starts_in_s:
        return replace(fit, starts_in_s=room.starts_in_s)
    return replace(fit, starts_in_s=UNTOLD_S, lacks=f"{fit.lacks}, and until when is not told")


def without(spec: JobSpec, room: Room) -> str:
    """What its catalogue does not have, whatever is cut and free; "": it has it, or nobody can tell."""
    if not room.complete:
        return ""
    if not room.catalogue:
        return NO_SLICES
    offered = _catalogue(room.catalogue)
    found = _decided(spec, offered) if offered is not None else ""
    return found if isinstance(found, str) else ""


def _decided(spec: JobSpec, offered: catalogue.Catalogue) -> job_request.JobRewrite | str:
    """What job_submit would say there, or why not."""
    wants = job_request.Job(
        per_node=spec.gres,
        nodes_min=1,
        nodes_max=1,
        tasks=1,
        cpus_per_task=spec.cpus,
        memory_per_node=spec.memory_mib or None,
    )
    found = job_request.decide(wants, offered)
    if isinstance(found, job_request.JobRewrite):
        return found
    return found.text if found else NO_SLICES


def _slices(spec: JobSpec, room: Room, offered: catalogue.Catalogue, lacks: str) -> Fit | str:
    """By what job_submit would say there, and by what there is of it now."""
    found = _decided(spec, offered)
    if isinstance(found, str):
        return found
    if all(shape.makes(found.gres_class) < found.count for shape in offered.shapes):
        return f"no layout there makes {offered.gres}:{found.gres_class}:{found.count} now"
    free = dict(room.slices).get(found.gres_class, 0)
    part = offered.by_name[found.gres_class].weight / _EIGHTHS
    each = room.gpu_price_per_hour * part if room.gpu_price_per_hour else room.price_per_hour
    fit = Fit(
        starts_in_s=0.0,
        per_hour=each * found.count,
        lacks=lacks if free >= found.count else f"{free} slices of {found.gres_class} are free now",
        slices=(found.gres_class, found.count),
    )
    return _waiting(room, fit)


@lru_cache(maxsize=MAX_REASONS)
def _catalogue(text: str) -> catalogue.Catalogue | None:
    try:
        return catalogue.parse(text, most_nodes=MOST_NODES)
    except ConfigError:
        return None
