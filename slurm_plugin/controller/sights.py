"""PURE: every node's GPUs as the planner sees them, remembered from one look to the next.

Nothing here decides anything: a node is looked at again as soon as anything about it differs, and counted again as far
as it differs. Whoever has no memory of the pool gets the same, only later.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from slurm_plugin.mig.geometry import Shapes
from slurm_plugin.model import Gpu, GpuProfile
from slurm_plugin.planner.census import Census
from slurm_plugin.planner.problem import GpuState

STATES_REMEMBERED = 50_000  # with the place they are in
MODELS_MAX = 256  # models that are remembered; known pools have a few

Seen = tuple[tuple[GpuState, Gpu], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A node as it was seen last."""

    view: object  # what it was made of: the same objects would make it again
    group: object
    plain: bool  # nothing but these mattered
    seen: Seen  # its GPUs that may be planned, in no place yet
    uuids: frozenset[str]  # of all its GPUs


class Sights:
    """The nodes that may be planned, and how many of their GPUs are in each state."""

    def __init__(self) -> None:
        self.nodes: dict[str, Sight] = {}
        self._placed: dict[str, tuple[Sight, str]] = {}  # as they are counted
        self._census = Census()
        self._where: dict[GpuState, set[str]] = {}  # nodes with a GPU in that state
        self._models: dict[tuple[str, int], tuple[object, str]] = {}
        self.shapes: dict[str, Shapes] = {}
        self._told: tuple[object, Mapping[str, int]] = (None, {})

    def begin(self, rules: object, shares: Mapping[str, int]) -> None:
        """Nothing that was seen under other rules holds, nor when GPUs have other shares of their groups' layouts."""
        if rules is not self._told[0] or shares != self._told[1]:
            self.nodes.clear()
        self._told = (rules, shares)

    def settle(self, place_of: Mapping[str, str]) -> None:
        """Count every node in its place. Others are gone."""
        for name in self._placed.keys() - place_of.keys():
            self._count(name, ())
            del self._placed[name]
        self._census.keep(place_of.keys())
        for name, place in place_of.items():
            sight, before = self.nodes[name], self._placed.get(name)
            if before is None or before[0] is not sight or before[1] != place:
                self._placed[name] = (sight, place)
                self._count(name, [in_place(one, place) for one, _ in sight.seen])

    def _count(self, name: str, states: Sequence[GpuState]) -> None:
        before, now = set(self._census.of(name)), set(states)
        for state in before - now:
            self._where[state].discard(name)
            if not self._where[state]:
                del self._where[state]
        for state in now - before:
            self._where.setdefault(state, set()).add(name)
        self._census.put(name, states)

    def states(self) -> dict[GpuState, int]:
        """How many GPUs are in each; some are in none. The caller's own."""
        return self._census.states()

    def models(self, states: Collection[GpuState]) -> dict[str, Shapes]:
        return {model: self.shapes[model] for model in sorted({state.model for state in states})}

    def of(self, state: GpuState) -> Iterator[tuple[str, Gpu]]:
        """Who is in this state, by node, in no order."""
        for name in self._where.get(state, ()):
            sight, _ = self._placed[name]
            for one, (_, gpu) in zip(self._census.of(name), sight.seen, strict=True):
                if one == state:
                    yield name, gpu

    def model(self, gpu: Gpu) -> str:
        """GPUs of one name whose drivers answer differently are different models, whoever was seen first."""
        known = self._models.get((gpu.name, id(gpu.profiles)))
        if known is None:
            if len(self._models) >= MODELS_MAX:
                self._models.clear()
            name = model_name(gpu.name, gpu.profiles)
            self.shapes[name] = {profile.name: profile for profile in gpu.profiles}
            known = self._models[gpu.name, id(gpu.profiles)] = (gpu.profiles, name)  # kept, so that the id stays its
        return known[1]


@lru_cache(maxsize=STATES_REMEMBERED)
def in_place(state: GpuState, place: str) -> GpuState:
    return replace(state, place=place)


def model_name(name: str, profiles: Sequence[GpuProfile]) -> str:
    """With all that planning looks at."""
    shapes = sorted((p.name, p.starts, p.size, p.engines, p.compute_slices) for p in profiles)
    return f"{name} {shapes}"
