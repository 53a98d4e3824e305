"""Stories by seed: gateways are lost, users cancel and requeue, slurmctld forgets, daemons die, in any order.

Whatever happens, no two attempts of one job of Slurm's live at once, none lives while the job runs on a node of its
own, and once all is said nothing runs that Slurm does not have running. A failure names its seed.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from federation.errors import FedError
from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.overflow import arrivals, slurm_side
from federation.overflow.burst import Claim, Heard, Phase, SlurmJob, Way
from federation.overflow.bursts import newest_bursts
from tests.integration.federation.overflow.stand import ASKED, JOB, Stand, stand
from tests.integration.federation.site import SPEC, until

SEEDS = range(40)
SEEDS_SOAK = range(40, 2000)
AT_ONCE = 20
EVENTS = 100
TERM = 15


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "JUST_S", 0)
    monkeypatch.setattr(slurm_side, "ASK_S", 0.001)
    monkeypatch.setattr(slurm_side, "ASKS", 2)


@dataclass
class Story:
    """One job id of a Slurm, and whoever has it."""

    here: Stand
    chance: random.Random
    now: int = 1000
    generation: int = 0  # of the id: how many jobs had it
    owners: dict[str, int] = field(default_factory=dict)  # token -> generation
    forgot: bool = False  # the start of the run before, with the note
    told: list[str] = field(default_factory=list)

    @property
    def job(self) -> SlurmJob | None:
        return self.here.slurm.records.get(12)

    def put(self, **changes: Any) -> None:
        assert self.job is not None
        self.here.slurm.put(replace(self.job, **changes))

    def tick(self) -> int:
        self.now += self.chance.randint(1, 30)
        return self.now

    # -- what Slurm and users do

    async def is_submitted(self) -> None:
        if self.job is None or (self.job.over and self.chance.random() < 0.3):
            self.generation += 1
            at = self.tick()
            self.here.slurm.put(replace(JOB, submitted_at=at, started_at=at, uid=self.chance.choice((1000, 1001))))

    async def gateway_is_lost(self) -> None:
        if self.job is not None and self.job.state == "RUNNING":
            self.here.slurm.requeued(self.job, self.tick())

    async def user_cancels(self) -> None:
        if self.job is not None and self.job.lives:
            if self.job.state == "RUNNING":
                self.put(state="COMPLETING")
                await self._hears()
            self.put(state="CANCELLED")

    async def user_requeues(self) -> None:
        job = self.job
        if job is not None and job.state == "RUNNING":
            self.put(state="COMPLETING", restarts=job.restarts + 1, submitted_at=self.tick())
            await self._hears(job.restarts)
            if self.job is not None:
                self.put(state="PENDING", nodes=(), started_at=0, partitions=ASKED)

    async def _hears(self, restarts: int | None = None) -> None:
        """The proxy, unless nobody listens just now."""
        assert self.job is not None
        if self.chance.random() < 0.8:
            run = self.job.restarts if restarts is None else restarts
            await self.here.side.heard(12, Heard(signal=TERM, from_stepd=True, restarts=run))

    async def slurm_starts_it(self) -> None:
        """Where it may; a node of its own sends back what may be open elsewhere."""
        job = self.job
        if job is None or job.state != "PENDING":
            return
        if "cloud" in job.partitions and (job.partitions == ("cloud",) or self.chance.random() < 0.5):
            self.here.slurm.started(12, self.tick())
        elif '"open":1' not in job.note:
            self.here.slurm.started(12, self.tick(), node="n1")
            await self._prolog()

    async def _prolog(self) -> None:
        """It waits with a slurmctld that has just come back, and nothing of the job runs meanwhile."""
        forgot, self.forgot = self.forgot, False
        if not forgot:
            return
        self.put(state="CONFIGURING")
        away, self.here.slurm.away = self.here.slurm.away, False
        await self.here.passes(3)
        self.here.slurm.away = away
        if self.job is not None and self.job.state == "CONFIGURING":
            if '"open":1' in self.job.note:
                self.here.slurm.requeued(self.job, self.tick())
            else:
                self.put(state="RUNNING")

    async def local_run_ends(self) -> None:
        if self.job is not None and self.job.nodes == ("n1",) and self.job.state == "RUNNING":
            self.put(state="COMPLETED")

    async def slurmctld_forgets(self) -> None:
        self.here.slurm.records.pop(12, None)

    async def slurmctld_forgets_the_start(self) -> None:
        if self.job is not None and self.job.state == "RUNNING":
            self.put(state="PENDING", nodes=(), started_at=0, partitions=ASKED, note="")
            self.forgot = True

    async def slurmctld_goes_or_comes(self) -> None:
        self.here.slurm.away = not self.here.slurm.away

    # -- what the far side and proxies do

    async def proxy_says_hello(self) -> None:
        job = self.job
        if job is None or job.state != "RUNNING" or not job.nodes[0].startswith("cloud"):
            return
        what, burst = await self.here.arrive(job, script=b"%d" % self.generation)
        if burst is not None and what in (Claim.NEW, Claim.REATTACH):
            self.owners.setdefault(str(burst.token), self.generation)
            assert self.owners[str(burst.token)] == self.generation, "another job's"
            await self.here.side.accept(burst.token, SPEC)

    async def it_ends_there(self) -> None:
        for key in self.alive():
            how = self.chance.choice((End.EXITED, End.EXITED, End.NODE_FAIL, End.TIMEOUT))
            self.here.backend.end(key, Outcome(end=how, exit_code=0))

    async def proxy_exits(self) -> None:
        job = self.job
        if job is None or job.state != "RUNNING" or not job.nodes[0].startswith("cloud"):
            return
        what, burst = await self.here.arrive(job, script=b"%d" % self.generation)
        fed = await self.here.runner.read(lambda store: store.job(burst.token) if burst else None)
        if what is Claim.REATTACH and burst is not None and fed is not None and fed.outcome is not None:
            ending = await self.here.side.end(burst.token)
            if ending.way in (Way.EXIT, Way.SIGNAL):
                self.put(state="COMPLETED" if not ending.value else "FAILED")
            elif ending.way is Way.TIMEOUT:
                self.put(state="TIMEOUT")
            elif self.job is not None and self.job.state == "COMPLETING":
                self.here.slurm.requeued(replace(self.job, restarts=job.restarts), self.tick())

    async def daemon_looks(self) -> None:
        await self.here.passes()

    # -- what must be so

    def alive(self) -> list[Key]:
        backend = self.here.backend
        return [key for key in backend.ran if key not in backend.ends]

    def check(self) -> None:
        live = [self.owners.get(str(key.token), -1) for key in self.alive()]
        assert len(live) == len(set(live)), "two attempts of one job live at once"
        if self.job is not None and self.job.state == "RUNNING" and self.job.nodes == ("n1",):
            assert self.generation not in live, "it runs here and elsewhere"
        assert set(self.here.backend.ran.values()) <= {1}, "one attempt ran twice"

    def events(self) -> list[Callable[[], Awaitable[None]]]:
        often = [self.daemon_looks, self.proxy_says_hello, self.slurm_starts_it, self.is_submitted] * 8
        users = [self.user_cancels, self.user_requeues, self.gateway_is_lost] * 2
        there = [self.it_ends_there, self.proxy_exits, self.proxy_exits, self.local_run_ends] * 2
        rare = [self.slurmctld_forgets, self.slurmctld_forgets_the_start, self.slurmctld_goes_or_comes]
        return [*often, *users, *there, *rare, *([self.slurmctld_goes_or_comes] * 4 * self.here.slurm.away)]

    async def told_by(self, event: Callable[[], Awaitable[None]]) -> None:
        self.told.append(event.__name__)
        try:
            await event()
        except FedError as error:
            self.told[-1] += f" ({error})"
        self.check()


async def told(folder: Path, seed: int) -> None:
    story = Story(here=stand(folder), chance=random.Random(seed))
    try:
        await story.is_submitted()
        left = EVENTS
        while left:
            async with story.here.up():  # a daemon's life
                for _ in range(story.chance.randint(1, left)):
                    left -= 1
                    await story.told_by(story.chance.choice(story.events()))
                    if story.chance.random() < 0.4:
                        await asyncio.sleep(0.03)  # the engine gets somewhere, or not
        async with story.here.up():
            await settles(story)
    except BaseException as error:
        error.add_note(f"seed {seed}: {' | '.join(story.told)}")
        raise


async def settles(story: Story) -> None:
    """Nobody does anything more but who must: nothing runs then that Slurm does not have running."""
    story.here.slurm.away = False
    story.here.slurm.records.pop(12, None)
    for _ in range(4):
        await story.told_by(story.daemon_looks)
    await until(lambda: is_quiet(story))


async def is_quiet(story: Story) -> bool:
    await story.told_by(story.daemon_looks)
    found = await story.here.runner.read(lambda store: newest_bursts(store, "", 1000))
    return not story.alive() and all(one.phase is Phase.CLOSED for one in found)


async def told_all(folder: Path, seeds: range) -> None:
    for seed in seeds:
        (folder / str(seed)).mkdir()
    for first in range(0, len(seeds), AT_ONCE):
        await asyncio.gather(*(told(folder / str(seed), seed) for seed in seeds[first : first + AT_ONCE]))


async def test_stories(tmp_path: Path) -> None:
    await told_all(tmp_path, SEEDS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_many_stories(tmp_path: Path) -> None:
    await told_all(tmp_path, SEEDS_SOAK)
