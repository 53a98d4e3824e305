"""A queue and a journal of the test's own, and the real rules, journal rows and engine between them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from federation.config_overflow import OverflowConfig, VirtualNodes
from federation.engine.effects import Effect
from federation.engine.origin import OriginRules
from federation.engine.site import SiteEngine, SiteRules
from federation.model.messages import Room, Rooms
from federation.overflow.changes import Applied, Applies, Change
from federation.overflow.facts import Rule, Waiting
from federation.overflow.looking import Journal, Sources
from federation.overflow.offers import Wanted
from federation.overflow.queued import Names, Queued
from federation.overflow.waiting import Reads, Running
from federation.overflow.widening import Widening
from federation.policy.admit import House
from federation.policy.choose import Rules
from federation.ports import Now
from federation.store.opening import in_memory
from federation.store.store import Store
from slurm_plugin.slurm.process import Site

T = TypeVar("T")

ROOM = Room(pool="gpu", free_jobs=100, free_cpus=100, price_per_hour=2.0, batch=True)
NODES = VirtualNodes(
    prefix="cloud-gpu",
    count=2,
    pool="cloud/gpu",
    gateway="gw",
    cpus=64,
    memory_mib=1000,
    most_jobs=500,
    shared_files=False,
)


class FakeQueue(Reads):
    """What squeue says, as the test sets it; and how often it was read."""

    def __init__(self) -> None:
        self.waits: tuple[Queued, ...] = ()
        self.runs: tuple[Running, ...] = ()
        self.doors = {"gpu": "up", "cloud": "up"}
        self.chosen: Collection[str] = ()

    async def partitions(self) -> dict[str, str]:
        return self.doors

    async def waiting(self, partitions: Collection[str], names: Names) -> tuple[Queued, ...]:
        self.chosen = partitions
        return self.waits

    async def running(self, cloud: str) -> tuple[Running, ...]:
        return self.runs


class FakeChanges(Applies):
    def __init__(self) -> None:
        self.told: list[Change] = []
        self.refused: dict[str, str] = {}

    async def apply(self, changes: Sequence[Change]) -> Applied:
        self.told += changes
        return Applied(refused={one.name: self.refused[one.name] for one in changes if one.name in self.refused})

    def moves(self) -> list[tuple[str, str]]:
        """Names and partitions, in order."""
        return [(one.name, one.to[0].removeprefix("partition=")) for one in self.told if "partition=" in one.to[0]]

    def words(self) -> list[tuple[str, str]]:
        return [(one.name, one.to[0].removeprefix("admincomment=")) for one in self.told if "comment" in one.to[0]]


class FakeJournal(Journal):
    """A real store, without its thread."""

    def __init__(self) -> None:
        self.store = Store(in_memory(), journal=UUID(int=1))

    def __del__(self) -> None:
        self.store.close()

    async def read(self, call: Callable[[Store], T], *, long: bool = False) -> T:
        return call(self.store)

    async def act(self, step: Callable[[Store], list[Effect]]) -> None:
        with self.store.transaction():
            assert step(self.store) == []


@dataclass
class Bench:
    rule: Rule = field(default_factory=Rule)
    placing: Rules = field(default_factory=Rules)
    now: Now = field(default_factory=lambda: Now(wall=1_000_000.0, mono=500.0))
    queue: FakeQueue = field(default_factory=FakeQueue)
    changes: FakeChanges = field(default_factory=FakeChanges)
    journal: FakeJournal = field(default_factory=FakeJournal)
    nodes: tuple[VirtualNodes, ...] = (NODES,)
    rules: dict[str, Rule] | None = None  # None: `rule`, for partition gpu

    def __post_init__(self) -> None:
        peers = tuple({nodes.pool.partition("/")[0] for nodes in self.nodes})
        origin = OriginRules(placing=self.placing)
        self.engine = SiteEngine(SiteRules(name="hpc", peers=peers, origin=origin, house=House(pools={})), self.now)
        for peer in peers:
            self.link(peer)
        self.widening = self.restarted()

    def config(self) -> OverflowConfig:
        return OverflowConfig(
            cluster="hpc",
            slurm=Site(),
            socket=Path("/run/fed/gateway.sock"),
            partition="cloud",
            wait_partition="vgpu-wait",
            longest_wait_s=3600,
            pool_yaml=None,
            nodes={nodes.prefix: nodes for nodes in self.nodes},
            rules={"gpu": self.rule} if self.rules is None else self.rules,
        )

    def restarted(self) -> Widening:
        """A daemon that knows only what the journal and Slurm do."""
        sources = Sources(
            config=self.config,
            journal=self.journal,
            engine=self.engine,
            queue=self.queue,
            clock=lambda: self.now,
        )
        return Widening(sources, self.changes)

    def link(self, peer: str, *, up: bool = True, room: Room = ROOM) -> None:
        site = self.engine.sites[peer]
        site.linked, site.heard = up, self.now.mono if up else site.heard
        if up:
            self.engine.sites.offered(peer, Rooms(pools=(room,)), self.now)

    def later(self, seconds: float) -> None:
        self.now = Now(wall=self.now.wall + seconds, mono=self.now.mono + seconds)

    def job(self, job_id: int, **what: Any) -> Queued:
        known: dict[str, Any] = {
            "job_id": job_id,
            "root": job_id,
            "uid": 1000,
            "priority": 1,
            "partitions": ("gpu", "vgpu-wait"),
            "since": int(self.now.wall) - 700,
        }
        job = Waiting(**known | what)
        return Queued(
            job=job,
            wanted=Wanted(cpus=1, limit_s=3600, account=job.account, pin=job.pin),
            submitted_at=job.since,
            comment="asked vgpu",
        )

    def carried_out(self) -> None:
        """The queue, as Slurm has it after what it was told."""
        to = dict(self.changes.moves())
        self.queue.waits = tuple(
            replace(one, job=replace(one.job, partitions=tuple(to[name].split(","))))
            if (name := one.name(one.job.tasks)) in to and name not in self.changes.refused
            else one
            for one in self.queue.waits
        )
        self.changes.told.clear()
