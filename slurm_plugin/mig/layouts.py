"""Which layouts a GPU can have, and where the instances of a multiset go.

Every function takes the profiles of one GPU by name, the table's or those the GPU answered. Two things limit a layout:
placements may not overlap, and the engines of all instances are never more than the whole-GPU profile has (so one
`+me` a GPU, since there is one OFA). All searches are exhaustive: one multiset has at most a few hundred arrangements.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice

from slurm_plugin.mig.geometry import Layout, Placed, Product, Shapes, mask, memory_slices, show

# Tried for one multiset. Known GPUs need under 1,000: this only bounds a geometry nobody has seen.
ARRANGEMENTS_MAX = 20_000
MULTISETS_REMEMBERED = 64

_Spots = tuple[str, int, tuple[int, ...]]  # a profile as a search sees it: name, size, starts


def conflict(profiles: Shapes, layout: Iterable[Placed]) -> str | None:
    """Why these instances cannot be on one GPU together, in one line, or None when they can."""
    layout = tuple(layout)
    taken = 0
    for name, start in layout:
        if name not in profiles:
            return _unknown(profiles, name)
        profile = profiles[name]
        if start not in profile.starts:
            return f"{name} cannot start at {start}, only at {', '.join(map(str, profile.starts))}"
        if taken & mask(start, profile.size):
            other = next(n for n, s in layout if mask(s, profiles[n].size) & mask(start, profile.size))
            return f"{name} at {start} overlaps {other}"
        taken |= mask(start, profile.size)
    return media_conflict(profiles, (name for name, _ in layout))


def feasible(profiles: Shapes, layout: Iterable[Placed]) -> bool:
    return conflict(profiles, layout) is None


def engine_limit(profiles: Shapes) -> tuple[int, ...]:
    """Engines of the whole GPU, or () when no profile tells: nothing is limited then."""
    slices = memory_slices(profiles)
    whole = [p.engines for p in profiles.values() if p.size == slices]
    return tuple(map(max, zip(*whole, strict=True))) if whole and all(whole) else ()


def media_conflict(profiles: Shapes, names: Iterable[str]) -> str | None:
    """Which engine these instances would have too few of, in one line, or None. Placements do not matter here."""
    limit = engine_limit(profiles)
    used = [0] * len(limit)
    names = tuple(names)
    for name in names:
        used = [have + more for have, more in zip(used, profiles[name].engines or (0,) * len(limit), strict=True)]
    for engine, have, most in zip(("copy", "NVDEC", "NVENC", "JPEG", "OFA"), used, limit, strict=False):
        if have > most:
            return f"{have} {engine} engines are needed and the GPU has {most}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One way to place a multiset."""

    layout: Layout
    bits: tuple[int, ...]  # the memory slices of each instance of the layout
    taken: int  # of all


def arrangements(profiles: Shapes, counts: Mapping[str, int]) -> tuple[Arrangement, ...]:
    """Every way to place this multiset on an empty GPU, the one that leaves most room first.

    Engines are not looked at: they do not depend on places. Remembered, since a pool has few layouts and many GPUs.

    Bounds: at most ARRANGEMENTS_MAX.
    """
    axis = tuple((name, profile.size, profile.starts) for name, profile in profiles.items())
    return _arrangements(axis, tuple(sorted((name, count) for name, count in counts.items() if count)))


@lru_cache(maxsize=MULTISETS_REMEMBERED)
def _arrangements(axis: tuple[_Spots, ...], counts: tuple[tuple[str, int], ...]) -> tuple[Arrangement, ...]:
    spots = {name: (name, size, starts) for name, size, starts in axis}
    if sum(count for _, count in counts) > max((max(starts, default=0) + size for _, size, starts in axis), default=0):
        return ()  # before a row of a billion names is made
    each = sorted((spots[name] for name, count in counts for _ in range(count)), key=lambda spot: (-spot[1], spot[0]))
    everywhere = [(size, mask(start, size)) for _, size, starts in axis for start in starts]
    found = [_arrangement(spots, layout) for layout in islice(_arrange(each, 0, ()), ARRANGEMENTS_MAX)]
    return tuple(sorted(found, key=lambda a: -sum(size for size, bits in everywhere if not a.taken & bits)))


def _arrangement(spots: Mapping[str, _Spots], layout: Layout) -> Arrangement:
    layout = tuple(sorted(layout, key=lambda placed: placed[1]))
    bits = tuple(mask(start, spots[name][1]) for name, start in layout)
    return Arrangement(layout=layout, bits=bits, taken=sum(bits))


def _arrange(each: list[_Spots], taken: int, done: Layout) -> Iterator[Layout]:
    if len(done) == len(each):
        yield done
        return
    name, size, starts = each[len(done)]
    # Equal instances come in ascending order, so that no arrangement comes twice.
    after = done[-1][1] if done and done[-1][0] == name else -1
    for start in starts:
        bits = mask(start, size)
        if start > after and not taken & bits:
            yield from _arrange(each, taken | bits, (*done, (name, start)))


def place(
    profiles: Shapes, counts: Mapping[str, int], *, keep: Iterable[Placed] = (), fixed: Iterable[Placed] = ()
) -> Layout | None:
    """Where the instances of `counts` go beside the `fixed` ones (which are not among them), or None when they cannot.

    Of all arrangements it takes one that has most instances in common with `keep`, of those one that leaves most room.
    """
    kept, stay = frozenset(keep), tuple(fixed)
    if any(name not in profiles for name in counts):
        return None
    blocked = occupied(profiles, stay)
    free = [a for a in arrangements(profiles, counts) if not a.taken & blocked]
    names = [*(name for name, count in counts.items() for _ in range(count)), *(name for name, _ in stay)]
    if not free or media_conflict(profiles, names):
        return None
    return max(free, key=lambda a: (len(kept.intersection(a.layout)), room(profiles, blocked | a.taken))).layout


def occupied(profiles: Shapes, layout: Iterable[Placed]) -> int:
    """The memory slices of these instances, as bits."""
    bits = 0
    for name, start in layout:
        bits |= mask(start, profiles[name].size)
    return bits


def room(profiles: Shapes, taken: int) -> int:
    """How much could still be placed: every free placement, by its size. Compares layouts of one GPU, nothing else."""
    return sum(p.size for p in profiles.values() for start in p.starts if not taken & mask(start, p.size))


def why_impossible(profiles: Shapes, counts: Mapping[str, int]) -> str | None:
    """Why one GPU can never hold this multiset, in one line with what of it fits, or None when it can."""
    for name, count in counts.items():
        if name not in profiles:
            return _unknown(profiles, name)
        if count < 0:
            return f"{count} instances of {name} cannot be"
    reason = _reason(profiles, counts)
    return (
        f"{show(counts)} does not fit one GPU: {reason}; what fits of it: {show(_fitting(profiles, counts))}"
        if reason
        else None
    )


def _reason(profiles: Shapes, counts: Mapping[str, int]) -> str | None:
    slices = memory_slices(profiles)
    asked = sum(profiles[name].size * count for name, count in counts.items())
    if asked > slices:
        return f"{asked} memory slices are needed and the GPU has {slices}"
    if not arrangements(profiles, counts):
        starts = "; ".join(f"{n} starts at {', '.join(map(str, profiles[n].starts))}" for n, c in counts.items() if c)
        return f"no arrangement of the possible placements works ({starts})"
    return media_conflict(profiles, (name for name, count in counts.items() for _ in range(count)))


def _fitting(profiles: Shapes, counts: Mapping[str, int]) -> Mapping[str, int]:
    """A largest-first greedy part of the multiset: good enough for a message."""
    fits: dict[str, int] = {}
    for name in sorted(counts, key=lambda n: -profiles[n].size):
        for _ in range(min(counts[name], memory_slices(profiles))):
            more = {**fits, name: fits.get(name, 0) + 1}
            if _reason(profiles, more):
                break
            fits = more
    return fits


def _unknown(profiles: Shapes, name: str) -> str:
    near = get_close_matches(name, profiles, n=2)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"no profile '{name}' on this GPU{meant} (offered: {', '.join(profiles)})"


def remaining(profiles: Shapes, layout: Iterable[Placed], name: str) -> int:
    """How many more instances of one profile fit beside this layout: what NVML's remaining capacity says."""
    layout = tuple(layout)
    profile, taken, packed, end = profiles[name], occupied(profiles, layout), 0, 0
    for start in sorted(profile.starts):  # all of one size: taking the first that fits packs the most
        if start >= end and not taken & mask(start, profile.size):
            packed, end = packed + 1, start + profile.size
    names = [placed for placed, _ in layout]
    while packed and media_conflict(profiles, names + [name] * packed):
        packed -= 1
    return packed


def all_layouts(profiles: Shapes) -> Iterator[Layout]:
    """Every layout but the empty one, each once."""
    spots = sorted(
        ((p.name, start) for p in profiles.values() for start in p.starts), key=lambda spot: (spot[1], spot[0])
    )
    return _grow(profiles, spots, ())


def _grow(profiles: Shapes, spots: list[Placed], layout: Layout) -> Iterator[Layout]:
    for nth, spot in enumerate(spots):
        longer = (*layout, spot)
        if media_conflict(profiles, (name for name, _ in longer)):
            continue
        yield longer
        end = spot[1] + profiles[spot[0]].size
        yield from _grow(profiles, [later for later in spots[nth + 1 :] if later[1] >= end], longer)


def maximal_layouts(profiles: Shapes) -> Iterator[Layout]:
    """The layouts that nothing can be added to, each once. `counts_of` makes multisets of them."""
    return (
        layout for layout in all_layouts(profiles) if not any(remaining(profiles, layout, name) for name in profiles)
    )


def counts_of(layout: Iterable[Placed]) -> Mapping[str, int]:
    """The multiset of a layout."""
    counts: dict[str, int] = {}
    for name, _ in layout:
        counts[name] = counts.get(name, 0) + 1
    return counts


def auto_placement(product: Product, layout: Iterable[Placed], name: str) -> int | None:
    """Where the driver puts an instance when the caller does not say, or None when it has no room.

    It takes the free placement that blocks the fewest placements still free, of all profiles; of equals the lowest.
    Fitted to 13 observed creations, with one exception that the table names: good for a simulation. Our own steps
    always say where.
    """
    layout = tuple(layout)
    profile, taken = product.profiles[name], occupied(product.profiles, layout)
    if not remaining(product.profiles, layout, name):
        return None
    free = [
        mask(start, p.size) for p in product.profiles.values() for start in p.starts if not taken & mask(start, p.size)
    ]

    def cost(start: int) -> tuple[bool, int, int]:
        blocks = sum(1 for bits in free if bits & mask(start, profile.size))
        return (product.auto_last.get(profile.gi_profile_id) == start, blocks, start)

    return min((s for s in profile.starts if not taken & mask(s, profile.size)), key=cost)
