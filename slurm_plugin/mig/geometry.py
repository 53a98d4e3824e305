"""The nouns of MIG: product, profile, placement, layout.

A GPU's memory is an axis of *memory slices*. A profile may start at a few places of that axis and covers `size` slices
from there. A layout is the set of instances on one GPU, each written (profile name, start). That is the whole of the
geometry: compute slices never bind (a test holds it for every product), and the only other limit is media engines.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Placed = tuple[str, int]  # (profile name, start in memory slices)
Layout = tuple[Placed, ...]  # ascending by start

_NAME = re.compile(r"(\d+)g\.(\d+)gb([+-].+)?")


class Engines(NamedTuple):
    """Copy and media engines of an instance."""

    copy: int
    decoder: int
    encoder: int
    jpeg: int
    ofa: int


class Shape(Protocol):
    """What layouts need to know of a profile. `Profile` and `slurm_plugin.model.GpuProfile` both are one."""

    @property
    def name(self) -> str: ...
    @property
    def compute_slices(self) -> int: ...
    @property
    def starts(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def engines(self) -> tuple[int, ...]: ...  # () when not known: no engine limit is applied then


Shapes = Mapping[str, Shape]  # every profile of one GPU by name, the whole-GPU profile among them


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfile:
    """A compute-instance profile within one GPU-instance profile. Starts are compute slices of the GPU instance."""

    id: int  # the driver's id and NVML's constant are the same here
    name: str  # "1c.3g.40gb"; empty where no listing shows it
    compute_slices: int
    starts: tuple[int, ...]
    multiprocessors: int
    default: bool  # covers the whole GPU instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A GPU-instance profile of a product, as the table knows it."""

    name: str  # "1g.10gb+me"
    gi_profile_id: int  # the driver's id: create, list and placement calls take it
    nvml_constant: int  # GetGpuInstanceProfileInfo takes this one, another number space
    compute_slices: int
    memory_mib: int  # differs by 1-2 % between drivers and boards
    multiprocessors: int
    starts: tuple[int, ...]
    size: int  # memory slices
    engines: Engines
    most: int  # instances of it on one empty GPU
    media_limited: bool  # `most` is less than what placements allow
    compute_profiles: tuple[ComputeProfile, ...]  # the default one is last
    compute_listed: bool  # compute_profiles come from a listing, not from slice arithmetic
    verified: bool  # the row is in a real listing
    estimated: tuple[str, ...]  # fields that are estimates all the same

    @property
    def memory_gb(self) -> int:
        return memory_gb(self.name)

    @property
    def attributes(self) -> str:
        return attributes(self.name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """One GPU model. Made once by the table and compared by identity."""

    key: str  # "h100-sxm5-80gb"
    aliases: tuple[str, ...]
    nvml_names: tuple[str, ...]  # the first is what a new driver says
    pci_device_ids: tuple[int, ...]  # NVML's pciDeviceId is (this << 16) | 0x10DE
    family: str
    architecture: str
    compute_capability: tuple[int, int]
    compute_slices: int
    memory_slices: int
    memory_mib: int
    multiprocessors: int
    min_driver: str  # empty when not known
    mode_change_needs_reset: bool
    mode_survives_reboot: bool
    profiles: Mapping[str, Profile]  # in the driver's order
    gi_ids: Mapping[str, Mapping[tuple[int, int], int]]  # board variant -> (start, size) -> GPU-instance id
    auto_last: Mapping[int, int]  # gi_profile_id -> start that the driver takes last, against its rule
    verified: bool
    estimated: tuple[str, ...]
    placements_captured: bool  # from a listing of this very product, not of its family


def memory_gb(profile: str) -> int:
    """The number in a profile's name: 18 for 1g.18gb, which has 16.0 GiB, but 18 is what people ask for.

    0 for a name of no known form.
    """
    match = _NAME.fullmatch(profile)
    return int(match[2]) if match else 0


def attributes(profile: str) -> str:
    """What follows the size in a profile's name: "+me", "-me", "+gfx", "+me.all", or "" for a plain one."""
    match = _NAME.fullmatch(profile)
    return (match[3] or "") if match else ""


def memory_slices(profiles: Shapes) -> int:
    """Memory slices of the GPU that offers these profiles."""
    return max((max(p.starts, default=0) + p.size for p in profiles.values()), default=0)


def compute_slices(profiles: Shapes) -> int:
    """Compute slices of the GPU that offers these profiles, its whole-GPU profile among them."""
    return max((p.compute_slices for p in profiles.values()), default=0)


def mask(start: int, size: int) -> int:
    """The memory slices of a placement as bits."""
    return ((1 << size) - 1) << start


def show(counts: Mapping[str, int]) -> str:
    """A multiset as people write it: `1x3g.40gb + 4x1g.10gb`."""
    return " + ".join(f"{count}x{name}" for name, count in counts.items() if count) or "nothing"
