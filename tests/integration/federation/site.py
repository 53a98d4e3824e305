"""Sites in one process: real journals on disk, real runners, a backend of the test's own, links that it can cut."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

from federation.engine.effects import Decided
from federation.engine.origin import OriginRules
from federation.engine.site import SiteEngine, SiteRules
from federation.errors import Unavailable
from federation.model.job import Job
from federation.model.messages import Message, Room
from federation.model.spec import JobSpec
from federation.model.states import End, Origin, Outcome
from federation.model.token import Key
from federation.policy.admit import Guest, House
from federation.ports import Peers, Seen, Sight, now
from federation.runner import Adapters, Runner
from federation.store.room import Room as DiskRoom
from federation.store.writer import Writer

PATIENCE_S = 30.0
GUEST = Guest(pools=("batch",), users={"ann": "ann"}, most_jobs=100_000)
SPEC = JobSpec(user="ann", script=b"#!/bin/sh\ntrue\n")


@dataclass
class Backend:
    """Runs a job in no time when it is let to, and remembers how often each one ran."""

    ran: dict[Key, int] = field(default_factory=dict)
    claims: set[Key] = field(default_factory=set)
    forgotten: set[Key] = field(default_factory=set)
    size: int = 0  # of the output
    full: bool = False
    why: str = ""  # it does not tell what room it has
    changed: Callable[[Key], None] = lambda key: None

    async def room(self) -> Room:
        if self.why:
            raise Unavailable(self.why)
        free = 0 if self.full else 100_000
        return Room(pool="batch", free_jobs=free, free_cpus=free)

    async def submit(self, key: Key, spec: JobSpec, user: str) -> str:
        assert (spec, user) == (SPEC, "ann")
        asyncio.get_running_loop().call_later(0.01, self.changed, key)
        if key not in self.claims:
            self.claims.add(key)
            self.ran[key] = self.ran.get(key, 0) + 1
        return str(len(self.claims))

    async def look(self, keys: Sequence[Key]) -> Mapping[Key, Seen]:
        ended = Outcome(end=End.EXITED, exit_code=0, started_at=1.0, ended_at=2.0, stdout_size=self.size)
        there, absent = Seen(sight=Sight.EXITED, outcome=ended), Seen(sight=Sight.ABSENT)
        return {key: there if key in self.ran else absent for key in keys}

    async def fence(self, key: Key) -> bool:
        fresh = key not in self.claims
        self.claims.add(key)
        return fresh or key not in self.ran

    async def stop(self, key: Key) -> None:
        """It is over already."""

    async def signal(self, key: Key, signal: int) -> None:
        """It is over already."""

    async def forget(self, key: Key) -> None:
        self.forgotten.add(key)


@dataclass
class Site:
    name: str
    folder: Path
    others: tuple[str, ...]
    net: "Net"
    backend: Backend = field(default_factory=Backend)
    runner: Runner | None = None
    decided: list[Decided] = field(default_factory=list)

    def send(self, site: str, message: Message) -> bool:
        return self.net.carry(self.name, site, message)

    def push_inputs(self, site: str, key: Key, spec: JobSpec) -> None:
        self.net.task(self.net.running(site).inputs_here(key))

    def fetch_results(self, site: str, key: Key, outcome: Outcome) -> None:
        self.net.task(self.net.running(self.name).results_here(key))

    @asynccontextmanager
    async def up(self, peers: Peers | None = None) -> AsyncIterator[Runner]:
        """Its daemon. Leaving it is a crash as far as anything in memory goes."""
        room = DiskRoom(self.folder / "fed.db", reserve_bytes=0, ballast_bytes=1 << 16)
        writer = Writer(self.folder / "fed.db", journal=uuid4(), room=room)
        house = House(pools={"batch": 100_000}, guests=dict.fromkeys((self.name, *self.others), GUEST))
        rules = SiteRules(name=self.name, peers=self.others, origin=OriginRules(), house=house)
        adapters = Adapters(
            executors={"batch": self.backend}, peers=peers or self, mover=self, decided=self.decided.append
        )
        runner = self.runner = Runner(SiteEngine(rules, now()), writer, adapters)
        self.backend.changed = lambda key: runner.look("batch", (key,))
        task = asyncio.create_task(self.runner.run())
        try:
            yield self.runner
        finally:
            self.runner = None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await writer.close()


class Net:
    """Links between the sites that are up. Messages of one link are handed over in their order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sites: dict[str, Site] = {}
        self.cut = False
        self._tasks: set[asyncio.Task[None]] = set()

    def site(self, name: str, *others: str) -> Site:
        (self.folder / name).mkdir()
        self.sites[name] = Site(name=name, folder=self.folder / name, others=others, net=self)
        return self.sites[name]

    def running(self, name: str) -> Runner:
        runner = self.sites[name].runner
        assert runner is not None
        return runner

    def carry(self, sender: str, receiver: str, message: Message) -> bool:
        runner = self.sites[receiver].runner
        if self.cut or runner is None:
            return False
        self.task(runner.message(sender, message))
        return True

    def task(self, call: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(_quiet(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quiet(call: Coroutine[None, None, None]) -> None:
    with suppress(Exception):
        await call


async def linked(one: Site, other: Site) -> None:
    for a, b in ((one, other), (other, one)):
        if a.runner is not None:
            await a.runner.link(b.name, up=True)


async def jobs(site: Site, tokens: Sequence[UUID]) -> list[Job]:
    assert site.runner is not None
    found = await site.runner.read(lambda store: [store.job(token) for token in tokens])
    return [job for job in found if job is not None]


async def until(ready: Callable[[], Awaitable[bool]]) -> None:
    """What it waits for is in a journal, so it looks again and again."""
    async with asyncio.timeout(PATIENCE_S):
        while not await ready():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def all_done(site: Site, tokens: Sequence[UUID]) -> bool:
    return all(job.state is Origin.DONE for job in await jobs(site, tokens))
