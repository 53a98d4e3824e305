"""PURE: the Gres string of one node.

For a class c: published(c) = used(c), as Slurm says, + idle slices offered as c - slices that running jobs of c will
take when their prolog binds. So a job that starts, binds or ends changes nothing here, and Slurm needs no update.

Three rules hold whatever the input: the total stays what it is, no type is published below its use (Slurm's unsigned
arithmetic would wrap), and everything that is not ours comes back unchanged. After a restart or a reconfigure of
slurmctld some jobs are counted under no type: their slices are not idle, so the same formula holds, in whatever order
they end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_plugin.pool import GresNames
from slurm_plugin.ports import GresItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    items: tuple[GresItem, ...]  # the whole Gres string to set
    total: int  # of our GRES on this node, as it is and stays
    cut: int = 0  # idle slices that could not be published, since the total has no room for them


def publish(
    names: GresNames,
    gres: Iterable[GresItem],
    used: Iterable[GresItem],
    idle: Mapping[str, int],
    unbound: Mapping[str, int],
    seen: int = 0,
    weight: int = 0,
) -> Published | None:
    """What this node's Gres must be; None when it has none of our GRES and had none: only slurm.conf can give it.

    `idle`: idle slices offered, by class. `unbound`: slices that running jobs still have to take, by class. `seen`: the
    node's total as it was last seen, and `weight` that of the memory's GRES: both come back when somebody has left them
    out of a Gres that was set by hand.
    """
    gres = tuple(gres)
    total = total_of(names, gres, seen)
    if not total:
        return None
    taken = _by_type(names, used)
    untyped = taken.pop("", 0)
    room = max(0, total - sum(taken.values()) - untyped)
    cut = 0
    counts = {gres_class: count for gres_class, count in taken.items() if gres_class != names.pad}
    for gres_class in sorted(idle):
        wanted = max(0, idle[gres_class] - unbound.get(gres_class, 0))
        more = min(wanted, room)
        room, cut = room - more, cut + wanted - more
        counts[gres_class] = counts.get(gres_class, 0) + more
    counts = {gres_class: counts[gres_class] for gres_class in sorted(counts) if counts[gres_class]}
    # What is left is pad: its own use and everything untyped is in it, since the room was what was left over.
    counts[names.pad] = total - sum(counts.values())
    ours = [GresItem(name=names.name, type=t, count=n) for t, n in counts.items() if n]
    items = _replaced(names, gres, ours)
    if weight and all(item.name != names.memory for item in items):
        items = (*items, GresItem(name=names.memory, count=weight))
    return Published(items=items, total=total, cut=cut)


def total_of(names: GresNames, gres: Iterable[GresItem], seen: int = 0) -> int:
    """What Slurm counts of our GRES on this node, or has counted when it was `seen`; 0 when it has none.

    After `scontrol reconfigure` 22.05 prints every type with 0, and no total: it has slurm.conf's again, which is what
    was `seen` before, or ours.
    """
    ours = [item for item in gres if item.name == names.name]
    return sum(item.count for item in ours) or seen or (names.total if ours else 0)


def weight_of(names: GresNames, gres: Iterable[GresItem]) -> int:
    """What Slurm counts of the memory's GRES; 0 when it has none."""
    return sum(item.count for item in gres if item.name == names.memory)


def is_base(names: GresNames, gres: Iterable[GresItem]) -> bool:
    """Is nothing published, as after a restart or a reconfigure of slurmctld? Then no job of ours can start."""
    return not any(item.type and item.count for item in gres if item.name == names.name)


def same(one: Iterable[GresItem], other: Iterable[GresItem]) -> bool:
    """Do both mean the same to Slurm? Order and types of count 0 do not matter."""
    return _meaning(one) == _meaning(other)


def shrinks(names: GresNames, now: Iterable[GresItem], wanted: Iterable[GresItem]) -> bool:
    """Would a class have less than it has now?"""
    has, gets = _by_type(names, now), _by_type(names, wanted)
    return any(gets.get(t, 0) < count for t, count in has.items() if t not in ("", names.pad))


def below_use(names: GresNames, gres: Iterable[GresItem], used: Iterable[GresItem]) -> tuple[str, ...]:
    """The types that are published below their use: the one thing that must never last."""
    has, takes = _by_type(names, gres), _by_type(names, used)
    return tuple(sorted(t for t, count in takes.items() if t and has.get(t, 0) < count and "" not in has))


def _by_type(names: GresNames, items: Iterable[GresItem]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in items:
        if item.name == names.name:
            counts[item.type] = counts.get(item.type, 0) + item.count
    return counts


def _replaced(names: GresNames, gres: tuple[GresItem, ...], ours: list[GresItem]) -> tuple[GresItem, ...]:
    """The node's list with our items where the first of ours was, or last."""
    first = next((nth for nth, item in enumerate(gres) if item.name == names.name), len(gres))
    before = [item for item in gres[:first] if item.name != names.name]
    return (*before, *ours, *(item for item in gres[first:] if item.name != names.name))


def _meaning(items: Iterable[GresItem]) -> dict[tuple[str, str], int]:
    meaning: dict[tuple[str, str], int] = {}
    for item in items:
        if item.count:
            key = (item.name, item.type)
            meaning[key] = meaning.get(key, 0) + item.count
    return meaning
