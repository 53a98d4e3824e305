"""PURE: what the controller remembers of GPUs whose layout follows the queue: steps decided on, and room kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_plugin.controller.sights import Sights
from slurm_plugin.mig.geometry import Layout, mask
from slurm_plugin.model import Gpu
from slurm_plugin.planner.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU is on its way to another layout. Until its step is sent a job may still take what is to go."""

    node: str
    destroy: Layout
    create: Layout
    why: str
    since: float  # Unix seconds
    ahead: bool = False  # only a part, that a guarantee is kept by: the GPU does not rest after it

    def reached(self, gpu: Gpu) -> bool:
        there = {(i.profile, i.start) for i in gpu.instances if i.ci >= 0}
        return there.issuperset(self.create) and there.isdisjoint(set(self.destroy) - set(self.create))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory slices of a GPU that are kept for a job: what ends there is not offered again, so that it may be cut."""

    node: str
    profile: str
    start: int
    size: int
    job_id: int
    since: float  # Unix seconds
    until: int = 0  # when the last job in the way ends at its time limit, Unix seconds; 0: not known
    behind: tuple[int, ...] = ()  # jobs in the way, ascending
    more: tuple[int, ...] = ()  # further starts, for a job that needs several slices of its node
    several: bool = False  # its job needs more than one slice, and has all their room or none
    waits: bool = False  # jobs are in the way of it, or of other room of its job
    free_since: float = 0.0  # since when none is, Unix seconds; 0: one is
    first: bool = False  # its job was the first in line: it is kept however long that takes

    @property
    def bits(self) -> int:
        bits = 0
        for start in (self.start, *self.more):
            bits |= mask(start, self.size)
        return bits

    @property
    def text(self) -> str:
        return ", ".join(f"{self.profile}@{start}" for start in sorted((self.start, *self.more)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Jobs of a class that no re-cut can serve now, and why."""

    jobs: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What became of a GPU: for the log and the history."""

    what: str  # planned, changed, dropped
    at: float
    node: str
    gpu: str
    destroy: Layout
    create: Layout
    why: str
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recuts:
    targets: Mapping[str, Target] = field(default_factory=dict)  # by GPU
    rooms: Mapping[str, Room] = field(default_factory=dict)  # by GPU
    kept: frozenset[str] = frozenset()  # idle slices that only a guarantee's own jobs may have
    changed_at: Mapping[str, float] = field(default_factory=dict)  # GPU -> when it was last re-cut
    looked_at: float = 0.0  # when a plan was made last
    lacking_since: float = 0.0  # since when something waits for a re-cut; 0: nothing does
    waiting: tuple[Waiting, ...] = ()
    why: str = ""  # the last plan, in a sentence
    vain: Problem | None = None  # the last question that had no step for an answer
    events: tuple[Event, ...] = ()  # of the last look
    sights: Sights = field(default_factory=Sights, compare=False, repr=False)  # saves work, and decides nothing
