"""PURE: which idle slices a job of a class takes, in what order.

The agent takes them so; the controller foresees it, to withhold and count nothing that a prolog is about to take.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from slurm_plugin.mig.geometry import Placed, mask
from slurm_plugin.model import Gpu, GpuProfile, Instance
from slurm_plugin.planner.place import Candidate, blocking

_MEMO = 20_000  # states of a GPU remembered; GPUs in the same state share one


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    uuid: str
    gpu: str
    profile: str
    # Among equals the lowest is taken: what a job blocks there, room on its GPU, index, start.
    order: tuple[float, int, int, int] = (0.0, 0, 0, 0)


def is_slice(instance: Instance) -> bool:
    return instance.ci >= 0 and not instance.foreign and instance.uuid != ""


def slices_of(gpu: Gpu, held: Collection[str]) -> Iterator[Slice]:
    """What of this GPU may be given to jobs, if the GPU itself may. `held`: slices in a grant."""
    room = free_slices(gpu)
    known = {profile.name for profile in gpu.profiles}
    mine = [one for one in gpu.instances if is_slice(one)]
    stays = [one for one in gpu.instances if one.foreign or one.uuid in held]
    strange = 0
    for one in stays:
        strange |= 0 if one.profile in known else mask(one.start, one.size)
    busy = tuple((one.profile, one.start) for one in stays if one.profile in known)
    asked = tuple((one.profile, one.start) for one in mine)
    for one, blocks in zip(mine, _blocks(gpu.profiles, busy, strange, asked), strict=True):
        order = (blocks, room, gpu.index, one.start)
        yield Slice(uuid=one.uuid, gpu=gpu.uuid, profile=one.profile, order=order)


@lru_cache(_MEMO)
def _blocks(
    profiles: tuple[GpuProfile, ...], busy: tuple[Placed, ...], strange: int, asked: tuple[Placed, ...]
) -> tuple[float, ...]:
    """What a job would take away at each place that is not taken: the largest placements stay possible elsewhere."""
    shapes = {profile.name: profile for profile in profiles}

    def cost(placed: Placed) -> float:
        others = Candidate(gpu="", busy=dict.fromkeys(one for one in busy if one != placed), blocked=strange)
        return blocking(shapes, others, placed, None, 0.0) if placed[0] in shapes else 0.0

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
    slice. Within each, the smallest profile that serves, then where it blocks least, then the fullest GPU.
    """
    able = (piece for piece in idle if piece.profile in profiles)
    return sorted(able, key=lambda piece: (*standing(piece, gres_class, profiles, offered), piece.order))


def standing(piece: Slice, gres_class: str, profiles: Sequence[str], offered: Mapping[str, str]) -> tuple[int, int]:
    """How well a slice suits a class that it serves, the lowest best: as what it is offered, then how small it is."""
    offer = offered.get(piece.uuid)
    return (1 if offer is None else 0 if offer == gres_class else 2, profiles.index(piece.profile))
