"""A site in service: hands every event to the engine as one transaction, and does what it wants once that is durable.

Transactions are handed to the journal in the order of their events, and not waited for one by one: those that come
together become durable together, and with them what they have made due. An effect that finds its queue full is dropped,
and wanted again when it is due.

Crash: what was durable is gone on with; effects that were not done are wanted again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from federation.calls import Call, Calls
from federation.engine.decisions import Asking, decided
from federation.engine.effects import (
    Decided,
    Deliver,
    Dropped,
    Effect,
    Fault,
    Fence,
    FetchResults,
    Forget,
    HandOver,
    LetGo,
    Look,
    PushInputs,
    Send,
)
from federation.engine.site import SiteEngine
from federation.errors import FedError, StoreFull, Unavailable
from federation.model.job import Job
from federation.model.messages import Message, Room, Rooms
from federation.model.spec import JobSpec
from federation.model.token import Key
from federation.ports import Executor, Mover, Now, Peers, now
from federation.store.store import Store
from federation.store.writer import Writer
from federation.tasks import ended, heed, together

log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_S = 1.0  # longest time between looks at what is due
ROOMS_S = 10.0  # between lists of pools, for peers
FORGET_S = 3600.0  # between clearings of what is remembered for long enough
ROOM_S = 20.0  # longest wait for what one pool's backend has: the others' is told no later
TROUBLE_S = 600.0  # how long a fault of ours is told of
MOST_WHY = 400  # characters of why a pool can't tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """What a site does its effects with. `executors`: one a pool."""

    executors: Mapping[str, Executor]
    peers: Peers
    mover: Mover
    decided: Callable[[Decided], None] = lambda _: None


class Runner:
    """One site. Its engine is used inside a transaction only, its adapters outside."""

    def __init__(
        self, engine: SiteEngine, writer: Writer, adapters: Adapters, *, clock: Callable[[], Now] | None = None
    ) -> None:
        self.engine, self._writer, self._adapters = engine, writer, adapters
        self._clock = clock or now
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls = Calls(adapters.executors, engine.target, self.act, self._clock)
        self._accepting = True
        self._stirred = False  # this group may have made something due, or time has
        writer.then, writer.told, writer.saved = self._then, self._after, self._changed
        writer.failed = lambda error: self._troubled("what is due", error)
        self.dropped: Counter[str] = Counter()  # effects, by kind, since it was last logged
        self.forgotten = 0  # portions that retention dropped
        self._watched: dict[UUID, list[Callable[[Job], None]]] = {}
        self._watched_attempts: dict[Key, list[Callable[[], None]]] = {}
        self._trouble, self._trouble_at = "", 0.0

    # -- what users ask

    async def accept(self, token: UUID, spec: JobSpec) -> Job:
        """Durable when it returns. Raises Unavailable, StoreFull."""
        return await self._writer.run(lambda store: self._accept(store, token, spec))

    def _accept(self, store: Store, token: UUID, spec: JobSpec) -> Job:
        self._stirred = True
        return self.engine.origin.accept(store, token, spec, self._clock())

    async def cancel(self, token: UUID) -> None:
        """Durable when it returns: tried until it is confirmed. Raises Refused."""
        await self.act(lambda store: self.engine.origin.cancel(store, token, self._clock()))

    async def give_up(self, token: UUID, *, by_admin: bool = False) -> None:
        """What was not fetched of its output; by an admin, what is at a site that is gone. Raises Refused."""
        await self.act(lambda store: self.engine.origin.give_up(store, token, self._clock(), by_admin=by_admin))

    async def requeue(self, token: UUID) -> None:
        await self.act(lambda store: self.engine.origin.requeue(store, token, self._clock()))

    async def signal(self, token: UUID, signal: int) -> None:
        await self.act(lambda store: self.engine.origin.signal(store, token, signal, self._clock()))

    async def read(self, call: Callable[[Store], T], *, long: bool = False) -> T:
        """A look at the journal. `long`: at many records."""
        return await self._writer.run(call, long=long)

    @contextmanager
    def watching(self, token: UUID, told: Callable[[Job], None]) -> Iterator[None]:
        """Inside, `told` hears of each change of this job once it is durable."""
        all_told = self._watched.setdefault(token, [])
        all_told.append(told)
        try:
            yield
        finally:
            all_told.remove(told)
            if not all_told:
                del self._watched[token]

    @contextmanager
    def watching_attempt(self, key: Key, told: Callable[[], None]) -> Iterator[None]:
        """The same of an attempt that is here."""
        all_told = self._watched_attempts.setdefault(key, [])
        all_told.append(told)
        try:
            yield
        finally:
            all_told.remove(told)
            if not all_told:
                del self._watched_attempts[key]

    async def drain(self, on: bool = True) -> None:
        """No new jobs, of users or of peers; those that are here go on. Durable when it returns: no restart ends it."""
        await self._writer.run(lambda store: store.drain(on))
        self._accepting = not on
        self._spawn(self.tell_rooms)

    @property
    def draining(self) -> bool:
        return not self._accepting

    @property
    def trouble(self) -> str:
        """The last fault of ours, for a while."""
        return self._trouble if self._clock().mono - self._trouble_at < TROUBLE_S else ""

    def _troubled(self, about: str, error: Exception) -> None:
        self._trouble = f"{about} could not be gone on with: {type(error).__name__}: {error}"[:MOST_WHY]
        self._trouble_at = self._clock().mono

    # -- what links and movers tell

    async def message(self, sender: str, message: Message) -> None:
        """Of one sender in their order: may be called again before it has returned."""
        await self.act(lambda store: self._message(store, sender, message, self._clock()))

    def _message(self, store: Store, sender: str, message: Message, now: Now) -> list[Effect]:
        if not isinstance(message, Asking):
            return self.engine.message(store, sender, message, now)
        was = store.attempt(message.key)
        effects = self.engine.message(store, sender, message, now)
        return [*effects, *decided(sender, message, was, store.attempt(message.key), effects)]

    async def messages(self, sender: str, messages: Sequence[Message]) -> None:
        """Several as one transaction. When that can't be, each alone: one that fails takes no other with it."""

        def take(store: Store) -> list[Effect]:
            now = self._clock()
            return [effect for one in messages for effect in self._message(store, sender, one, now)]

        try:
            await self.act(take)
        except Exception:
            if len(messages) == 1:
                raise
            alone = (self.message(sender, one) for one in messages)
            for failed in await asyncio.gather(*alone, return_exceptions=True):
                if failed is not None:
                    log.warning("message.failed", extra={"site": sender, "why": str(failed)}, exc_info=failed)

    async def link(self, site: str, up: bool) -> None:
        await self.act(lambda store: self.engine.origin.link(store, site, up, self._clock()))
        if up:  # a pool that takes long to tell keeps nothing that comes over this link waiting
            self._spawn(lambda: self._tell_room(site))

    async def _tell_room(self, site: str) -> None:
        self._adapters.peers.send(site, self._may_use(site, *await self._rooms()))

    async def inputs_here(self, key: Key) -> None:
        await self.act(lambda store: self.engine.target.inputs_here(store, key, self._clock()))

    async def moved(self, site: str, size: int, seconds: float) -> None:
        """So much of one job's input travelled there."""
        await self._writer.run(lambda _: self.engine.sites.moved(site, size, seconds))

    async def results_here(self, key: Key, remark: str = "") -> None:
        await self.act(lambda store: self.engine.follower.fetched(store, key, self._clock(), remark))

    def look(self, pool: str, keys: tuple[Key, ...]) -> None:
        """A backend says that these have changed: no need to wait for the next look."""
        self._call(Look(pool=pool, keys=keys))

    async def act(self, step: Callable[[Store], list[Effect]]) -> None:
        """One transaction, then its effects."""
        effects = await self._writer.run(lambda store: self._step(store, step))
        for effect in effects:
            self._do(effect)

    def _step(self, store: Store, step: Callable[[Store], list[Effect]]) -> list[Effect]:
        before = store.changes()
        effects = step(store)
        self._stirred |= store.changes() != before
        return effects

    def _stir(self, _: Store) -> None:
        self._stirred = True

    def _then(self, store: Store) -> list[Effect]:
        """What is due at the end of a group."""
        store.watched, store.watched_attempts = self._watched, self._watched_attempts
        if not self._stirred:
            return []
        self._stirred = False
        return self.engine.due(store, self._clock())

    def _after(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._do(effect)
        if self.engine.more_due:
            self._wake.set()

    def _changed(self, changed: list[Job | Key]) -> None:
        for one in changed:
            if isinstance(one, Job):
                for told in tuple(self._watched.get(one.token, ())):
                    told(one)
            else:
                for call in tuple(self._watched_attempts.get(one, ())):
                    call()

    # -- the loops

    async def run(self) -> None:
        """Until cancelled."""
        await self.act(self._start)
        try:
            await together(
                self._due(),
                self._every(ROOMS_S, self.tell_rooms),
                self._every(ROOMS_S, self._tell_dropped),
                self._every(FORGET_S, self._forget, first_s=FORGET_S),
            )
        finally:
            await ended(*self._tasks)

    def _start(self, store: Store) -> list[Effect]:
        self._accepting = not store.draining
        return self.engine.start(store, self._clock())

    async def _tell_dropped(self) -> None:
        if self.dropped:
            log.info("effects.dropped", extra=dict(self.dropped))  # of a link that is down, most often
            self.dropped.clear()

    async def _due(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):  # wait_for of Python 3.11 may lose a cancellation
                    await self._wake.wait()
            self._wake.clear()
            await self._guarded(lambda: self._writer.run(self._stir))

    async def _every(self, seconds: float, call: Callable[[], Awaitable[None]], *, first_s: float = 0.0) -> None:
        await asyncio.sleep(first_s)
        while True:
            await self._guarded(call)
            await asyncio.sleep(seconds)

    async def _guarded(self, call: Callable[[], Awaitable[None]]) -> None:
        """A journal that is full, or slow, now may not be so the next time."""
        try:
            await call()
        except (StoreFull, Unavailable) as error:
            heed()
            log.warning("site.waits", extra={"code": error.code, "why": str(error)})
            await asyncio.sleep(TICK_S)

    async def _forget(self) -> None:
        while await self._writer.run(lambda store: self.engine.forget(store, self._clock())):
            self.forgotten += 1

    async def tell_rooms(self) -> None:
        """Each site hears of the pools that it may use."""
        rooms, taken = await self._rooms()
        for site in self.engine.sites.all():
            if site.name != self.engine.name:
                self._adapters.peers.send(site.name, self._may_use(site.name, rooms, taken))
        await self.message(self.engine.name, rooms)

    def _may_use(self, site: str, rooms: Rooms, taken: Counter[tuple[str, str]]) -> Rooms:
        """Its pools, and of their room what its rules leave it."""
        guest = self.engine.target.house.guests.get(site)
        if guest is None:
            return Rooms(pools=())
        left = max(0, guest.most_jobs - sum(count for (_, origin), count in taken.items() if origin == site))
        pools = (room for room in rooms.pools if room.pool in guest.pools)
        return Rooms(pools=tuple(replace(room, free_jobs=min(room.free_jobs, left)) for room in pools))

    async def _rooms(self) -> tuple[Rooms, Counter[tuple[str, str]]]:
        """What each pool's backend says, less what this site's own rules leave. A pool that can't tell has none.

        And how many attempts take room, for each (pool, origin).
        """
        taken = await self._writer.run(lambda store: Counter(store.attempts()))
        pools = self.engine.target.house.pools.items()
        found = await asyncio.gather(*(self._room(pool) for pool, _ in pools))
        rooms = []
        for (pool, most), room in zip(pools, found, strict=True):
            open_jobs = sum(count for (name, _), count in taken.items() if name == pool)
            free_jobs = max(0, min(room.free_jobs, most - open_jobs)) if self._accepting else 0
            why = room.why if self._accepting else "its site is draining"
            rooms.append(replace(room, pool=pool, free_jobs=free_jobs, why=why, batch=True))
        return Rooms(pools=tuple(rooms)), taken

    async def _room(self, pool: str) -> Room:
        why = f"no answer within {ROOM_S:g} s"
        try:
            async with asyncio.timeout(ROOM_S):
                return await self._adapters.executors[pool].room()
        except TimeoutError:
            log.info("backend.no_answer", extra={"pool": pool, "what": "room", "why": why})
        except FedError as error:
            why = str(error)[:MOST_WHY]
        except Exception as error:  # a fault of ours, with one pool: the others are told all the same
            log.exception("backend.failed", extra={"pool": pool, "what": "room"})
            self._troubled(f"pool {pool}", error)
            why = "a fault of its daemon's: the log there says which"
        return Room(pool=pool, free_jobs=0, free_cpus=0, why=why)

    # -- effects

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                if effect.site == self.engine.name:
                    self._spawn(lambda: self.message(effect.site, effect.message))
                elif not self._adapters.peers.send(effect.site, effect.message):
                    self.dropped["send"] += 1
            case PushInputs():
                self._adapters.mover.push_inputs(effect.site, effect.key, effect.spec)
            case FetchResults():
                self._adapters.mover.fetch_results(effect.site, effect.key, effect.outcome)
            case HandOver() | Look() | Fence() | Deliver() | Forget():
                self._call(effect)
            case LetGo():
                log.warning("attempt.let_go", extra={"site": effect.site, "key": str(effect.key)})
            case Decided():
                self._adapters.decided(effect)
            case Dropped():
                self.dropped[effect.what] += 1
            case Fault():
                log.error("job.not_gone_on", extra={"about": effect.about}, exc_info=effect.error)
                self._troubled(effect.about, effect.error)

    def _call(self, effect: Call) -> None:
        if self._calls.on_its_way(effect):
            return
        if self._calls.take(effect):
            self._spawn(lambda: self._calls.call(effect))
        else:
            self.dropped["call"] += 1

    def _spawn(self, call: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(_quiet(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quiet(call: Callable[[], Awaitable[None]]) -> None:
    """What fails here is wanted again when it is due."""
    try:
        await call()
    except FedError as error:
        log.warning("effect.failed", extra={"code": error.code, "why": str(error)})
