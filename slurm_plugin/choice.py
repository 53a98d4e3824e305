"""PURE: which idle slices a job of a class takes, in what order.

The agent takes them so, and knows when the job and its neighbours end (`Span`). The controller foresees it without, to
withhold and count nothing that a prolog is about to take: of slices that are offered alike it may foresee another.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from slurm_plugin.mig.geometry import Placed, mask
from slurm_plugin.model import Gpu, GpuProfile, Instance
from slurm_plugin.planner.place import HORIZON_S, Candidate, blocking

_MEMO = 4_000  # states of a GPU remembered; GPUs in the same state share one


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    uuid: str
    gpu: str
    profile: str
    # Among equals the lowest is taken: what a job blocks there, how long others stay on after it, room on its GPU,
    # index, start.
    order: tuple[float, float, int, int, int] = (0.0, 0.0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When a job that wants a slice runs, and its neighbours. Unix seconds, ends at time limits."""

    begin: float
    end: float
    ends: Mapping[str, float]  # by slice, of those that are held; not known where it is absent

    def lasts(self, uuid: str) -> float | None:
        return _rounded(self.ends[uuid] - self.begin) if uuid in self.ends else None

    @property
    def length(self) -> float:
        return _rounded(self.end - self.begin)


def _rounded(seconds: float) -> float:
    """Up to a minute, or two, four, ...: jobs end before their limits, and GPUs in nearly the same state are alike."""
    return 60.0 * (1 << max(0, ceil(seconds / 60.0) - 1).bit_length())


def is_slice(instance: Instance) -> bool:
    return instance.ci >= 0 and not instance.foreign and instance.uuid != ""


def slices_of(gpu: Gpu, held: Collection[str], span: Span | None = None) -> Iterator[Slice]:
    """What of this GPU may be given to jobs, if the GPU itself may. `held`: slices in a grant.

    `span`: of the job that wants one, if its end is known; else all jobs are taken to run for as long.
    """
    room = free_slices(gpu)
    mine = [one for one in gpu.instances if is_slice(one)]
    taken = _taken(gpu, held, span)
    costs = _blocks(gpu.profiles, taken, tuple((one.profile, one.start) for one in mine), span.length if span else None)
    stays = max((HORIZON_S if lasts is None else lasts for _, lasts in taken[0]), default=0.0)
    after = max(0.0, stays - span.length) if span else 0.0
    for one, cost in zip(mine, costs, strict=True):
        yield Slice(uuid=one.uuid, gpu=gpu.uuid, profile=one.profile, order=(cost, after, room, gpu.index, one.start))


def blocks(gpu: Gpu, held: Collection[str], placed: Placed, span: Span) -> float:
    """What a job takes away from others in a slice that would be cut there."""
    return _blocks(gpu.profiles, _taken(gpu, held, span), (placed,), span.length)[0]


_Taken = tuple[tuple[tuple[Placed, float | None], ...], int]  # known profiles with how long they are; others, as bits


def _taken(gpu: Gpu, held: Collection[str], span: Span | None) -> _Taken:
    """By what stays."""
    known = {profile.name for profile in gpu.profiles}
    stays = [one for one in gpu.instances if one.foreign or one.uuid in held]
    strange = 0
    for one in stays:
        strange |= 0 if one.profile in known else mask(one.start, one.size)
    lasting = ((one, span.lasts(one.uuid) if span else None) for one in stays if one.profile in known)
    return tuple(((one.profile, one.start), lasts) for one, lasts in lasting), strange


@lru_cache(_MEMO)
def _blocks(
    profiles: tuple[GpuProfile, ...],
    taken: _Taken,
    asked: tuple[Placed, ...],
    lasts: float | None,
) -> tuple[float, ...]:
    """What a job would take away at each place that is not taken: the largest placements stay possible elsewhere."""
    shapes = {profile.name: profile for profile in profiles}
    busy, strange = taken

    def cost(placed: Placed) -> float:
        others = Candidate(gpu="", busy={one: end for one, end in busy if one != placed}, blocked=strange)
        return blocking(shapes, others, placed, lasts, 0.0) if placed[0] in shapes else 0.0

    return tuple(cost(placed) for placed in asked)


def free_slices(gpu: Gpu) -> int:
    """Memory slices that no instance covers, as far as placements can tell."""
    end = max((max(profile.starts, default=0) + profile.size for profile in gpu.profiles), default=0)
    return end - sum(one.size for one in gpu.instances)


def in_order(
    idle: Iterable[Slice], gres_class: str, profiles: Sequence[str], offered: Mapping[str, str]
) -> list[Slice]:
    """Those that serve a class, the one to be taken first in front. `profiles`: what serves it, best first.

    `offered`: slice -> class it is offered as, empty for none; what nobody was told of is absent. First what is offered
    as this class, then what was not told of, then whatever serves it: a job that Slurm has started has a right to its
    slice. Within each, the smallest profile that serves, then where it blocks least and shortest, then the fullest GPU.
    """
    able = (piece for piece in idle if piece.profile in profiles)
    return sorted(able, key=lambda piece: (*standing(piece, gres_class, profiles, offered), piece.order))


def standing(piece: Slice, gres_class: str, profiles: Sequence[str], offered: Mapping[str, str]) -> tuple[int, int]:
    """How well a slice suits a class that it serves, the lowest best: as what it is offered, then how small it is."""
    offer = offered.get(piece.uuid)
    return (1 if offer is None else 0 if offer == gres_class else 2, profiles.index(piece.profile))
