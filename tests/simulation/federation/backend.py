"""A pool's scheduler, with the faults that real ones have, and what really ran in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from federation.errors import NoRoom, OutcomeUnknown, Refused, Unavailable
from federation.model.messages import CONT, STATES
from federation.model.spec import JobSpec
from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.ports import Seen, Sight
from tests.simulation.federation.world import World

FENCE = "fence"


@dataclass(slots=True)
class Troubles:
    unavailable: float = 0.03
    unknown_and_in: float = 0.03
    unknown_and_out: float = 0.02
    forgets: float = 0.02  # a pending job that it said it had
    dies_unrecorded: float = 0.01
    stays: float = 0.2  # a stop that does nothing
    full: float = 0.05
    signalled: float = 0.2  # without saying so


@dataclass(slots=True)
class Truth:
    """What happened, told by who saw it: no daemon's opinion."""

    starts: dict[Key, float] = field(default_factory=dict)
    ends: dict[Key, Outcome | None] = field(default_factory=dict)  # None: without a record
    ended_at: dict[Key, float] = field(default_factory=dict)
    stopped: set[Key] = field(default_factory=set)
    specs: dict[Key, JobSpec] = field(default_factory=dict)
    forgotten: set[Key] = field(default_factory=set)  # output gone
    signals: dict[Key, list[int]] = field(default_factory=dict)

    def ran_s(self, key: Key) -> float:
        return self.ended_at[key] - self.starts[key]

    def running(self) -> bool:
        return len(self.starts) > len(self.ends)


class Backend:
    """Survives its site's daemon. `slots` run at once; a start claims its attempt first."""

    def __init__(self, world: World, truth: Truth, slots: int) -> None:
        self.world, self.truth, self.slots = world, truth, slots
        self.troubles = Troubles()
        self.claims: dict[Key, str] = {}
        self.waiting: list[Key] = []
        self.running: set[Key] = set()
        self.still: dict[Key, Callable[[], None] | None] = {}  # what is suspended, and its end that waits for that
        self.up = True
        self.watch: list[Key] = []  # what changed since the daemon looked

    def submit(self, key: Key, spec: JobSpec) -> str:
        world, troubles = self.world, self.troubles
        if not self.up or world.odd(troubles.unavailable):
            raise Unavailable("no answer")
        if world.odd(troubles.full):
            raise NoRoom("full")
        if spec.name == b"rejected":
            raise Refused("invalid qos")
        if world.odd(troubles.unknown_and_out):
            raise OutcomeUnknown("no answer")
        self.truth.specs[key] = spec
        self.waiting.append(key)
        world.after(world.chance.uniform(0.0, 5.0), self._schedule)
        if world.odd(troubles.forgets):
            world.after(world.chance.uniform(0.0, 5.0), lambda: self._forget_pending(key))
        if world.odd(troubles.unknown_and_in):
            raise OutcomeUnknown("timed out, and it is there")
        return f"{len(self.truth.specs)}"

    def look(self, keys: Sequence[Key]) -> dict[Key, Seen]:
        if not self.up:
            raise Unavailable("no answer")
        return {key: self._seen(key) for key in keys if not self.world.odd(0.02)}

    def _seen(self, key: Key) -> Seen:
        if key in self.running:
            return Seen(sight=Sight.RUNNING, started_at=self.truth.starts[key])
        if key in self.truth.starts:
            outcome = self.truth.ends[key]
            return Seen(sight=Sight.GONE) if outcome is None else Seen(sight=Sight.EXITED, outcome=outcome)
        if self.claims.get(key) == FENCE:
            return Seen(sight=Sight.FENCED)
        return Seen(sight=Sight.PENDING if key in self.waiting else Sight.ABSENT)

    def fence(self, key: Key) -> bool:
        if not self.up:
            raise Unavailable("no answer")
        return self.claims.setdefault(key, FENCE) == FENCE

    def signal(self, key: Key, signal: int) -> None:
        """What is suspended does not end by itself."""
        if not self.up or self.world.odd(self.troubles.unavailable):
            raise Unavailable("no answer")
        if key in self.running:
            self.truth.signals.setdefault(key, []).append(signal)
            if signal == CONT and (end := self.still.pop(key, None)) is not None:
                end()
            elif signal in STATES - {CONT}:
                self.still.setdefault(key, None)
        if self.world.odd(self.troubles.signalled):
            raise Unavailable("timed out, and it was delivered")

    def stop(self, key: Key) -> None:
        if key in self.running and not self.world.odd(self.troubles.stays):
            self.truth.stopped.add(key)
            self.still.pop(key, None)
            self._end(key, Outcome(end=End.SIGNALED, signal=15, started_at=self.truth.starts[key]))

    def live(self) -> set[Key]:
        """What runs or may yet run."""
        return self.running | {key for key in self.waiting if key not in self.claims}

    def forget(self, key: Key) -> None:
        self.truth.forgotten.add(key)

    def _schedule(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            key = self.waiting.pop(0)
            if self.claims.setdefault(key, "job") != "job" or key in self.truth.starts:
                continue  # the loser of a claim runs nothing
            self._start(key)

    def _start(self, key: Key) -> None:
        world, spec = self.world, self.truth.specs[key]
        self.truth.starts[key] = world.now
        self.running.add(key)
        self.watch.append(key)
        runs_s = world.chance.expovariate(1 / 60.0)
        end = End.EXITED
        if spec.time_limit_s and runs_s > spec.time_limit_s:
            runs_s, end = float(spec.time_limit_s), End.TIMEOUT
        outcome: Outcome | None = Outcome(
            end=end,
            exit_code=world.chance.choice([0, 0, 0, 1, 255]),
            started_at=world.now,
            ended_at=world.now + runs_s,
            stdout_size=world.chance.choice([0, 1, 1 << 20]),
        )
        if world.odd(self.troubles.dies_unrecorded):
            outcome = None
        if not spec.args:  # else it runs for ever
            world.after(runs_s, lambda: self._end(key, outcome))

    def _end(self, key: Key, outcome: Outcome | None) -> None:
        if key in self.still:
            self.still[key] = lambda: self._end(key, outcome)
        elif key in self.running:
            self.running.remove(key)
            self.truth.ends[key] = outcome
            self.truth.ended_at[key] = self.world.now
            self.watch.append(key)
            self._schedule()

    def _forget_pending(self, key: Key) -> None:
        self.waiting = [one for one in self.waiting if one != key]
