"""Which profiles serve a request for memory or for a share of a GPU, and what a slice weighs."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from slurm_plugin.mig.geometry import Shape, Shapes, attributes, compute_slices, memory_gb, memory_slices

WEIGHT_OF_GPU = 8  # weights are eighths of a GPU's memory

S = TypeVar("S", bound=Shape)


def best_first(profiles: Iterable[S]) -> tuple[S, ...]:
    """Least first: memory slices, then compute slices, plain before one with attributes, then name."""
    return tuple(sorted(profiles, key=lambda p: (p.size, p.compute_slices, attributes(p.name) != "", p.name)))


def profiles_for_memory(profiles: Mapping[str, S], gb: int) -> tuple[S, ...]:
    """Profiles with at least that much memory by their names, best first."""
    return best_first(p for p in profiles.values() if memory_gb(p.name) >= gb)


def profiles_for_fraction(profiles: Mapping[str, S], n: int) -> tuple[S, ...]:
    """Profiles with at least 1/n of the GPU's compute slices and of its memory slices, best first.

    Both are rounded down, but never to nothing, so that n of the best ones fit one GPU. They do on all but one: a third
    of an RTX PRO 6000 (4 and 12 slices) is served by a half.
    """
    compute = max(1, compute_slices(profiles) // n)
    memory = max(1, memory_slices(profiles) // n)
    return best_first(p for p in profiles.values() if p.compute_slices >= compute and p.size >= memory)


def weight(profiles: Shapes, name: str) -> int:
    """A slice's share of its GPU's memory in eighths, rounded up: what `vgpu_mem` counts."""
    return -(-WEIGHT_OF_GPU * profiles[name].size // memory_slices(profiles))
