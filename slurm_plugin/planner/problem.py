"""What the planner is asked: GPUs by state, what waits, what is promised, and how much may change."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_plugin.mig.geometry import Layout, Shapes
from slurm_plugin.mig.serving import weight

AGE_STEPS = 16  # the oldest line of a tier counts twice what the newest does, in so many steps


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """What one GPU holds, as far as planning cares. GPUs in equal states are interchangeable, and counted."""

    model: str  # key of Problem.models
    place: str = ""  # which jobs may come here: lines name the places they may use
    fixed: Layout = ()  # held by jobs, about to be, or not ours: neither destroyed nor moved
    idle: Layout = ()
    blocked: int = 0  # memory slices under instances of no known profile, as bits
    default: tuple[tuple[str, int], ...] = ()  # what its group is cut into when nobody asks: (profile, count)
    open: bool = True  # may be changed now
    order: tuple[object, ...] = field(init=False, compare=False, repr=False)  # the lowest comes first everywhere
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """States are looked up often: in each plan, every one of them several times."""
        key = (self.place, self.model, self.fixed, self.idle, self.blocked, self.default, self.open)
        object.__setattr__(self, "order", key)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GpuState) and self.order == other.order


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Jobs that wait for slices of one class, alike in all that matters here."""

    name: str  # the class; a line is told apart by all its fields
    profiles: tuple[str, ...]  # what serves the class, best first
    count: int  # slices
    tier: int = 0  # served strictly in this order, the lowest first
    age_s: float = 0.0  # of its oldest job
    places: frozenset[str] | None = None  # None: anywhere; empty: nowhere now
    account: str = ""
    bundle: str = ""  # lines of one bundle are served whole and together, or nothing changes for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """Slices of a class that are there for somebody.

    With `idle`, so many are idle at any time, whoever runs. Without, its own jobs (those of `account`, or of anybody)
    count too: what they hold now is `held`, and waiting ones are served out of it.
    """

    name: str  # as the administrator wrote it
    gres_class: str
    profiles: tuple[str, ...]  # best first
    at_least: int
    held: int = 0
    idle: bool = False
    account: str = ""
    places: frozenset[str] | None = None

    @property
    def lacking(self) -> int:
        return self.at_least if self.idle else max(0, self.at_least - self.held)

    def is_for(self, line: Line) -> bool:
        """May all that is promised serve this line? One that may use fewer places waits in its own tier."""
        wide = line.places is None or (self.places is not None and self.places <= line.places)
        return not self.idle and wide and line.name == self.gres_class and self.account in ("", line.account)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    changing: int | None = None  # GPUs that may change in one plan; None: all
    time_s: float = 0.5  # of the solver; then the best found is taken
    restore: bool = False  # may GPUs that nobody waits for go back to their default


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    models: Mapping[str, Shapes]
    states: Mapping[GpuState, int]  # how many GPUs are in each
    lines: tuple[Line, ...] = ()
    guarantees: tuple[Guarantee, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One row of what is to be served, once guarantees are taken apart: a line, part of one, or an idle reserve."""

    line: Line | None  # None: slices that stay idle for a guarantee
    promise: Guarantee | None  # served out of this one, before every line
    profiles: tuple[str, ...]
    places: frozenset[str] | None
    count: int
    tier: int
    value: int  # of one slice, among those of its tier


def wants(problem: Problem) -> tuple[Want, ...]:
    """Every guarantee and every line, in the order in which they are served; equal for equal input in any order."""
    lines = sorted((line for line in problem.lines if line.count > 0), key=line_order)
    left = [line.count for line in lines]
    found: list[Want] = []
    for promise in sorted(problem.guarantees, key=lambda g: (g.name, g.gres_class, g.account, g.at_least)):
        lacking = promise.lacking
        for nth, line in enumerate(lines):
            if (taken := min(left[nth], lacking)) and promise.is_for(line):
                left[nth] -= taken
                lacking -= taken
                found.append(_want(problem, line, promise, taken))
        if lacking:
            found.append(_want(problem, None, promise, lacking))
    ages: dict[int, float] = {}
    for line in lines:
        ages[line.tier] = max(ages.get(line.tier, 0.0), line.age_s)
    for line, count in zip(lines, left, strict=True):
        if count:
            found.append(_want(problem, line, None, count, ages[line.tier]))
    return tuple(found)


def line_order(line: Line) -> tuple[object, ...]:
    places = tuple(sorted(line.places)) if line.places is not None else ("",)
    return (line.tier, -line.age_s, line.name, line.account, places, line.profiles, line.count, line.bundle)


def _want(problem: Problem, line: Line | None, promise: Guarantee | None, count: int, oldest_s: float = 0.0) -> Want:
    of = line or promise
    assert of is not None
    sizes = [weight(shapes, name) for shapes in problem.models.values() for name in of.profiles[:1] if name in shapes]
    steps = AGE_STEPS + (round(AGE_STEPS * line.age_s / oldest_s) if line and oldest_s else 0)
    return Want(
        line=line,
        promise=promise,
        profiles=of.profiles,
        places=of.places,
        count=count,
        tier=-1 if promise else max(0, line.tier) if line else 0,
        value=max(sizes, default=1) * steps,
    )
