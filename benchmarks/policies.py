"""The policies that are compared: what others do, and what the pool does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.mix import carried, mix
from benchmarks.simulation import BITS, COMPUTE, PROFILES, SHAPES, Gpu
from slurm_plugin.mig.geometry import Layout, Placed

STARTS = {name: tuple((name, start) for start in shape.starts) for name, shape in SHAPES.items()}
PRESSING = 0.95  # of the GPUs' compute: a load below finds room somewhere, and only room for large jobs must be kept
ALIKE = 0.15  # a load that differs by less is no reason for another plan
BREAK = 1.5  # breaking a slot must bring so many times what it costs
EVERYWHERE = [(bits, COMPUTE[name], name) for (name, _), bits in BITS.items()]


class Cutting:
    """Cut where there is room: of all GPUs and placements the one with the least score; ties go to the first."""

    def __init__(self, gpus: Sequence[Gpu], score: Callable[[int, int], float]) -> None:
        self._gpus, self._score = gpus, score
        self._known: dict[tuple[int, str], tuple[float, Placed] | None] = {}

    def place(self, profile: str, now: float, end: float) -> tuple[int, Placed] | None:
        best: tuple[float, int, Placed] | None = None
        known = self._known
        for nth, gpu in enumerate(self._gpus):
            key = (gpu.taken, profile)
            if key not in known:
                known[key] = self._best(gpu.taken, profile)
            found = known[key]
            if found and (best is None or found[0] < best[0]):
                best = (found[0], nth, found[1])
        return best[1:] if best else None

    def _best(self, taken: int, profile: str) -> tuple[float, Placed] | None:
        able = [(self._score(taken, BITS[p]), p) for p in STARTS[profile] if not taken & BITS[p]]
        return min(able, key=lambda one: one[0]) if able else None

    def ended(self, gpu: int, placed: Placed) -> None:
        """Its slice stays, and goes when its room is wanted."""

    def tick(self, now: float, waiting: dict[str, int], arrived: dict[str, int]) -> None:
        """Nothing is planned."""


def first_fit(gpus: Sequence[Gpu]) -> Cutting:
    return Cutting(gpus, lambda taken, bits: 0.0)


def best_fit(gpus: Sequence[Gpu]) -> Cutting:
    return Cutting(gpus, lambda taken, bits: -float(taken.bit_count()))


def worst_fit(gpus: Sequence[Gpu]) -> Cutting:
    return Cutting(gpus, lambda taken, bits: float(taken.bit_count()))


def least_fragmenting(gpus: Sequence[Gpu], rates: dict[str, float]) -> Cutting:
    """Lose the fewest placements, each by its compute and how often it is asked for."""

    def lost(taken: int, bits: int) -> float:
        return sum(c * rates[name] for there, c, name in EVERYWHERE if there & bits and not there & taken)

    return Cutting(gpus, lost)


class Fixed:
    """Every GPU keeps its layout; a job takes the smallest idle slice that is large enough."""

    def __init__(self, gpus: Sequence[Gpu], layouts: Sequence[Layout]) -> None:
        self._gpus = gpus
        self._free: dict[str, list[tuple[int, Placed]]] = {name: [] for name in PROFILES}
        for nth, layout in reversed(list(enumerate(layouts))):
            gpus[nth].idle = set(layout)
            for placed in layout:
                self._free[placed[0]].append((nth, placed))

    def place(self, profile: str, now: float, end: float) -> tuple[int, Placed] | None:
        for name in PROFILES[PROFILES.index(profile) :]:
            if self._free[name]:
                return self._free[name].pop()
        return None

    def ended(self, gpu: int, placed: Placed) -> None:
        self._free[placed[0]].append((gpu, placed))

    def tick(self, now: float, waiting: dict[str, int], arrived: dict[str, int]) -> None:
        """It stays as it is."""


class Reflashing:
    """A GPU that is idle as a whole gets the uniform layout that the job wants, as mig-parted's profiles do."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._uniform = {name: _uniform(name) for name in PROFILES}
        self.reflashed = 0

    def place(self, profile: str, now: float, end: float) -> tuple[int, Placed] | None:
        for nth, gpu in enumerate(self._gpus):
            for placed in gpu.idle:
                if placed[0] == profile:
                    return nth, placed
        for nth, gpu in enumerate(self._gpus):
            if not gpu.busy:
                gpu.idle = set(self._uniform[profile])
                self.reflashed += 1
                return nth, self._uniform[profile][0]
        return None

    def ended(self, gpu: int, placed: Placed) -> None:
        """Its slice is idle."""

    def tick(self, now: float, waiting: dict[str, int], arrived: dict[str, int]) -> None:
        """Nothing is planned."""


def _uniform(name: str) -> Layout:
    layout: list[Placed] = []
    for placed in STARTS[name]:
        if not any(BITS[placed] & BITS[one] for one in layout):
            layout.append(placed)
    return tuple(layout)


@dataclass(slots=True, eq=False)
class Slot:
    """One slice of the plan: whole while nothing smaller runs in it."""

    gpu: int
    placed: Placed
    until: float = 0.0  # when the last of what runs in it ends
    inside: int = 0  # jobs that run in it
    broken: bool = False  # they are smaller ones
    retired: bool = False  # the plan has changed


class Planned:
    """Ours: the mix is planned for the load that is seen, and jobs are placed into it.

    A smaller job may break a slot when that costs the slot's own jobs less than it brings: the longer it stands in the
    way beyond what already does, the more it costs.
    """

    def __init__(self, gpus: Sequence[Gpu], loads: dict[str, float], follow: "Follow | None" = None) -> None:
        self._gpus, self._follow = gpus, follow
        self._slots: list[Slot] = []
        self._of: list[list[Slot]] = [[] for _ in gpus]
        self._by: dict[str, list[Slot]] = {name: [] for name in PROFILES}
        self._lost: dict[str, list[float]] = {}
        self._target: list[Layout] = [() for _ in gpus]
        self._planned: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._roomy: Cutting | None = None
        self.plan(loads)

    def plan(self, loads: dict[str, float]) -> None:
        asked = sum(loads[name] * COMPUTE[name] for name in loads)
        if not self._roomy or not _alike(self._rates, loads):
            self._rates = loads
            self._cut = least_fragmenting(self._gpus, loads)
        self._roomy = self._cut if asked < PRESSING * 7 * len(self._gpus) else None
        if _alike(self._planned, loads):
            return
        self._planned = loads
        shares = mix(SHAPES, loads, len(self._gpus))
        if not shares:
            return
        wanted = [share.layout for share in shares for _ in range(share.gpus)]
        self._assign(wanted)
        self._by = {name: [] for name in PROFILES}
        for nth, layout in enumerate(self._target):
            old = {slot.placed: slot for slot in self._of[nth]}
            self._of[nth] = [old.get(placed) or self._slot(nth, placed) for placed in layout]
            for slot in self._of[nth]:
                self._by[slot.placed[0]].append(slot)
        self._lost = {name: _lost(loads.get(name, 0.0), len(slots)) for name, slots in self._by.items()}

    def _assign(self, wanted: list[Layout]) -> None:
        """Give every GPU a target: first those that have it already, then where least that runs is in the way."""
        left: dict[Layout, int] = {}
        for layout in wanted:
            left[layout] = left.get(layout, 0) + 1
        todo = []
        for nth, target in enumerate(self._target):
            if left.get(target, 0):
                left[target] -= 1
            else:
                todo.append(nth)
        costs = sorted(
            (len([p for p in self._gpus[nth].busy if p not in layout]), nth, layout)
            for nth in todo
            for layout, count in left.items()
            if count
        )
        given: set[int] = set()
        for _, nth, layout in costs:
            if nth not in given and left[layout]:
                left[layout] -= 1
                self._target[nth] = layout
                given.add(nth)

    def _slot(self, nth: int, placed: Placed) -> Slot:
        """A slot that is new on its GPU: what runs in its way is counted as what has broken it."""
        inside = {p: end for p, end in self._gpus[nth].busy.items() if BITS[p] & BITS[placed]}
        own = set(inside) == {placed}
        return Slot(nth, placed, max(inside.values(), default=0.0), len(inside), bool(inside) and not own)

    def place(self, profile: str, now: float, end: float) -> tuple[int, Placed] | None:
        if self._roomy:
            roomy = self._roomy.place(profile, now, end)
            return self._begin(*roomy, end) if roomy else None
        best: tuple[float, int, Slot, Placed] | None = None
        worth, lasts = COMPUTE[profile], max(1e-9, end - now)
        for name in PROFILES[PROFILES.index(profile) :]:
            slots, lost = self._by[name], self._lost.get(name, [1.0])
            if not slots:
                continue
            whole = [slot for slot in slots if not slot.inside]
            busy = len(slots) - len(whole)
            value = COMPUTE[name] * lost[-1]
            if name == profile:
                if whole and (best is None or (value / lost[busy], 0) < best[:2]):
                    best = (value / lost[busy] if busy < len(lost) else 0.0, 0, whole[0], whole[0].placed)
                continue
            if whole and worth > (cost := BREAK * value / lost[busy]) and (best is None or cost < best[0]):
                found = self._fits(whole[0], profile)
                if found:
                    best = (cost, 1, whole[0], found)
            held = BREAK * value / lost[max(0, busy - 1)] / lasts
            for slot in slots:
                if slot.broken:
                    cost = held * max(0.0, end - slot.until)
                    if cost < worth and (best is None or cost < best[0]) and (found := self._fits(slot, profile)):
                        best = (cost, 1, slot, found)
        if best is None:
            return None
        return self._begin(best[2].gpu, best[3], end)

    def _begin(self, gpu: int, placed: Placed, end: float) -> tuple[int, Placed]:
        for one in self._of[gpu]:
            if BITS[one.placed] & BITS[placed]:
                one.inside += 1
                one.broken = one.broken or one.placed != placed
                one.until = max(one.until, end)
        return gpu, placed

    def _fits(self, slot: Slot, profile: str) -> Placed | None:
        within, taken = BITS[slot.placed], self._gpus[slot.gpu].taken
        for placed in STARTS[profile]:
            if BITS[placed] & within == BITS[placed] and not BITS[placed] & taken:
                return placed
        return None

    def ended(self, gpu: int, placed: Placed) -> None:
        for slot in self._of[gpu]:
            if BITS[slot.placed] & BITS[placed]:
                slot.inside -= 1
                slot.broken = slot.broken and slot.inside > 0

    def tick(self, now: float, waiting: dict[str, int], arrived: dict[str, int]) -> None:
        if self._follow and (loads := self._follow.loads(waiting, arrived)):
            self.plan(loads)


def _alike(old: dict[str, float], new: dict[str, float]) -> bool:
    return bool(old) and all(
        abs(new[name] - old.get(name, 0.0)) <= ALIKE * max(1.0, old.get(name, 0.0)) for name in new
    )


@dataclass(slots=True)
class Follow:
    """The load as it is seen: what came in the last ticks, and what waits and must be worked off."""

    mean_s: float
    tick_s: float
    keep: float = 0.7  # of what was seen before, a tick
    rates: dict[str, float] | None = None

    def loads(self, waiting: dict[str, int], arrived: dict[str, int]) -> dict[str, float] | None:
        seen = {name: count / self.tick_s for name, count in arrived.items()}
        if self.rates is None:
            self.rates = seen if any(seen.values()) else None
            return None
        self.rates = {name: self.keep * self.rates[name] + (1 - self.keep) * seen[name] for name in PROFILES}
        return {name: self.rates[name] * self.mean_s + waiting[name] for name in PROFILES}


def _lost(load: float, slices: int) -> list[float]:
    """By slices, the share of jobs that would find none."""
    if load <= 0:
        return [1.0] + [1e-9] * slices
    return [1.0 - used / load for used in carried(load, slices)]
