"""What happens in a world, and what must be true of it: I1 to I11 of the federation's invariants."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from uuid import UUID

from federation.engine.effects import Effect
from federation.engine.origin import OriginRules
from federation.engine.site import SiteEngine, SiteRules
from federation.errors import FedError
from federation.model.job import Job
from federation.model.messages import CONT, STOP, TSTP, Message
from federation.model.spec import Input, JobSpec, Lease, OnSilence
from federation.model.states import End, Origin, Outcome, Target
from federation.model.token import RANDOM_BYTES, Key, mint
from federation.policy.admit import Guest, House
from federation.store.store import Store
from tests.simulation.federation.backend import FENCE, Backend, Troubles, Truth
from tests.simulation.federation.node import Node
from tests.simulation.federation.world import EPOCH, Odds, World

HOSTILE = (b"plain", b"a|b", b"two words", b"\xe9\xff", b"'\"`$(x)\n\x00", b"")
USERS = ("ann", "bo")
PEERS = 3
LIMIT_S = 3600  # of jobs; hardly one runs so long
FOREVER = b"forever"  # an argument: it ends only when it is stopped
USR1 = 10
QUIET_S = 3600.0  # after the last fault, everything has to be over within this


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    sites: int
    jobs: int
    trouble_s: float  # how long jobs come and faults happen
    crashes: int
    cuts: int
    slots: int  # of each pool; jobs have to wait for them
    most_in_pool: int


@dataclass(slots=True)
class Wish:
    """A job as its user sees it."""

    token: UUID
    spec: JobSpec
    home: str
    accepted: bool = False
    cancelled: bool = False
    requeued: int = 0
    asked: int = 0  # for a USR1, at the most


@dataclass(slots=True)
class Story:
    seed: int
    scale: Scale
    world: World = field(init=False)
    truth: Truth = field(default_factory=Truth)
    nodes: dict[str, Node] = field(default_factory=dict)
    wishes: dict[UUID, Wish] = field(default_factory=dict)
    cut: set[frozenset[str]] = field(default_factory=set)
    fetched: set[Key] = field(default_factory=set)
    done: set[UUID] = field(default_factory=set)
    happened: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(seed=self.seed)
        names = [f"site{number}" for number in range(self.scale.sites)]
        for number, name in enumerate(names):
            others = [names[(number + step) % len(names)] for step in range(1, PEERS + 1)]
            callers = [names[(number - step) % len(names)] for step in range(1, PEERS + 1)]
            peers = tuple(dict.fromkeys(one for one in (*others, *callers) if one != name))
            guest = Guest(pools=("batch",), users={"ann": "ann", "bo": "local_bo"})
            guests = dict.fromkeys((name, *peers), guest)
            if number % 3 == 0:
                guests |= {peer: Guest(pools=("batch",), users={"ann": "ann"}) for peer in peers}
            edge = number % 4 == 1  # it has nothing that jobs could run on
            house = House(pools={} if edge else {"batch": self.scale.most_in_pool}, guests=guests)
            rules = SiteRules(name=name, peers=peers, origin=OriginRules(), house=house)
            node = Node(self, rules, Backend(self.world, self.truth, self.scale.slots))
            node.only_target = number % 10 == 7  # it may lose its journal: no job is nowhere else
            self.nodes[name] = node

    # -- the links

    def up(self, a: str, b: str) -> bool:
        alive = self.nodes[a].engine is not None and self.nodes[b].engine is not None
        return alive and frozenset((a, b)) not in self.cut

    def links_changed(self, a: str, b: str) -> None:
        """Both ends hear of it, if they live."""
        for one, other in ((a, b), (b, a)):
            self.world.after(self.world.chance.uniform(0.0, 2.0), partial(self._hears, one, other))

    def _hears(self, one: str, other: str) -> None:
        self.nodes[one].link(other, self.up(one, other))

    def send(self, sender: str, receiver: str, message: Message) -> None:
        if receiver == sender:
            self.world.after(0.001, lambda: self.nodes[receiver].receive(sender, message))
            return
        if receiver not in self.nodes or not self.up(sender, receiver):
            return
        ends = (self.nodes[sender], self.nodes[receiver])
        journals = [one.journals for one in ends]
        for seconds in self.world.journeys():
            self.world.after(seconds, lambda: self._arrive(sender, receiver, message, journals))

    def _arrive(self, sender: str, receiver: str, message: Message, journals: list[int]) -> None:
        now = [self.nodes[sender].journals, self.nodes[receiver].journals]
        if self.up(sender, receiver) and now == journals:
            self.nodes[receiver].receive(sender, message)

    # -- bytes

    def push(self, home: str, site: str, key: Key) -> None:
        def arrive() -> None:
            if home == site or self.up(home, site):
                node = self.nodes[site]
                node.act(lambda engine, store: engine.target.inputs_here(store, key, node.now()))

        self.world.after(self.world.chance.uniform(0.1, 10.0), arrive)

    def fetch(self, home: str, site: str, key: Key) -> None:
        def arrive() -> None:
            node = self.nodes[home]
            if (home != site and not self.up(home, site)) or node.engine is None:
                return
            held = self.nodes[site].store.attempt(key)
            if held is None or held.state is not Target.ENDED or not held.user:
                return  # it is asked for again
            if key in self.truth.forgotten and key not in self.fetched:
                self.broken.append(f"I9: the output of {key} was dropped before it was fetched")
            self.fetched.add(key)
            node.act(lambda engine, store: engine.follower.fetched(store, key, node.now()))

        self.world.after(self.world.chance.uniform(0.1, 10.0), arrive)

    # -- what users and fate do

    def tell(self) -> None:
        """Plan all of it; then the world runs."""
        chance, scale = self.world.chance, self.scale
        for node in self.nodes.values():
            self.world.after(chance.uniform(0.0, 3.0), node.boot)
            node.dies = scale.crashes / (scale.jobs * 200)
        for number in range(scale.jobs):
            self._wish(number, chance.uniform(5.0, scale.trouble_s))
        pairs = [(name, peer) for name, node in self.nodes.items() for peer in node.rules.peers]
        for _ in range(scale.cuts):
            a, b = chance.choice(pairs)
            start, length = chance.uniform(0.0, scale.trouble_s), chance.choice([5.0, 60.0, 600.0])
            self.world.after(start, partial(self._cut, a, b, True))
            self.world.after(min(start + length, scale.trouble_s), partial(self._cut, a, b, False))
        for name, node in self.nodes.items():
            self._fate(name, node)
        self.world.after(scale.trouble_s, self._quiet)

    def _wish(self, number: int, at: float) -> None:
        chance = self.world.chance
        lease = Lease()
        if number % 10 == 0:
            lease = Lease(on_silence=OnSilence.REPLACE, after_s=120.0)
        elif number % 10 == 1:
            lease = Lease(on_silence=OnSilence.STOP, after_s=120.0)
        forever = number % 16 == 2
        spec = JobSpec(
            user=chance.choice(USERS),
            name=b"rejected" if number % 97 == 0 else chance.choice(HOSTILE),
            script=chance.randbytes(20),
            env=((b"A_B", b"1,\n2"),),
            args=(FOREVER,) if forever else (),
            time_limit_s=0 if forever else LIMIT_S,
            inputs=(Input(path=b"in", size=5, sha256=b""),) if number % 5 == 0 else (),
            lease=lease,
        )
        home = chance.choice([name for name, node in self.nodes.items() if not node.only_target])
        token = mint(int((EPOCH + at) * 1000), chance.randbytes(RANDOM_BYTES))
        wish = Wish(token=token, spec=spec, home=home)
        self.wishes[token] = wish
        self.world.after(at, lambda: self._ask(wish))
        if number % 97 == 0:
            return self.world.after(self.scale.trouble_s, lambda: self._cancel(wish))
        if number % 8 == 2:
            self.world.after(at + chance.choice([0.03, 0.2, 10.0, 100.0]), lambda: self._cancel(wish))
        if number % 8 == 3:
            self.world.after(at + chance.uniform(0.0, 300.0), lambda: self._requeue(wish))
        if number % 8 in (5, 6):
            self.world.after(at + chance.uniform(0.0, 30.0), lambda: self._suspend(wish, True))
        return None

    def _ask(self, wish: Wish) -> None:
        """Submit until the site has said yes: a user who heard nothing asks again with the same token."""
        node = self.nodes[wish.home]
        if node.engine is not None:

            def accept() -> None:
                def step(engine: SiteEngine, store: Store) -> list[Effect]:
                    engine.origin.accept(store, wish.token, wish.spec, node.now())
                    return []

                node.act(step)
                wish.accepted = node.engine is not None

            self._try(accept)
        if not wish.accepted:
            self.world.after(5.0, lambda: self._ask(wish))

    def _suspend(self, wish: Wish, on: bool) -> None:
        """And after a while let it go on, with a signal that it may get once. Tried until it runs, or is done."""
        node, job = self.nodes[wish.home], self.job(wish) if wish.accepted else None
        if job is not None and job.state is Origin.DONE:
            return
        if node.engine is None or job is None or job.state is not Origin.RUNNING:
            self.world.after(2.0, lambda: self._suspend(wish, on))
            return

        def step(engine: SiteEngine, store: Store) -> list[Effect]:
            numbers = (TSTP, STOP) if on else (CONT, USR1)
            return [one for number in numbers for one in engine.origin.signal(store, wish.token, number, node.now())]

        wish.asked += not on
        node.act(step)
        if node.engine is None:
            self.world.after(2.0, lambda: self._suspend(wish, on))
        elif on:
            self.happened["suspended"] += 1
            self.world.after(self.world.chance.choice([0.0, 0.1, 1.0, 60.0]), lambda: self._suspend(wish, False))

    def _cancel(self, wish: Wish) -> None:
        self._order(wish, "cancel")

    def _requeue(self, wish: Wish) -> None:
        self._order(wish, "requeue")

    def _order(self, wish: Wish, what: str) -> None:
        node = self.nodes[wish.home]
        if node.engine is None or not wish.accepted:
            self.world.after(5.0, lambda: self._order(wish, what))
            return

        def order() -> None:
            wish.cancelled |= what == "cancel"  # it may be durable though its site dies before it says so
            node.act(lambda engine, store: getattr(engine.origin, what)(store, wish.token, node.now()))
            if node.engine is None:
                self.world.after(5.0, lambda: self._order(wish, what))
            self.happened[what] += 1

        wish.requeued += what == "requeue"
        self._try(order)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except FedError as error:
            self.happened[f"said no: {error.code}"] += 1

    def _cut(self, a: str, b: str, cut: bool) -> None:
        self.happened["cut"] += cut
        (self.cut.add if cut else self.cut.discard)(frozenset((a, b)))
        self.links_changed(a, b)

    def _fate(self, name: str, node: Node) -> None:
        chance, most = self.world.chance, self.scale.trouble_s

        def at(call: Callable[[], None], length_s: float = 0.0, then: Callable[[], None] | None = None) -> None:
            start = chance.uniform(0.0, most)
            self.world.after(start, call)
            if then is not None:
                self.world.after(min(start + length_s, most), then)

        at(lambda: setattr(node, "set_by", chance.choice([-3600.0, 3600.0, 7.0])))
        at(lambda: setattr(node, "disk_full", True), 120.0, lambda: setattr(node, "disk_full", False))
        at(lambda: setattr(node.backend, "up", False), 200.0, lambda: setattr(node.backend, "up", True))
        at(node.die)
        if node.only_target:
            at(node.lose_journal)
            at(node.lose_journal, chance.choice([10.0, 100.0]), node.lose_journal)
            at(lambda: self._lose_with_output(node))

    def _lose_with_output(self, node: Node) -> None:
        """As soon as its journal has something that is over, and not fetched."""
        kept = [one for origin in self.nodes for one in node.store.attempts_since(origin, 0, 100_000)]
        if node.engine is not None and any(one.state is Target.ENDED for one in kept):
            node.lose_journal()
        elif self.world.now < self.scale.trouble_s:
            self.world.after(1.0, lambda: self._lose_with_output(node))

    def _quiet(self) -> None:
        """No more faults."""
        self.world.odds = Odds(lose=0.0, double=0.0, late=0.0)
        for node in self.nodes.values():
            node.dies = 0.0
            node.backend.troubles = Troubles(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    # -- what must hold

    def handed_over(self, node: Node, key: Key, spec: JobSpec) -> None:
        wish = self.wishes[key.token]
        if spec != wish.spec:
            self.broken.append(f"I5: {key} reached {node.name} changed")
        if wish.spec.user not in node.rules.house.guests[wish.home].users:
            self.broken.append(f"I7: {key} of an unmapped user reached {node.name}")
        if node.journals == 0 and len(node.backend.live()) > self.scale.most_in_pool:
            self.broken.append(f"I8: {node.name} has given its backend {len(node.backend.live())} jobs")

    def job(self, wish: Wish) -> Job | None:
        return self.nodes[wish.home].store.job(wish.token)

    def over(self) -> bool:
        if self.world.now < self.scale.trouble_s or self.truth.running():
            return False
        return all(
            node.engine is not None
            and not sum(node.store.jobs().values())
            and not sum(node.store.attempts().values())
            and not node.store.due_commands(1e12, 1)
            for node in self.nodes.values()
        )

    def check(self) -> None:
        """Raises AssertionError with the seed."""
        broken = self.judged()
        assert not broken, f"seed {self.seed}: {len(broken)} broken: {broken[:5]}"

    def judged(self) -> list[str]:
        """All that is wrong, each with the name of what does not hold."""
        got: Counter[UUID] = Counter()
        for key, signals in self.truth.signals.items():
            got[key.token] += signals.count(USR1)
        for token, wish in self.wishes.items():
            self._check(wish)
            if got[token] > wish.asked:
                self.broken.append(f"I11: {token} got a signal {got[token]} times that was sent {wish.asked} times")
        self._check_one_at_a_time()
        for node in self.nodes.values():
            for origin in self.nodes:
                for attempt in node.store.attempts_since(origin, 0, 100_000):
                    if attempt.state is not Target.RELEASED:
                        self.broken.append(f"I10: {attempt.key} of {origin} is {attempt.state} at {node.name} for good")
        self._check_limits()
        return self.broken

    def _check_limits(self) -> None:
        for key, outcome in self.truth.ends.items():
            limit_s = self.wishes[key.token].spec.time_limit_s
            if outcome is not None and outcome.end is End.TIMEOUT and not 0 < limit_s <= self.truth.ran_s(key):
                self.broken.append(f"I6: {key} was charged for waiting")

    def _check(self, wish: Wish) -> None:
        job = self.job(wish)
        if job is None or not wish.accepted:
            self.broken.append(f"I9: {wish.token} is lost")
            return
        if job.state is not Origin.DONE or job.outcome is None:
            name = "I3" if wish.cancelled else "I10"
            self.broken.append(f"{name}: {wish.token} is stuck: {job.state} {job.why!r} {job.key}")
            return
        self._check_outcome(wish, job, job.outcome)

    def _check_outcome(self, wish: Wish, job: Job, outcome: Outcome) -> None:
        key, truth = job.key, self.truth
        match outcome.end:
            case End.EXITED | End.TIMEOUT | End.SIGNALED:
                if truth.ends.get(key) != outcome:
                    self.broken.append(f"I2: {key} is said {outcome}, and was {truth.ends.get(key)}")
                if outcome.stdout_size and key not in self.fetched:
                    self.broken.append(f"I4: {key} is done, and its output was not fetched")
            case End.LOST:
                if key not in truth.ends or truth.ends[key] is not None:
                    self.broken.append(f"I2: {key} is said to be lost, and was {truth.ends.get(key)}")
            case End.CANCELLED:
                if not wish.cancelled:
                    self.broken.append(f"I3: {key} was cancelled, and nobody wanted it")
            case End.LEASE:
                if wish.spec.lease.on_silence is OnSilence.KEEP:
                    self.broken.append(f"I3: {key} was stopped for a lease that it does not have")
            case _:
                self.broken.append(f"I2: {key} ended {outcome}")

    def _check_one_at_a_time(self) -> None:
        """I1: each attempt once at the most (a start claims), and the next only when the one before is over."""
        of: dict[UUID, list[Key]] = {}
        for key in sorted(self.truth.starts):
            of.setdefault(key.token, []).append(key)
        for token, keys in of.items():
            wish = self.wishes[token]
            replaces = wish.spec.lease.on_silence is OnSilence.REPLACE
            if len(keys) > 1 + wish.requeued and not replaces:
                self.broken.append(f"I1: {token} ran {len(keys)} times")
            for one, following in pairwise(keys):
                if not replaces and self.truth.ended_at[one] > self.truth.starts[following]:
                    self.broken.append(f"I1: {one} and {following} ran together")
        for node in self.nodes.values():
            for key, who in node.backend.claims.items():
                if who == FENCE and key in self.truth.starts:
                    self.broken.append(f"I1: {key} ran in spite of its fence")
