"""One site: the real engine over the real journal, and a shell that does its effects and dies at any commit."""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from federation.engine.effects import (
    Deliver,
    Effect,
    Fault,
    Fence,
    FetchResults,
    Forget,
    HandOver,
    Look,
    PushInputs,
    Send,
)
from federation.engine.site import SiteEngine, SiteRules
from federation.errors import FedError, NoRoom, OutcomeUnknown, Refused, Unavailable
from federation.model.messages import Message, Room, Rooms
from federation.model.spec import JobSpec
from federation.model.token import Key
from federation.ports import Now
from federation.store.opening import in_memory
from federation.store.store import Store
from tests.simulation.federation.backend import Backend
from tests.simulation.federation.world import EPOCH

if TYPE_CHECKING:
    from tests.simulation.federation.story import Story

TICK_S = 1.0
SOON_S = 0.02
ROOMS_S = 10.0


class Dead(Exception):
    """The daemon was killed here."""


class Node:
    def __init__(self, story: "Story", rules: SiteRules, backend: Backend) -> None:
        self.story, self.world, self.rules, self.backend = story, story.world, rules, backend
        self.name = rules.name
        self.set_by = 0.0  # seconds that its calendar is off
        self.disk_full = False
        self.only_target = False
        self.dies = 0.0  # odds, at each commit
        self.life = 0
        self.journals = 0
        self.engine: SiteEngine | None = None
        self._lines: dict[Key, list[Deliver]] = {}  # signals on their way, one at a time of each attempt
        self.store = self._new_store()
        self._soon = False

    def _new_store(self) -> Store:
        journal = UUID(int=self.world.chance.getrandbits(128))
        connection = in_memory()
        store = Store(connection, journal=journal, may_accept=lambda: not self.disk_full)
        weakref.finalize(store, connection.close)
        return store

    def now(self) -> Now:
        return Now(wall=EPOCH + self.world.now + self.set_by, mono=self.world.now)

    # -- life and death

    def boot(self) -> None:
        self.life += 1
        self.store.roll_back()  # what it had in memory is gone
        self.engine = SiteEngine(self.rules, self.now())
        life = self.life
        self.act(lambda engine, store: engine.start(store, self.now()))
        self._tick(life)
        self._rooms(life)
        for peer in self.rules.peers:
            self.story.links_changed(self.name, peer)

    def die(self) -> None:
        if self.engine is not None:
            self.engine = None
            self._soon = False
            self._lines = {}
            for peer in self.rules.peers:
                self.story.links_changed(self.name, peer)
            self.world.after(self.world.chance.uniform(0.5, 60.0), self.boot)

    def lose_journal(self) -> None:
        self.story.happened["journal lost"] += 1
        self.die()
        self.journals += 1  # no stream that was open to the old one carries on
        self.store.close()
        self.store = self._new_store()

    def act(self, step: Callable[[SiteEngine, Store], list[Effect]]) -> None:
        """One event, one transaction; then its effects."""
        before = self.store.changes()
        if self._commit(step) and not self._soon and self.store.changes() != before:
            self._soon = True
            self.world.after(SOON_S, self._due_soon)

    def _due_soon(self) -> None:
        self._soon = False
        self._due()

    def _due(self) -> None:
        self._commit(lambda engine, store: engine.due(store, self.now()))

    def _commit(self, step: Callable[[SiteEngine, Store], list[Effect]]) -> bool:
        """False: it died, before the commit or right after it, with no effect done."""
        if self.engine is None:
            return False
        try:
            with self.store.transaction():
                effects = step(self.engine, self.store)
                self._may_die()
            self._may_die()
        except Dead:
            self.die()
            return False
        for effect in effects:
            self._do(effect)
        return True

    def _may_die(self) -> None:
        if self.world.odd(self.dies):
            raise Dead

    def _tick(self, life: int) -> None:
        if life == self.life and self.engine is not None:
            self._due()
            self.world.after(TICK_S, lambda: self._tick(life))
            if self.backend.watch and self.backend.up:
                keys, self.backend.watch = self.backend.watch, []
                self._look(tuple(keys))

    # -- links

    def receive(self, sender: str, message: Message) -> None:
        self.act(lambda engine, store: engine.message(store, sender, message, self.now()))

    def link(self, peer: str, up: bool) -> None:
        self.act(lambda engine, store: engine.origin.link(store, peer, up, self.now()))
        if up and self.engine is not None:
            self.story.send(self.name, peer, self.rooms())

    def rooms(self) -> Rooms:
        if not self.rules.house.pools:
            return Rooms(pools=())
        most = self.rules.house.pools["batch"]
        taken = sum(self.store.attempts().values())
        free = max(0, self.backend.slots - len(self.backend.running))
        return Rooms(pools=(Room(pool="batch", free_jobs=max(0, most - taken), free_cpus=free, starts_in_s=30.0),))

    def _rooms(self, life: int) -> None:
        if life == self.life and self.engine is not None:
            for peer in (self.name, *self.rules.peers):
                self.story.send(self.name, peer, self.rooms())
            self.world.after(ROOMS_S, lambda: self._rooms(life))

    # -- effects

    def _do(self, effect: Effect) -> None:
        world = self.world
        match effect:
            case Fault():
                raise effect.error
            case Send():
                self.story.send(self.name, effect.site, effect.message)
            case HandOver():
                world.after(world.chance.uniform(0.01, 0.5), lambda: self._hand_over(effect.key, effect.spec))
            case Look():
                world.after(world.chance.uniform(0.01, 0.5), lambda: self._look(effect.keys))
            case Fence():
                world.after(world.chance.uniform(0.01, 0.5), lambda: self._fence(effect.key))
            case Forget():
                self.backend.forget(effect.key)
                self.act(lambda engine, store: engine.target.forgotten(store, effect.key))
            case PushInputs():
                self.story.push(self.name, effect.site, effect.key)
            case FetchResults():
                self.story.fetch(self.name, effect.site, effect.key)
            case Deliver():
                self._deliver(effect)

    def _hand_over(self, key: Key, spec: JobSpec) -> None:
        if self.engine is None:
            return
        self.story.handed_over(self, key, spec)
        try:
            handle = self.backend.submit(key, spec)
        except Refused as error:
            why = str(error)
            self.act(lambda engine, store: engine.target.rejected(store, key, why, self.now()))
        except NoRoom as error:
            why = str(error)
            self.act(lambda engine, store: engine.target.no_room(store, key, why, self.now()))
        except Unavailable as error:
            why = str(error)
            self.act(lambda engine, store: engine.target.not_handed_over(store, key, why, self.now()))
        except OutcomeUnknown:
            self.act(lambda engine, store: engine.target.unanswered(store, key, self.now()))
        else:
            self.act(lambda engine, store: engine.target.handed_over(store, key, handle, self.now()))

    def _deliver(self, effect: Deliver) -> None:
        line = self._lines.setdefault(effect.key, [])
        if not line or line[-1].number < effect.number:
            line.append(effect)
            if len(line) == 1:
                self._later(line)

    def _later(self, line: list[Deliver]) -> None:
        self.world.after(self.world.chance.uniform(0.01, 0.5), lambda: self._signal(line))

    def _signal(self, line: list[Deliver]) -> None:
        effect = line[0]
        if self._lines.get(effect.key) is not line:
            return  # it died
        try:
            self.backend.signal(effect.key, effect.signal)
        except FedError:
            pass
        else:
            self.act(lambda engine, store: engine.target.delivered(store, effect.key, effect.number))
        line.pop(0)
        if line:
            self._later(line)
        elif self._lines.get(effect.key) is line:
            del self._lines[effect.key]

    def _look(self, keys: tuple[Key, ...]) -> None:
        if self.engine is None:
            return
        try:
            seen = self.backend.look(keys)
        except FedError:
            return
        self.act(lambda engine, store: engine.target.looked(store, seen, self.now()))

    def _fence(self, key: Key) -> None:
        if self.engine is None:
            return
        try:
            never_runs = self.backend.fence(key)
        except FedError:
            return
        if not never_runs:
            self.backend.stop(key)
        self.act(lambda engine, store: engine.target.fenced(store, key, never_runs, self.now()))
