"""PURE: which instances of a GPU are the pool's, and what brings a GPU to the layout that was decided for it.

A record says which instances were the pool's before a step (`had`) and which will be after it (`wanted`). While the two
differ the step is not known to be over. One question serves a step that a crash cut short, a reboot that took every
instance, and a half-made instance: what of `wanted` is missing, and what of ours is there that should not be?
Instances are known by profile and start: the driver gives a new instance the UUID of an old one.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from slurm_plugin.model import Gpu, Instance, Step

Shape = tuple[str, int]  # profile, start in memory slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the pool has on one GPU."""

    gpu: str  # UUID
    had: frozenset[Shape]
    wanted: frozenset[Shape]

    @property
    def is_open(self) -> bool:
        return self.had != self.wanted

    @property
    def ours(self) -> frozenset[Shape]:
        return self.had | self.wanted


def shape(instance: Instance) -> Shape:
    return (instance.profile, instance.start)


def adopted(gpu: Gpu) -> Record:
    """A GPU that comes into the pool: its whole instances are the pool's from now on, half-made ones somebody's."""
    whole = frozenset(shape(one) for one in gpu.instances if one.ci >= 0 and not one.foreign)
    return Record(gpu=gpu.uuid, had=whole, wanted=whole)


def marked(gpu: Gpu, record: Record, granted: Collection[str]) -> Gpu:
    """The GPU with every instance foreign that the pool did not make. What a run holds is never foreign."""
    strange = [one for one in gpu.instances if shape(one) not in record.ours and one.uuid not in granted]
    if not strange:
        return gpu
    return replace(gpu, instances=tuple(replace(one, foreign=one.foreign or one in strange) for one in gpu.instances))


def intent(gpu: Gpu, record: Record, step: Step) -> Record:
    """The record while this step is under way."""
    had = _present(gpu, record)
    whole = _present(gpu, record, whole=True)
    return replace(record, had=had, wanted=whole - set(step.destroy) | set(step.create))


def outcome(gpu: Gpu, record: Record) -> Record:
    """The record of what there is now, wanted or not. Open while an instance of ours is half made."""
    return replace(record, had=_present(gpu, record), wanted=_present(gpu, record, whole=True))


def rest(gpu: Gpu, record: Record, busy: Collection[str]) -> Step:
    """What is still to do for the record's layout, as far as busy and foreign instances leave room for it.

    Nothing at all when that is reached, or can't be come nearer to.
    """
    gone = [one for one in _of(gpu, record) if one.uuid not in busy and _goes(one, record)]
    stay = [one for one in gpu.instances if one not in gone]
    there = {shape(one) for one in stay}
    covered = _covered((one.start, one.size) for one in stay)
    sizes = {(profile.name, start): profile.size for profile in gpu.profiles for start in profile.starts}
    create: list[Shape] = []
    for missing in sorted(record.wanted - there, key=lambda one: (one[1], one[0])):
        place = _covered([(missing[1], sizes.get(missing, 0))])
        if place and place.isdisjoint(covered):
            covered |= place
            create.append(missing)
    return Step(gpu=gpu.uuid, destroy=tuple(shape(one) for one in gone), create=tuple(create))


def is_reached(gpu: Gpu, record: Record) -> bool:
    """Nothing is under way, and all that should be there is, whole."""
    return not record.is_open and record.wanted <= _present(gpu, record, whole=True)


def _goes(instance: Instance, record: Record) -> bool:
    return instance.ci < 0 or shape(instance) not in record.wanted


def _of(gpu: Gpu, record: Record) -> list[Instance]:
    return [one for one in gpu.instances if shape(one) in record.ours and not one.foreign]


def _present(gpu: Gpu, record: Record, *, whole: bool = False) -> frozenset[Shape]:
    return frozenset(shape(one) for one in _of(gpu, record) if one.ci >= 0 or not whole)


def _covered(places: Iterable[tuple[int, int]]) -> set[int]:
    return {at for start, size in places for at in range(start, start + size)}
