"""Two sites, edge and hpc, whose messages and effects the test carries itself."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from federation.engine.effects import Effect, Send
from federation.engine.origin import OriginRules
from federation.engine.site import SiteEngine, SiteRules
from federation.model.job import Attempt, Job
from federation.model.messages import Follow, Message, Room, Rooms
from federation.model.spec import JobSpec
from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.policy.admit import Guest, House
from federation.policy.choose import Rules
from federation.ports import Now, Seen, Sight
from federation.store.opening import in_memory
from federation.store.store import Store

T = TypeVar("T")

TOKEN = UUID(int=1)
KEY = Key(TOKEN, 1)
SPEC = JobSpec(user="ann", account="lab")
GUEST = Guest(pools=("gpu", "cpu"), users={"ann": "a_smith"})
EXIT = Outcome(end=End.EXITED, exit_code=0, started_at=5.0, ended_at=6.0, stdout_size=9)


@dataclass
class Site:
    name: str
    peers: tuple[str, ...]
    time: float = 1e6
    may_accept: bool = True
    placing: Rules = field(default_factory=Rules)
    most_open: int = 100

    def __post_init__(self) -> None:
        self.new_journal(UUID(int=len(self.name)))
        self.restart()

    def new_journal(self, name: UUID) -> None:
        connection = in_memory()
        self.store = Store(connection, journal=name, may_accept=lambda: self.may_accept)
        weakref.finalize(self.store, connection.close)

    def restart(self) -> None:
        house = House(pools={"gpu": 3, "cpu": 3}, guests=dict.fromkeys((self.name, *self.peers), GUEST))
        origin = OriginRules(placing=self.placing, most_open=self.most_open)
        rules = SiteRules(name=self.name, peers=self.peers, origin=origin, house=house)
        self.engine = SiteEngine(rules, self.now())
        self.run(lambda: self.engine.start(self.store, self.now()))

    def now(self) -> Now:
        return Now(wall=self.time, mono=self.time)

    def run(self, step: Callable[[], T]) -> T:
        with self.store.transaction():
            return step()

    def hears(self, sender: str, message: Message) -> list[Effect]:
        return self.run(lambda: self.engine.message(self.store, sender, message, self.now()))

    def due(self, seconds: float = 0.0) -> list[Effect]:
        """Without what a site tells itself: these two have no jobs of their own at home."""
        self.time += seconds
        effects = self.run(lambda: self.engine.due(self.store, self.now()))
        return [one for one in effects if not (isinstance(one, Send) and one.site == self.name)]

    def submit(self, spec: JobSpec = SPEC, token: UUID = TOKEN) -> Job:
        return self.run(lambda: self.engine.origin.accept(self.store, token, spec, self.now()))

    def asked(self, what: str, *more: Any) -> list[Effect]:
        """A user asks: cancel, requeue, signal."""
        return self.run(lambda: getattr(self.engine.origin, what)(self.store, TOKEN, *more, self.now()))

    def link(self, peer: str, up: bool = True) -> None:
        self.run(lambda: self.engine.origin.link(self.store, peer, up, self.now()))

    def backend(self, what: str, *more: Any) -> list[Effect]:
        """The target's side hears of its backend."""
        return self.run(lambda: getattr(self.engine.target, what)(self.store, *more, self.now()))

    def sees(self, sight: Sight, key: Key = KEY, **facts: Any) -> list[Effect]:
        return self.backend("looked", {key: Seen(sight=sight, **facts)})

    @property
    def job(self) -> Job:
        job = self.store.job(TOKEN)
        assert job is not None
        return job

    def attempt(self, key: Key = KEY) -> Attempt:
        attempt = self.store.attempt(key)
        assert attempt is not None
        return attempt


def messages(effects: list[Effect], kind: type[T]) -> list[T]:
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, kind)]


def only(effects: list[Effect], kind: type[T]) -> list[T]:
    return [one for one in effects if isinstance(one, kind)]


class Pair:
    """Edge, which has no pools, sends to hpc."""

    def __init__(self, **facts: Any) -> None:
        self.edge = Site("edge", ("hpc", "cloud"), **facts)
        self.hpc = Site("hpc", ("edge",))
        self.edge.link("hpc")
        self.offers("gpu")
        self.carry(self.edge, [Send(site="hpc", message=Follow(journal=None, after=0))])

    def offers(self, *pools: str, **facts: Any) -> None:
        rooms = Rooms(pools=tuple(Room(pool=pool, free_jobs=5, free_cpus=9, **facts) for pool in pools))
        self.edge.hears("hpc", rooms)

    def carry(self, sender: Site, effects: list[Effect]) -> list[Effect]:
        """Take every message to the other side, and what that answers back. Tells the other effects, in order."""
        left: list[Effect] = []
        todo: list[tuple[Site, Effect]] = [(sender, one) for one in effects]
        for _ in range(1000):
            if not todo:
                return left
            site, effect = todo.pop(0)
            other = self.hpc if site is self.edge else self.edge
            if isinstance(effect, Send) and effect.site == other.name:
                todo += [(other, one) for one in other.hears(site.name, effect.message)]
            elif not isinstance(effect, Send):
                left.append(effect)
        raise AssertionError("the two sites never fall silent")

    def pending(self, spec: JobSpec = SPEC) -> None:
        """A job that hpc's backend has."""
        self.edge.submit(spec)
        self.carry(self.edge, self.edge.due())
        self.carry(self.hpc, self.hpc.due(1.0))
        self.carry(self.hpc, self.hpc.backend("handed_over", self.edge.job.key, "77"))

    def running(self, spec: JobSpec = SPEC) -> None:
        self.pending(spec)
        self.carry(self.hpc, self.hpc.sees(Sight.RUNNING, self.edge.job.key, started_at=5.0))
