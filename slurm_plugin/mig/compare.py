"""Where our table and a GPU disagree. The GPU is right; whoever plans by the table should know."""

from collections.abc import Iterable

from slurm_plugin.mig.geometry import Product, Profile
from slurm_plugin.model import GpuProfile

MEMORY_TOLERANCE = 0.02  # drivers and boards differ by that much for one product


def differences(product: Product, answered: Iterable[GpuProfile]) -> tuple[str, ...]:
    """One line for each thing the GPU says otherwise, () when table and GPU agree."""
    theirs = {profile.name: profile for profile in answered}
    lines = [f"{name}: the table has it, the GPU does not offer it" for name in product.profiles if name not in theirs]
    for name, profile in theirs.items():
        if name in product.profiles:
            lines += _of_profile(product.profiles[name], profile)
        else:
            lines.append(f"{name}: the GPU offers it, the table has no such profile")
    return tuple(lines)


def _of_profile(ours: Profile, theirs: GpuProfile) -> list[str]:
    facts = (
        ("driver id", ours.gi_profile_id, theirs.gi_profile_id),
        ("compute slices", ours.compute_slices, theirs.compute_slices),
        ("memory slices", ours.size, theirs.size),
        ("starts", sorted(ours.starts), sorted(theirs.starts)),
        ("engines", tuple(ours.engines), theirs.engines or tuple(ours.engines)),
    )
    lines = [f"{ours.name}: {what} {says}, the table has {has}" for what, has, says in facts if has != says]
    if abs(theirs.memory_mib - ours.memory_mib) > MEMORY_TOLERANCE * ours.memory_mib:
        lines.append(f"{ours.name}: {theirs.memory_mib} MiB, the table has {ours.memory_mib}")
    return lines
