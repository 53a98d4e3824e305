"""PURE: guarantees that no layout of the pool's GPUs could ever keep.

One alone is held against the most slices that the GPUs can hold. All together are held against the GPUs' memory and
compute slices only: what passes here may still be more than the placements allow.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from slurm_plugin.catalogue import Class
from slurm_plugin.classes import most
from slurm_plugin.mig.geometry import Shapes, compute_slices, memory_slices
from slurm_plugin.planning import Guarantee, Reach
from slurm_plugin.pool import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """GPUs of one model that are treated alike."""

    product: str
    profiles: Shapes
    gpus_of: Mapping[str, int]  # host -> GPUs
    shares: Sequence[Share] = ()  # what they are cut into for ever; empty: whatever is needed

    def within(self, reach: Reach) -> int:
        """How many of them are in reach."""
        if reach.products and self.product not in reach.products:
            return 0
        return sum(count for host, count in self.gpus_of.items() if not reach.hosts or host in reach.hosts)

    def holds(self, served: Class, gpus: int) -> int:
        """The most slices of a class that so many of them can have."""
        if not self.shares:
            return gpus * most([served], [self.profiles])[served.name]
        whole = sum(share.share for share in self.shares)
        return sum(
            -(-gpus * share.share // whole) * sum(share.layout.get(profile, 0) for profile in served.profiles)
            for share in self.shares
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A guarantee with its class as the pool knows it."""

    guarantee: Guarantee
    served: Class
    reach: Reach = field(default_factory=Reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """How well a guarantee is kept at a moment."""

    guarantee: str  # as pool.yaml has it
    at_least: int
    have: int  # slices that its account holds, where those count, and idle ones that no other guarantee needs


def impossible(promises: Sequence[Promise], supply: Sequence[Supply]) -> Iterator[tuple[Guarantee, str]]:
    """Those that can't be kept, each with why. `supply` is the whole pool."""
    kept = []
    for promise in promises:
        if why := _alone(promise, supply):
            yield promise.guarantee, why
        else:
            kept.append(promise)
    gpus = sum(sum(part.gpus_of.values()) for part in supply)
    for what, part_of in (("memory", _memory), ("compute", _compute)):
        needed = Fraction(0)
        for promise in kept:
            needed += promise.guarantee.count * _least(promise, supply, part_of)
            if needed > gpus:
                so_far = f"with those before it, it needs the {what} of {_number(needed)} GPUs"
                yield promise.guarantee, f"{so_far}, and the pool has {gpus}"
                return


def _alone(promise: Promise, supply: Sequence[Supply]) -> str:
    guarantee, served, reach = promise.guarantee, promise.served, promise.reach
    able = [(part, gpus) for part in supply if (gpus := part.within(reach))]
    room = sum(part.holds(served, gpus) for part, gpus in able)
    if room >= guarantee.count:
        return ""
    gpus = sum(count for _, count in able)
    where = "that planning.classes lets it use " if reach != Reach() else ""
    return f"the {gpus} GPUs {where}can hold {room} slices of {guarantee.gres_class} at the most"


def _least(promise: Promise, supply: Sequence[Supply], part_of: Callable[[Shapes, str], Fraction]) -> Fraction:
    parts = (
        part_of(part.profiles, profile)
        for part in supply
        if part.within(promise.reach)
        for profile in promise.served.profiles
        if profile in part.profiles
    )
    return min(parts, default=Fraction(0))


def _memory(profiles: Shapes, name: str) -> Fraction:
    return Fraction(profiles[name].size, memory_slices(profiles))


def _compute(profiles: Shapes, name: str) -> Fraction:
    return Fraction(profiles[name].compute_slices, compute_slices(profiles))


def _number(gpus: Fraction) -> str:
    return f"{float(gpus):.1f}".removesuffix(".0")
