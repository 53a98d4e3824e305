"""From the instances a GPU has to the layout it should have, with nothing busy touched.

The wanted layout is a multiset; where its instances go is ours to choose. We choose one *goal*, an arrangement of the
whole multiset, by three questions in this order: how much of it can exist now (around what is busy), how much of it is
busy already, how many idle instances it keeps. Then:

* what exists and is in the goal stays;
* what is idle and not in the goal goes;
* what is in the goal and has room is made;
* what is in the goal and has no room waits for the busy instances that lie in its way, or hold its engines.

A busy instance that is not in the goal is *leaving*: it stays until its job ends and goes with the next change.
Carrying a change out and asking again gives nothing to do: the first two answers do not depend on what is idle, and
the third can then only be "all of them".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.geometry import Layout, Placed, Shapes, mask
from slurm_plugin.mig.layouts import Arrangement, arrangements, counts_of, media_conflict, why_impossible
from slurm_plugin.model import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """An instance on the GPU, as far as a change of layout cares."""

    profile: str
    start: int  # memory slices
    size: int
    busy: bool = False  # a job has it: neither destroyed nor moved
    foreign: bool = False  # not ours: never touched, and none of the wanted ones either
    whole: bool = True  # False for one without its compute instance: when idle it goes, even if its place is wanted

    @property
    def placed(self) -> Placed:
        return (self.profile, self.start)

    @property
    def bits(self) -> int:
        return mask(self.start, self.size)

    @property
    def held(self) -> bool:
        return self.busy or self.foreign

    @classmethod
    def of(cls, instance: Instance, *, busy: bool) -> "Existing":
        return cls(
            profile=instance.profile,
            start=instance.start,
            size=instance.size,
            busy=busy,
            foreign=instance.foreign,
            whole=instance.ci >= 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A wanted instance that cannot exist yet, and the held ones it waits for."""

    wanted: Placed
    by: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to do to one GPU now: destroy first, then create. All layouts ascend by start."""

    keep: Layout = ()  # exists and is wanted
    destroy: Layout = ()
    create: Layout = ()
    leaving: Layout = ()  # busy and not wanted: to be withheld when its job ends
    blocked_by: tuple[Blocked, ...] = ()

    @property
    def settled(self) -> bool:
        """Nothing can be done now; what is blocked may still be to come."""
        return not self.destroy and not self.create

    @property
    def reached(self) -> bool:
        """The wanted layout exists, and nothing else of ours."""
        return self.settled and not self.leaving and not self.blocked_by


def converge(profiles: Shapes, current: Iterable[Existing], wanted: Mapping[str, int]) -> Change:
    """The next change of one GPU towards `wanted` (profile name -> count).

    Raises ConfigError when the GPU could never hold `wanted`, busy or not.
    """
    current = sorted(current, key=lambda e: e.start)
    wanted = {name: count for name, count in wanted.items() if count}
    if counts_of(e.placed for e in current) == wanted and all(e.whole and not e.foreign for e in current):
        return Change(keep=tuple(e.placed for e in current))
    impossible = why_impossible(profiles, wanted)
    if impossible:
        raise ConfigError(impossible, hint="change this GPU's layout in pool.yaml")
    return _towards(profiles, current, _goal(profiles, current, wanted))


def _goal(profiles: Shapes, current: Sequence[Existing], wanted: Mapping[str, int]) -> Layout:
    held = 0
    for e in current:
        held |= e.bits if e.held else 0
    busy = {e.placed for e in current if e.busy and e.whole and not e.foreign}
    idle = {e.placed for e in current if not e.held and e.whole}

    def score(goal: Arrangement) -> tuple[int, int, int]:
        now = already = kept = 0
        for placed, bits in zip(goal.layout, goal.bits, strict=True):
            if placed in busy:
                now, already = now + bits.bit_count(), already + bits.bit_count()
            elif not held & bits:
                now, kept = now + bits.bit_count(), kept + (placed in idle)
        return now, already, kept

    return max(arrangements(profiles, wanted), key=score).layout  # of equals the first, which leaves most room


def _towards(profiles: Shapes, current: Sequence[Existing], goal: Layout) -> Change:
    keep = tuple(e.placed for e in current if e.placed in goal and e.whole and not e.foreign)
    in_the_way = [e for e in current if e.held and e.placed not in keep]
    names = [e.profile for e in current if e.profile in profiles and (e.held or e.placed in keep)]
    short_of_engines = media_conflict(profiles, [*names, *(placed[0] for placed in goal if placed not in keep)])
    create: list[Placed] = []
    blocked: list[Blocked] = []
    for placed in goal:
        if placed in keep:
            continue
        by = tuple(e.placed for e in in_the_way if e.bits & mask(placed[1], profiles[placed[0]].size))
        if not by and short_of_engines and media_conflict(profiles, [*names, placed[0]]):
            by = _engine_holders(profiles, names, placed[0], in_the_way)
        if by:
            blocked.append(Blocked(wanted=placed, by=by))
        else:
            create.append(placed)
            names.append(placed[0])
    return Change(
        keep=keep,
        destroy=tuple(e.placed for e in current if not e.held and e.placed not in keep),
        create=tuple(create),
        leaving=tuple(e.placed for e in in_the_way if not e.foreign),
        blocked_by=tuple(blocked),
    )


def _engine_holders(profiles: Shapes, names: list[str], wanted: str, in_the_way: Sequence[Existing]) -> Layout:
    """The held instances any one of which would free the engines that `wanted` lacks; all when no single one would."""
    candidates = [e for e in in_the_way if e.profile in profiles and any(profiles[e.profile].engines)]

    def without(name: str) -> list[str]:
        rest = list(names)
        rest.remove(name)
        return rest

    alone = [e for e in candidates if not media_conflict(profiles, [*without(e.profile), wanted])]
    return tuple(e.placed for e in alone or candidates)
