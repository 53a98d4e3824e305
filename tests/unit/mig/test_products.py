import math
from decimal import ROUND_HALF_UP, Decimal

import pytest

from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.geometry import Product, Profile, attributes, memory_gb, memory_slices
from slurm_plugin.mig.layouts import all_layouts, engine_limit, remaining
from slurm_plugin.mig.products import load_products, product_named, product_of
from slurm_plugin.model import GpuProfile

PRODUCTS = list(load_products().values())
ROWS = [
    pytest.param(product, row, id=f"{product.key}-{row.name}")
    for product in PRODUCTS
    for row in product.profiles.values()
]
each_product = pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.key)
each_row = pytest.mark.parametrize(("product", "row"), ROWS)


def test_the_table_is_whole() -> None:
    assert len(PRODUCTS) == 19
    assert len(ROWS) == 143
    assert sum(len(row.compute_profiles) for product in PRODUCTS for row in product.profiles.values()) == 293
    assert sum(p.placements_captured for p in PRODUCTS) == 5


@each_row
def test_a_profile_lies_within_its_gpu(product: Product, row: Profile) -> None:
    assert all(start >= 0 and start + row.size <= product.memory_slices for start in row.starts)
    assert row.compute_slices <= product.compute_slices
    assert row.name.startswith(f"{row.compute_slices}g.")


@each_row
def test_as_many_instances_fit_as_the_listing_says(product: Product, row: Profile) -> None:
    assert remaining(product.profiles, (), row.name) == row.most
    by_placement_alone = {name: _without_engines(p) for name, p in product.profiles.items()}
    assert (remaining(by_placement_alone, (), row.name) > row.most) == row.media_limited


def _without_engines(profile: Profile) -> GpuProfile:
    return GpuProfile(
        name=profile.name,
        gi_profile_id=0,
        compute_slices=profile.compute_slices,
        memory_mib=profile.memory_mib,
        starts=profile.starts,
        size=profile.size,
    )


@each_row
def test_the_name_follows_from_the_memory(product: Product, row: Profile) -> None:
    """The driver names a profile by eighths of the GPU's memory in whole GiB: a mistyped figure would show."""
    total_gib = math.ceil(product.memory_mib / 1024)
    gb = Decimal(math.ceil(8 * row.memory_mib / product.memory_mib) * total_gib) / 8
    assert row.memory_gb == int(gb.quantize(Decimal(1), rounding=ROUND_HALF_UP))


@each_row
def test_compute_profiles_fit_their_instance(product: Product, row: Profile) -> None:
    *partial, whole = row.compute_profiles
    assert whole.default
    assert whole.starts == (0,)
    assert whole.name == row.name.removesuffix(row.attributes)
    assert whole.multiprocessors == row.multiprocessors
    for compute in partial:
        assert not compute.default
        assert all(start + compute.compute_slices <= row.compute_slices for start in compute.starts)
        assert compute.multiprocessors <= row.multiprocessors
        assert compute.name in ("", f"{compute.compute_slices}c.{whole.name}")


@each_product
def test_ids_are_unique_and_cover_every_placement(product: Product) -> None:
    rows = product.profiles.values()
    assert len({row.gi_profile_id for row in rows}) == len({row.nvml_constant for row in rows}) == len(rows)
    placements = {(start, row.size) for row in rows for start in row.starts}
    for ids in product.gi_ids.values():
        assert placements <= set(ids)
        assert len(set(ids.values())) == len(ids)
        assert max(ids.values()) <= 14


@each_product
def test_placements_alone_never_ask_for_more_than_the_gpu_has(product: Product) -> None:
    """What a planner relies on: compute slices, multiprocessors and memory need no check of their own."""
    if (
        product.family == "gb202"
    ):  # 11 profiles: the plain ones stand for all, attributes change neither size nor slices
        profiles = {name: row for name, row in product.profiles.items() if not row.attributes}
    else:
        profiles = dict(product.profiles)
    for layout in all_layouts(profiles):
        rows = [profiles[name] for name, _ in layout]
        assert sum(row.compute_slices for row in rows) <= product.compute_slices
        assert sum(row.multiprocessors for row in rows) <= product.multiprocessors
        assert sum(row.memory_mib for row in rows) <= product.memory_mib


@each_product
def test_the_whole_gpu_profile_tells_slices_and_engines(product: Product) -> None:
    whole = next(row for row in product.profiles.values() if row.gi_profile_id == 0)
    assert memory_slices(product.profiles) == product.memory_slices == whole.size
    assert whole.compute_slices == product.compute_slices
    assert engine_limit(product.profiles) == whole.engines


def test_both_board_variants_are_known_for_eight_slice_gpus() -> None:
    h100 = product_named("h100-80gb")
    assert h100.gi_ids["identity"][(4, 4)] == 2
    assert h100.gi_ids["swapped"][(4, 4)] == 1
    assert set(product_named("a30").gi_ids) == {"identity"}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h100-80gb", "h100-sxm5-80gb"),
        ("H100-SXM5-80GB", "h100-sxm5-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        (" a100-40gb ", "a100-sxm4-40gb"),
        ("h200-141gb", "h200-sxm-141gb"),
        ("a30", "a30-24gb"),
    ],
)
def test_a_product_has_many_names(name: str, key: str) -> None:
    assert product_named(name).key == key


def test_no_name_means_two_products() -> None:
    names = [name for p in PRODUCTS for name in {n.lower() for n in (p.key, *p.aliases, *p.nvml_names)}]
    assert len(names) == len(set(names))


def test_a_wrong_product_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="h100-81gb") as error:
        product_named("h100-81gb")
    assert "h100-80gb" in error.value.hint
    with pytest.raises(ConfigError) as error:
        product_named("toaster")
    assert "h100-sxm5-80gb" in error.value.hint


def test_a_gpu_is_found_by_nvmls_name_and_an_unknown_one_is_no_error() -> None:
    assert product_of("NVIDIA A100-SXM4-40GB") is product_of("A100-SXM4-40GB") is product_named("a100-40gb")
    assert product_of("NVIDIA T4") is None
    assert product_of("h100-80gb") is None


@pytest.mark.parametrize(
    ("name", "gb", "extra"),
    [
        ("1g.10gb", 10, ""),
        ("1g.18gb+me", 18, "+me"),
        ("2g.48gb+me.all", 48, "+me.all"),
        ("1g.24gb-me", 24, "-me"),
        ("odd", 0, ""),
    ],
)
def test_names_are_read(name: str, gb: int, extra: str) -> None:
    assert (memory_gb(name), attributes(name)) == (gb, extra)
