"""One look: the queue from Slurm, what was widened and spent from the journal, what pools say from the engine."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from federation.config_overflow import OverflowConfig, VirtualNodes
from federation.engine.effects import Effect
from federation.engine.origin import DAY_S
from federation.engine.site import SiteEngine
from federation.engine.sites import SILENT_S
from federation.errors import Unavailable
from federation.overflow import widened
from federation.overflow.burst import Burst
from federation.overflow.bursts import FarJob, far_jobs, open_bursts
from federation.overflow.expected import MOST_ASKED, Expects
from federation.overflow.facts import Facts, Waiting, Widened
from federation.overflow.offers import Behind, Market
from federation.overflow.queued import Names, Queued
from federation.overflow.rules import ours, rule_of
from federation.overflow.waiting import Reads, Running
from federation.policy.choose import Pool
from federation.ports import Now, now
from federation.store.store import Store
from slurm_plugin.slurm.queue import has_element

T = TypeVar("T")


class Journal(Protocol):
    """What of `Runner` is used here."""

    async def read(self, call: Callable[[Store], T], *, long: bool = False) -> T: ...

    async def act(self, step: Callable[[Store], list[Effect]]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    config: Callable[[], OverflowConfig]
    journal: Journal
    engine: SiteEngine
    queue: Reads
    expects: Expects | None = None  # None: nobody knows more than Slurm
    clock: Callable[[], Now] = now


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was there at one moment. What started while it was read is counted twice rather than not at all."""

    queue: tuple[Queued, ...]
    running: tuple[Running, ...]
    facts: Facts
    market: Market
    lacking: tuple[str, ...]  # partitions that have a rule, and that Slurm has not


@dataclass(frozen=True, slots=True, kw_only=True)
class _Books:
    rows: Mapping[int, Widened]
    spent: Mapping[str, float]  # today, by rule
    left: Mapping[str, float]  # of today's budgets, by account
    booked: frozenset[int]
    open: Mapping[int, Collection[int]]  # elements whose attempt elsewhere is not over, by root; -1: a job of no array
    pools: Mapping[str, Pool]
    far: Mapping[int, FarJob]  # by id, of jobs with an attempt elsewhere
    away: Mapping[str, float]  # seconds since its site was heard, of those that are not


async def seen(sources: Sources, refused: Mapping[int, str]) -> Seen:
    """`refused`: jobs that Slurm did not let change a while ago, and what it said. Raises Unavailable."""
    config = sources.config()
    names = Names(
        cloud=config.partition,
        wait_partition=config.wait_partition,
        virtual=frozenset(node for nodes in config.nodes.values() for node in nodes.names),
    )
    doors = await sources.queue.partitions()
    if config.partition not in doors:
        raise Unavailable(f"Slurm has no partition {config.partition}", hint="fed render writes it")
    queue = await sources.queue.waiting({config.partition, *config.rules} & doors.keys(), names)
    running = await sources.queue.running(config.partition)
    now = sources.clock()
    books = await _books(sources, {one.job.account for one in queue}, now)
    facts = _facts(config, books, running, now)
    queue = tuple(_held_back(one, refused, books.open) for one in queue)
    queue = await _estimated(sources.expects, queue, facts)
    door = doors[config.partition]
    market = Market(
        behind=[_behind(nodes, books) for nodes in config.nodes.values()],
        rules=sources.engine.origin.rules.placing,
        now=now.wall,
        closed="" if door == "up" else f"partition {config.partition} is {door}",
    )
    facts = await asyncio.to_thread(_offered, facts, market, queue)
    lacking = tuple(sorted(config.rules.keys() - doors.keys()))
    return Seen(queue=queue, running=running, facts=facts, market=market, lacking=lacking)


def _offered(facts: Facts, market: Market, queue: Sequence[Queued]) -> Facts:
    return replace(facts, offers={one.job.job_id: market.offers(one.wanted) for one in queue})


async def _books(sources: Sources, accounts: Collection[str], now: Now) -> _Books:
    sites, placing = sources.engine.sites, sources.engine.origin.rules.placing
    budgets = {account: budget for account in accounts if (budget := placing.budget(account)) is not None}
    day = int(now.wall // DAY_S)

    def read(store: Store) -> _Books:
        silent = {site.name: now.mono - site.heard for site in sites.all() if not site.linked}
        silent |= {site.name: now.mono - site.heard for site in sites.all() if now.mono - site.heard > SILENT_S}
        return _Books(
            rows=widened.widened(store),
            spent=widened.spent(store, day),
            left={account: budget - store.spent(account, day) for account, budget in budgets.items()},
            booked=widened.booked(store),
            open=_open(open_bursts(store)),
            pools={pool.name: pool for pool in sites.pools(store.jobs(), now)},
            far=far_jobs(store),
            away=silent,
        )

    return await sources.journal.read(read, long=True)


def _facts(config: OverflowConfig, books: _Books, running: Sequence[Running], now: Now) -> Facts:
    """A job that runs there, and whose price is not booked yet, counts with what was expected."""
    there: Counter[str] = Counter()
    spent, left = dict(books.spent), dict(books.left)
    for one in running:
        if (row := books.rows.get(one.root)) is None:
            continue
        there[row.rule] += 1
        if one.job_id not in books.booked:
            spent[row.rule] = spent.get(row.rule, 0.0) + row.price
            if row.account in left:
                left[row.account] -= row.price
    return Facts(
        now=now.wall,
        cloud=config.partition,
        rules=config.rules,
        widened=books.rows,
        running=there,
        spent=spent,
        left=left,
        room=_room(config, books, running),
    )


def _room(config: OverflowConfig, books: _Books, running: Sequence[Running]) -> dict[str, int]:
    """What has started on a virtual node and is not known to be of one pool may be any's."""
    most: Counter[str] = Counter()
    for nodes in config.nodes.values():
        most[nodes.pool] += nodes.most_jobs
    there = [books.far.get(one.job_id) for one in running]
    room = {}
    for pool in most.keys() & books.pools.keys():
        mine = [one is not None and one.sent for one in there if one is None or one.pool == pool]
        known = books.pools[pool]
        room[pool] = min(known.room.free_jobs - known.sent - mine.count(False), most[pool] - len(mine))
    return room


def _behind(nodes: VirtualNodes, books: _Books) -> Behind:
    site = nodes.pool.partition("/")[0]
    return Behind(
        pool=nodes.pool,
        names=frozenset({nodes.prefix, *nodes.pool.split("/")}),
        nodes=nodes.names,
        known=books.pools.get(nodes.pool),
        away_s=books.away.get(site, 0.0),
    )


def _open(bursts: Sequence[Burst]) -> Mapping[int, Collection[int]]:
    found: dict[int, set[int]] = {}
    for one in bursts:
        found.setdefault(one.array_id or one.job_id, set()).add(one.task_id if one.array_id else -1)
    return found


def _held_back(one: Queued, refused: Mapping[int, str], burst: Mapping[int, Collection[int]]) -> Queued:
    """With what the row does not say. squeue puts elements of an array together, and shows the note of one of them."""
    job = one.job
    if said := refused.get(job.job_id):
        job = replace(job, held=f"Slurm refused it: {said}")
    if any(task < 0 or has_element(one.elements, task) for task in burst.get(job.root, ())):
        job = replace(job, open=True)
    return one if job is one.job else replace(one, job=job)


async def _estimated(expects: Expects | None, queue: tuple[Queued, ...], facts: Facts) -> tuple[Queued, ...]:
    """With the pool's word on the oldest of those that it matters for, and on which Slurm has none."""
    if expects is None:
        return queue
    asked = await asyncio.to_thread(_asked, queue, facts)
    starts = await expects.starts(asked, facts.now) if asked else {}
    return tuple(
        replace(one, job=replace(one.job, starts_at=starts[one.job.job_id])) if one.job.job_id in starts else one
        for one in queue
    )


def _asked(queue: Sequence[Queued], facts: Facts) -> list[Waiting]:
    jobs = sorted((one.job for one in queue if _matters(one, facts)), key=lambda job: (job.since, job.job_id))
    return jobs[:MOST_ASKED]


def _matters(one: Queued, facts: Facts) -> bool:
    job: Waiting = one.job
    rule = facts.rules.get(rule_of(job, facts))
    if rule is None or not rule.start_later_s or job.starts_at is not None or not one.wanted.gres:
        return False
    due = facts.now - job.since >= rule.after_s and facts.cloud not in job.partitions
    return not (job.held or job.obstacle) and (due or (rule.recall and ours(job, facts)))
