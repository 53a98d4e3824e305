import pytest

from slurm_plugin.mig.geometry import Product
from slurm_plugin.mig.layouts import remaining
from slurm_plugin.mig.products import load_products, product_named
from slurm_plugin.mig.serving import best_first, profiles_for_fraction, profiles_for_memory, weight

H100 = product_named("h100-80gb")
H200 = product_named("h200-141gb")
RTX = product_named("rtx-pro-6000")


def names(product: Product, *, gb: int) -> list[str]:
    return [p.name for p in profiles_for_memory(product.profiles, gb)]


def test_best_is_the_smallest_and_plainest() -> None:
    assert [p.name for p in best_first(list(H100.profiles.values())[::-1])] == [
        "1g.10gb",
        "1g.10gb+me",
        "1g.20gb",
        "2g.20gb",
        "3g.40gb",
        "4g.40gb",
        "7g.80gb",
    ]
    assert [p.name for p in best_first(RTX.profiles.values())][:5] == [
        "1g.24gb",
        "1g.24gb+gfx",
        "1g.24gb+me",
        "1g.24gb+me.all",
        "1g.24gb-me",
    ]


def test_memory_is_what_the_name_says() -> None:
    assert names(H100, gb=20) == ["1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert names(H100, gb=21) == ["3g.40gb", "4g.40gb", "7g.80gb"]
    assert names(H200, gb=18)[0] == "1g.18gb"  # 16.0 GiB, and called 18
    assert names(H100, gb=81) == []


@pytest.mark.parametrize(
    ("n", "best"), [(1, "7g.80gb"), (2, "3g.40gb"), (3, "2g.20gb"), (4, "1g.20gb"), (5, "1g.10gb"), (7, "1g.10gb")]
)
def test_a_fraction_is_of_compute_and_memory(n: int, best: str) -> None:
    assert profiles_for_fraction(H100.profiles, n)[0].name == best


def test_without_double_memory_a_quarter_is_two_slices() -> None:
    early = {name: row for name, row in H100.profiles.items() if name != "1g.20gb"}
    assert profiles_for_fraction(early, 4)[0].name == "2g.20gb"


@pytest.mark.parametrize("product", load_products().values(), ids=lambda p: p.key)
def test_n_nths_fit_one_gpu(product: Product) -> None:
    for n in range(1, product.compute_slices + 1):
        best = profiles_for_fraction(product.profiles, n)[0]
        a_half_for_a_third = product.family == "gb202" and n == 3
        assert remaining(product.profiles, (), best.name) >= (2 if a_half_for_a_third else n)


@pytest.mark.parametrize(
    ("product", "eighths"),
    [
        (H100, {"1g.10gb": 1, "1g.10gb+me": 1, "1g.20gb": 2, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 4, "7g.80gb": 8}),
        (product_named("a30"), {"1g.6gb": 2, "1g.6gb+me": 2, "2g.12gb": 4, "2g.12gb+me": 4, "4g.24gb": 8}),
        (RTX, {name: {"1": 2, "2": 4, "4": 8}[name[0]] for name in RTX.profiles}),
    ],
)
def test_weight_is_memory_in_eighths(product: Product, eighths: dict[str, int]) -> None:
    assert {name: weight(product.profiles, name) for name in product.profiles} == eighths
