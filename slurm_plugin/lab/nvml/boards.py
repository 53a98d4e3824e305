"""A board of some product, as the library's state file has it."""

import uuid
from dataclasses import dataclass

from slurm_plugin.errors import LabError
from slurm_plugin.lab.nvml import layout
from slurm_plugin.mig.geometry import ComputeProfile, Product, Profile
from slurm_plugin.mig.products import product_named

WITHOUT_MIG = "l40s-48gb"  # not in the table of products, which has only GPUs with MIG
_SPACE = uuid.UUID("6f1c0f6e-7a0e-5b7e-9d51-0a4f2b1f8c11")  # of the names that UUIDs are made from
_NO_START = layout.STARTS  # of Profile.taken_last


@dataclass(frozen=True, slots=True, kw_only=True)
class SimGpu:
    """One GPU of a node to be made."""

    product: str = "h100-80gb"  # any name the table of products knows, or `l40s-48gb` for one without MIG
    variant: str = "identity"  # how this board numbers its GPU instances: identity or swapped
    minor: int | None = None  # the N of /dev/nvidiaN; None: its index
    mig: bool = True  # MIG mode on from the start
    passthrough: bool = False  # seen from a virtual machine: the GPU can't be reset from here


def board(gpu: SimGpu, *, index: int, seed: str) -> layout.Board:
    """The board at this index of the node. The same seed gives the same UUIDs.

    Raises ConfigError for an unknown product, LabError for a variant its boards do not come in.
    """
    out = layout.Board()
    identity = uuid.uuid5(_SPACE, f"{seed}/{index}")
    out.uuid = f"GPU-{identity}".encode()
    out.serial = str(1_320_000_000_000 + identity.int % 1_000_000_000).encode()
    out.pci_bus = 0x0A + 0x10 * index
    out.minor = index if gpu.minor is None else gpu.minor
    out.passthrough = gpu.passthrough
    for gi in range(layout.GIS):
        for ci in range(layout.CIS):
            out.mig_uuid[gi][ci].value = f"MIG-{uuid.uuid5(identity, f'{gi}/{ci}')}".encode()
    if gpu.product == WITHOUT_MIG:
        _without_mig(out)
    else:
        _with_mig(out, product_named(gpu.product), gpu.variant)
    return out


def _without_mig(out: layout.Board) -> None:
    out.name = b"NVIDIA L40S"
    out.pci_device_id = 0x26B9
    out.compute_major, out.compute_minor = 8, 9
    out.multiprocessors = 142
    out.memory_mib = 46068


def _with_mig(out: layout.Board, product: Product, variant: str) -> None:
    if variant not in product.gi_ids:
        raise LabError(
            f"no {product.key} board of variant '{variant}' is known", hint=f"one of: {', '.join(product.gi_ids)}"
        )
    out.name = product.nvml_names[0].encode()
    out.pci_device_id = product.pci_device_ids[0]
    out.compute_major, out.compute_minor = product.compute_capability
    out.multiprocessors = product.multiprocessors
    out.memory_mib = product.memory_mib
    out.compute_slices = out.max_mig_devices = product.compute_slices
    out.memory_slices = product.memory_slices
    out.mode_needs_reset = product.mode_change_needs_reset
    out.mode_persists = product.mode_survives_reboot
    out.profiles = len(product.profiles)
    for nth, profile in enumerate(product.profiles.values()):
        _profile(out.profile[nth], profile, product, variant)


def _profile(out: layout.Profile, profile: Profile, product: Product, variant: str) -> None:
    out.id, out.constant = profile.gi_profile_id, profile.nvml_constant
    out.slices, out.multiprocessors, out.max_instances = profile.compute_slices, profile.multiprocessors, profile.most
    out.engines[:] = profile.engines
    out.taken_last = product.auto_last.get(profile.gi_profile_id, _NO_START)
    _slots(out.slots, profile.starts, profile.size)
    for nth, start in enumerate(profile.starts):
        out.gi_ids[nth] = product.gi_ids[variant][start, profile.size]
    out.memory_mib = profile.memory_mib
    out.name = profile.name.encode()
    out.ci_profiles = len(profile.compute_profiles)
    for nth, compute in enumerate(profile.compute_profiles):
        _ci_profile(out.ci[nth], compute)


def _ci_profile(out: layout.CiProfile, compute: ComputeProfile) -> None:
    out.id, out.slices, out.multiprocessors = compute.id, compute.compute_slices, compute.multiprocessors
    out.max_instances, out.is_default = len(compute.starts), compute.default
    _slots(out.slots, compute.starts, compute.compute_slices)
    out.name = compute.name.encode()


def _slots(out: layout.Slots, starts: tuple[int, ...], size: int) -> None:
    out.count, out.size = len(starts), size
    out.starts[: len(starts)] = starts
