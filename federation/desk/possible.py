"""Whether any pool could run what a user submits, and what a job that was accepted waits for.

A site that is not heard may have a pool for it: that is no refusal.
"""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from federation.engine.site import SiteEngine
from federation.errors import Refused
from federation.model.job import Job
from federation.model.spec import JobSpec
from federation.model.states import Origin
from federation.policy.choose import Pool
from federation.policy.never import Never, never
from federation.ports import now
from federation.runner import Runner
from federation.store.store import Store

ANSWER_S = 1.0  # longest wait for a site's first word on a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Of the pools that a job may go to at all. `unheard`: sites that may have others, or these no more."""

    pools: tuple[Pool, ...]
    unheard: tuple[str, ...]


def known(engine: SiteEngine, store: Store, pin: str, targets: Collection[str]) -> Known:
    """`targets`: peers that jobs of ours go to."""
    wanted, _, name = pin.partition("/")
    offered = engine.sites.pools(store.jobs(), now())
    sites = [one for one in engine.sites.all() if one.name in (engine.name, *targets) and wanted in ("", one.name)]
    linked = {pool.site for pool in offered if pool.linked}
    none_here = not engine.target.house.pools
    return Known(
        pools=tuple(one for one in offered if one.site in {s.name for s in sites} and name in ("", one.room.pool)),
        unheard=tuple(s.name for s in sites if s.name not in linked and not (s.name == engine.name and none_here)),
    )


async def check_possible(runner: Runner, targets: Collection[str], spec: JobSpec) -> None:
    """Raises Refused for what no pool that it may go to could ever run, with the nearest request that works."""
    if (found := await runner.read(lambda store: _never(runner.engine, store, spec, targets, ()))) is not None:
        raise _refusal(found)


async def settled(runner: Runner, targets: Collection[str], token: UUID) -> str:
    """What it waits for, once that is known; "": it is on its way. Raises Refused where every pool said no to it: then
    it is cancelled.
    """
    changed = asyncio.Event()
    with runner.watching(token, lambda _: changed.set()), suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            while _undecided(await runner.read(lambda store: store.job(token))):
                await changed.wait()
                changed.clear()
    job, unheard, found = await runner.read(lambda store: _word(runner.engine, store, token, targets))
    if job is None or job.state not in (Origin.QUEUED, Origin.UNKNOWN):
        return ""
    if found is not None and job.state is Origin.QUEUED:
        await runner.cancel(token)
        raise _refusal(found)
    return "; ".join([job.why or "it is looked at", *(f"no word of {site}" for site in unheard)])


def _undecided(job: Job | None) -> bool:
    if job is None:
        return False
    return job.state is Origin.SENDING or (job.state is Origin.QUEUED and (job.due_at or 0.0) <= time.time())


def _word(
    engine: SiteEngine, store: Store, token: UUID, targets: Collection[str]
) -> tuple[Job | None, tuple[str, ...], Never | None]:
    """The job, the sites that it may go to and of which nothing is known, and why nobody will ever take it."""
    job, spec = store.job(token), store.spec(token)
    if job is None or spec is None:
        return job, (), None
    found = known(engine, store, spec.pin, targets)
    named = {pool.site for pool in found.pools}  # what speaks against those is told of each
    return job, tuple(one for one in found.unheard if one not in named), _never(engine, store, spec, targets, job.avoid)


def _never(
    engine: SiteEngine,
    store: Store,
    spec: JobSpec,
    targets: Collection[str],
    avoid: tuple[tuple[str, str], ...],
) -> Never | None:
    """None as well where not all are heard."""
    found = known(engine, store, spec.pin, targets)
    if found.unheard:
        return None
    refused = {name: f"it refused this job: {why}" for name, why in avoid}
    guest = engine.target.house.guests.get(engine.name)
    if guest is None or not guest.users.get(spec.user):
        nobody = {pool.name: f"{spec.user} runs no jobs there" for pool in found.pools if pool.site == engine.name}
        refused = nobody | refused
    return never(spec, found.pools, engine.origin.rules.placing, refused)


def _refusal(found: Never) -> Refused:
    return Refused(found.why, hint=found.instead or "fed pools lists what there is")
