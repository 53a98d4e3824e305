"""The table of products, `products.yaml` beside this file, read once a process and only when somebody asks."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.geometry import ComputeProfile, Engines, Product, Profile

_MARKS = {"m": "memory_mib", "s": "multiprocessors", "e": "engines", "p": "starts"}
_SUGGESTIONS = 4


@cache
def load_products() -> Mapping[str, Product]:
    """Every product of the table by its key. Costs about 20 ms the first time."""
    import yaml  # here, so that a command that never asks for geometry does not pay for it

    text = Path(__file__).with_name("products.yaml").read_text(encoding="utf-8")
    table = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
    return {row["key"]: _product(row, table) for row in table["products"]}


def product_named(name: str) -> Product:
    """The product meant by a key (`h100-sxm5-80gb`), a short name (`h100-80gb`) or NVML's own name, in any case.

    Raises ConfigError with the nearest names.
    """
    names = _names()
    found = names.get(name.strip().lower())
    if found is None:
        near = get_close_matches(name.strip().lower(), names, n=_SUGGESTIONS)
        raise ConfigError(
            f"no GPU product '{name}' is known",
            hint=f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(load_products())}",
        )
    return found


def product_of(nvml_name: str) -> Product | None:
    """The product of a GPU that calls itself so, or None: it works all the same, a real GPU answers for itself."""
    return _nvml_names().get(nvml_name)


@cache
def _names() -> Mapping[str, Product]:
    products = load_products().values()
    return {name.lower(): p for p in products for name in (p.key, *p.aliases, *p.nvml_names)}


@cache
def _nvml_names() -> Mapping[str, Product]:
    return {name: p for p in load_products().values() for name in p.nvml_names}


def _product(row: Mapping[str, Any], table: Mapping[str, Any]) -> Product:
    shape = table["shapes"][row["shape"]]
    family = table["families"][shape["family"]]
    major, minor = row["compute_capability"].split(".")
    return Product(
        key=row["key"],
        aliases=tuple(row.get("aliases", ())),
        nvml_names=tuple(row["nvml_names"]),
        pci_device_ids=tuple(row["pci_device_ids"]),
        family=shape["family"],
        architecture=row["architecture"],
        compute_capability=(int(major), int(minor)),
        compute_slices=family["compute_slices"],
        memory_slices=family["memory_slices"],
        memory_mib=row["memory_mib"],
        multiprocessors=row["multiprocessors"],
        min_driver=row.get("min_driver", ""),
        mode_change_needs_reset=shape["mode_change_needs_reset"],
        mode_survives_reboot=shape["mode_survives_reboot"],
        profiles=_profiles(row, shape["rows"]),
        gi_ids={variant: _gi_ids(by_size) for variant, by_size in family["gi_ids"].items()},
        auto_last=family.get("auto_last", {}),
        verified=row["verified"],
        estimated=tuple(row.get("estimated", ())),
        placements_captured=row["placements_from"] == "captured",
    )


def _gi_ids(by_size: Mapping[int, Sequence[int]]) -> Mapping[tuple[int, int], int]:
    return {(size * nth, size): gi for size, ids in by_size.items() for nth, gi in enumerate(ids)}


def _profiles(product: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Profile]:
    named = list(zip(product["profiles"].items(), rows, strict=True))
    # A compute instance has the multiprocessors of the GPU instance of its width; that of the double-memory 1g its own.
    widths = {shape["slices"]: values[1] for (_, values), shape in reversed(named)}
    double = next((values[1] for (_, values), shape in named if shape["id"] == 15), 0)
    listed = product.get("compute_listed", ())

    def compute(name: str, shape: Mapping[str, Any]) -> tuple[ComputeProfile, ...]:
        base = name.partition("gb")[0] + "gb"  # attributes are dropped in a MIG device's name
        last = len(shape["compute"]) - 1
        return tuple(
            ComputeProfile(
                id=ci,
                name=base if nth == last else "" if ci == _DOUBLE_CI else f"{slices}c.{base}",
                compute_slices=slices,
                starts=tuple(starts),
                multiprocessors=double if ci == _DOUBLE_CI else widths[slices],
                default=nth == last,
            )
            for nth, (ci, slices, starts) in enumerate(shape["compute"])
        )

    return {name: _profile(name, values, shape, compute(name, shape), listed) for (name, values), shape in named}


_DOUBLE_CI = 7  # the compute-instance profile of the double-memory 1g


def _profile(
    name: str,
    values: Sequence[Any],
    shape: Mapping[str, Any],
    compute: tuple[ComputeProfile, ...],
    listed: Sequence[int],
) -> Profile:
    memory_mib, multiprocessors, marks = (*values, "")[:3]
    return Profile(
        name=name,
        gi_profile_id=shape["id"],
        nvml_constant=shape["nvml"],
        compute_slices=shape["slices"],
        memory_mib=memory_mib,
        multiprocessors=multiprocessors,
        starts=tuple(shape["starts"]),
        size=shape["size"],
        engines=Engines(*shape["engines"]),
        most=shape["most"],
        media_limited=shape.get("media", False),
        compute_profiles=compute,
        compute_listed=shape["id"] in listed,
        verified="u" not in marks,
        estimated=tuple(field for mark, field in _MARKS.items() if mark in marks),
    )
