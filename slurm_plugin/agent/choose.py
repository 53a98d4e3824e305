"""PURE: which idle slices a run gets, and where one more could be cut."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_plugin.agent.terms import Terms, Want
from slurm_plugin.choice import Slice, Span, blocks, free_slices, in_order, slices_of, standing
from slurm_plugin.model import Gpu, GpuProfile, MigMode, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The node's GPUs as they may be used now."""

    gpus: Sequence[Gpu]
    terms: Terms
    busy: Collection[str]  # slices somebody has, or that are promised
    held: Collection[str] = ()  # ... of these, those in a grant
    ends: Mapping[str, int] = field(default_factory=dict)  # ... and when their runs end, Unix seconds, where known
    closing: Collection[tuple[str, str, int]] = ()  # (gpu, profile, start) being destroyed
    cutting: Collection[str] = ()  # GPUs that a step is changing


def in_pool(gpu: Gpu, terms: Terms) -> bool:
    """The pool's GPUs are those the controller names, and those it offers a slice of."""
    return gpu.uuid in terms.gpus or any(instance.uuid in terms.offers for instance in gpu.instances)


def _span(floor: Floor, want: Want) -> Span | None:
    return Span(begin=want.begins_at, end=want.ends_at, ends=floor.ends) if want.ends_at else None


def idle(floor: Floor, span: Span | None = None) -> Iterator[Slice]:
    """Every slice that can be had now, in the node's order. `span`: when the job that wants one runs, if known."""
    for gpu in floor.gpus:
        if gpu.fault or not in_pool(gpu, floor.terms):
            continue
        for piece in slices_of(gpu, floor.held, span):
            start = piece.order[-1]
            if piece.uuid not in floor.busy and (gpu.uuid, piece.profile, start) not in floor.closing:
                yield piece


def pick(floor: Floor, want: Want) -> tuple[str, ...]:
    """The best idle slices for a request, at most `want.count`; fewer when there are not enough."""
    return tuple(piece.uuid for piece, _ in _best(floor, want))


def standings(floor: Floor, want: Want) -> tuple[tuple[int, int], ...]:
    """How well each of those suits it, the lowest best."""
    return tuple(how for _, how in _best(floor, want))


def _best(floor: Floor, want: Want) -> list[tuple[Slice, tuple[int, int]]]:
    offered = {uuid: offer.gres_class for uuid, offer in floor.terms.offers.items()}
    asked = (want.gres_class, floor.terms.profiles(want.gres_class), offered)
    pieces = idle(floor, _span(floor, want))
    return [(piece, standing(piece, *asked)) for piece in in_order(pieces, *asked)[: want.count]]


def cut(floor: Floor, want: Want, refused: Collection[tuple[str, str]] = ()) -> Step | None:
    """The step that makes one more slice for this class where a GPU has room, or None.

    Never destroys. `refused` holds (gpu, profile) pairs the driver has said no to. Best profile first; then, if the
    job's end is known, where it is in others' way least and shortest; then the fullest GPU; then the placement that
    takes the fewest others away.
    """
    span = _span(floor, want)
    for profile_name in floor.terms.profiles(want.gres_class):
        places = [
            (
                blocks(gpu, floor.held, (profile_name, start), span) if span else 0.0,
                *(free_slices(gpu), _lost(gpu, profile, start), gpu.index, start, gpu.uuid),
            )
            for gpu in floor.gpus
            if _can_cut(gpu, floor) and (gpu.uuid, profile_name) not in refused
            for profile in gpu.profiles
            if profile.name == profile_name
            for start in _open_starts(gpu, profile)
        ]
        if places:
            *_, start, uuid = min(places)
            return Step(gpu=uuid, create=((profile_name, start),))
    return None


def _can_cut(gpu: Gpu, floor: Floor) -> bool:
    return (
        gpu.mig is MigMode.ENABLED
        and not gpu.fault
        and gpu.uuid not in floor.cutting
        and gpu.uuid in floor.terms.changeable
    )


def _covered(gpu: Gpu) -> set[int]:
    return {at for instance in gpu.instances for at in range(instance.start, instance.start + instance.size)}


def _open_starts(gpu: Gpu, profile: GpuProfile, more: Collection[int] = ()) -> list[int]:
    taken = _covered(gpu).union(more)
    return [start for start in profile.starts if taken.isdisjoint(range(start, start + profile.size))]


def _lost(gpu: Gpu, profile: GpuProfile, start: int) -> int:
    """How much this placement takes away: the placements no longer open, each as big as its profile."""
    mine = range(start, start + profile.size)
    gone = ((one.size, len(_open_starts(gpu, one)) - len(_open_starts(gpu, one, mine))) for one in gpu.profiles)
    return sum(size * count for size, count in gone)
