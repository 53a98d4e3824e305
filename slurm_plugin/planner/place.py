"""Where one slice goes: which idle one a job takes, or where one is cut for it.

A slice costs the placements that it blocks and nobody blocks already, each by its size and for as long as it does. So
the largest placements stay possible elsewhere, and slices that end together sit together: beside a neighbour that ends
later a job costs nothing more.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from slurm_plugin.mig.geometry import Layout, Placed, Shapes, mask
from slurm_plugin.mig.layouts import media_conflict

HORIZON_S = 86_400.0  # how long a job is taken to run whose end is not known, and the most that counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A GPU that a slice might come from."""

    gpu: str
    idle: Layout = ()
    busy: Mapping[Placed, float | None] = field(default_factory=dict)  # with their ends in Unix seconds, if known
    blocked: int = 0  # memory slices under instances of no known profile, as bits
    cut: bool = False  # may slices be destroyed and made here now


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What asks for one slice."""

    profiles: tuple[str, ...]  # what serves it, best first
    end: float | None = None  # Unix seconds, when it would end if it started now


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    gpu: str
    placed: Placed
    exists: bool
    destroys: Layout  # idle instances that go for it
    cost: float  # slice-seconds of placements that nobody can have then


def ranked(shapes: Shapes, candidates: Iterable[Candidate], job: Job, now: float) -> list[Spot]:
    """Every place for one slice on GPUs of one model, the best in front.

    What exists comes before what must be cut, a better profile before a worse one, then what destroys least, then what
    costs least; ties fall to the GPU named first and the lowest start.
    """
    found = [
        (not exists, nth, len(destroys), blocking(shapes, one, placed, job.end, now), one.gpu, placed, destroys)
        for one in candidates
        for nth, name in enumerate(job.profiles)
        if name in shapes
        for placed, exists, destroys in _places(shapes, one, name)
    ]
    return [
        Spot(gpu=gpu, placed=placed, exists=not cut, destroys=destroys, cost=cost)
        for cut, _, _, cost, gpu, placed, destroys in sorted(found)
    ]


def blocking(shapes: Shapes, gpu: Candidate, placed: Placed, end: float | None, now: float) -> float:
    """What a job costs at this place: every placement it overlaps, by its size, for the time that only it is there."""
    bits = mask(placed[1], shapes[placed[0]].size)
    ends = [(mask(start, shapes[name].size), _until(until, now)) for (name, start), until in gpu.busy.items()]
    cost, last = 0.0, _until(end, now)
    for shape in shapes.values():
        for start in shape.starts:
            there = mask(start, shape.size)
            if there & bits and not there & gpu.blocked:
                others = max((until for one, until in ends if one & there), default=0.0)
                cost += shape.size * max(0.0, last - others)
    return cost


def _until(end: float | None, now: float) -> float:
    return HORIZON_S if end is None else min(HORIZON_S, max(0.0, end - now))


def _places(shapes: Shapes, gpu: Candidate, name: str) -> Iterator[tuple[Placed, bool, Layout]]:
    """Where this profile is idle, or could be made: (place, exists, what goes for it)."""
    for placed in gpu.idle:
        if placed[0] == name:
            yield placed, True, ()
    if not gpu.cut:
        return
    taken = gpu.blocked
    for other, start in gpu.busy:
        taken |= mask(start, shapes[other].size)
    for start in shapes[name].starts:
        bits = mask(start, shapes[name].size)
        if bits & taken or (name, start) in gpu.idle:
            continue
        goes = tuple(one for one in gpu.idle if mask(one[1], shapes[one[0]].size) & bits)
        stay = [one[0] for one in (*gpu.busy, *gpu.idle) if one not in goes]
        if not media_conflict(shapes, [*stay, name]):
            yield (name, start), False, goes
