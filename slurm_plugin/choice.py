"""PURE: which idle slices a job of a class takes, in what order.

The agent takes them so; the controller foresees it, to withhold and count nothing that a prolog is about to take.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.model import Gpu, Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    uuid: str
    gpu: str
    profile: str
    order: tuple[int, int, int] = (0, 0, 0)  # among equals the lowest is taken: room on its GPU, index, start


def is_slice(instance: Instance) -> bool:
    return instance.ci >= 0 and not instance.foreign and instance.uuid != ""


def slices_of(gpu: Gpu) -> Iterator[Slice]:
    """What of this GPU may be given to jobs, if the GPU itself may."""
    room = free_slices(gpu)
    for one in gpu.instances:
        if is_slice(one):
            yield Slice(uuid=one.uuid, gpu=gpu.uuid, profile=one.profile, order=(room, gpu.index, one.start))


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
    slice. Within each, the smallest profile that serves, then the fullest GPU.
    """
    able = (piece for piece in idle if piece.profile in profiles)
    return sorted(able, key=lambda piece: (*standing(piece, gres_class, profiles, offered), piece.order))


def standing(piece: Slice, gres_class: str, profiles: Sequence[str], offered: Mapping[str, str]) -> tuple[int, int]:
    """How well a slice suits a class that it serves, the lowest best: as what it is offered, then how small it is."""
    offer = offered.get(piece.uuid)
    return (1 if offer is None else 0 if offer == gres_class else 2, profiles.index(piece.profile))
