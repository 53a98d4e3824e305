from collections.abc import Iterable, Mapping
from itertools import product as cartesian

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.mig.geometry import Layout, Placed, Product, Profile
from slurm_plugin.mig.layouts import (
    all_layouts,
    arrangements,
    auto_placement,
    conflict,
    counts_of,
    feasible,
    maximal_layouts,
    place,
    remaining,
    why_impossible,
)
from slurm_plugin.mig.products import product_named
from slurm_plugin.model import GpuProfile

A100 = product_named("a100-40gb")
A30 = product_named("a30")
H100 = product_named("h100-80gb")
H200 = product_named("h200-141gb")
RTX = product_named("rtx-pro-6000")


def _some(product: Product, ids: Iterable[int]) -> Mapping[str, Profile]:
    wanted = set(ids)
    return {name: row for name, row in product.profiles.items() if row.gi_profile_id in wanted}


def _name(product: Product, gi_profile_id: int) -> str:
    return next(row.name for row in product.profiles.values() if row.gi_profile_id == gi_profile_id)


# Counted by exhaustive enumeration elsewhere; the 19 is NVIDIA's own figure for the A100.
@pytest.mark.parametrize(
    ("product", "ids", "positional", "maximal", "multisets", "maximal_multisets"),
    [
        pytest.param(A100, (19, 14, 9, 5, 0), 297, 19, 37, 14, id="a100"),
        pytest.param(A100, (19, 15, 14, 9, 5, 0), 722, 78, 77, 38, id="a100-double-memory"),
        pytest.param(H100, (19, 15, 14, 9, 5, 0), 722, 78, 77, 38, id="h100-double-memory"),
        pytest.param(A30, (14, 5, 0), 25, 5, 9, 4, id="a30"),
        pytest.param(RTX, (14, 5, 0), 25, 5, 9, 4, id="rtx-pro-6000"),
    ],
)
def test_layouts_are_as_many_as_counted(
    product: Product, ids: tuple[int, ...], positional: int, maximal: int, multisets: int, maximal_multisets: int
) -> None:
    profiles = _some(product, ids)
    every, full = list(all_layouts(profiles)), list(maximal_layouts(profiles))
    assert len(every) == len(set(every)) == positional
    assert len(full) == len(set(full)) == maximal
    assert len(_multisets(every)) == multisets
    assert len(_multisets(full)) == maximal_multisets
    assert max(sum(profiles[name].compute_slices for name, _ in layout) for layout in every) == product.compute_slices
    assert all(feasible(profiles, layout) for layout in every)


def _multisets(layouts: Iterable[Layout]) -> set[tuple[tuple[str, int], ...]]:
    return {tuple(sorted(counts_of(layout).items())) for layout in layouts}


def test_waste_of_maximal_layouts() -> None:
    profiles = _some(A100, (19, 15, 14, 9, 5, 0))
    full = [
        (sum(profiles[n].size for n, _ in layout), sum(profiles[n].compute_slices for n, _ in layout))
        for layout in maximal_layouts(profiles)
    ]
    assert sum(1 for used in full if used == (8, 7)) == 16
    assert min(compute for _, compute in full) == 4


# What real boards answered for the free instances of each profile.
@pytest.mark.parametrize(
    ("product", "state", "free"),
    [
        (H200, [(19, 4), (19, 6)], {19: 5, 20: 1, 15: 2, 14: 2, 9: 1, 5: 1, 0: 0}),
        (H100, [(19, 4), (19, 6)], {19: 5, 20: 1, 15: 2, 14: 2, 9: 1, 5: 1, 0: 0}),
        (H100, [(9, 0), (20, 4), (19, 6)], {19: 1, 20: 0, 15: 0, 14: 0, 9: 0, 5: 0, 0: 0}),
    ],
)
def test_remaining_is_what_boards_answered(
    product: Product, state: list[tuple[int, int]], free: dict[int, int]
) -> None:
    layout = [(_name(product, gi), start) for gi, start in state]
    assert {
        row.gi_profile_id: remaining(product.profiles, layout, row.name) for row in product.profiles.values()
    } == free


def test_all_media_engines_in_one_instance_leave_only_profiles_without() -> None:
    layout = [("1g.24gb+me.all", 0)]
    left = {name for name in RTX.profiles if remaining(RTX.profiles, layout, name)}
    assert left == {"1g.24gb-me", "2g.48gb-me"}


# Instances created one after another, the driver choosing the place: profile ids, then the GPU-instance ids seen.
# None is a refusal.
TRACES: list[tuple[Product, str, list[int], list[int | None]]] = [
    (A100, "identity", [19, 19, 14, 9], [13, 11, 3, None]),
    (A100, "identity", [9, 19, 14, 19], [2, 7, 4, 8]),
    (A100, "swapped", [9, 19, 14, 19], [1, 11, 6, 12]),
    (A100, "identity", [14, 19, 19, 19, 19, 19], [5, 13, 7, 8, 9, 10]),
    (H100, "identity", [19] * 7, [13, 11, 12, 7, 8, 9, 10]),
    (H100, "swapped", [19] * 7, [9, 7, 8, 11, 12, 13, 14]),
    (A100, "identity", [9, 9], [2, 1]),
    (H100, "swapped", [9, 14, 19], [1, 5, 13]),
    (product_named("h100-nvl"), "swapped", [9, 15, 19], [1, 5, 13]),
    (product_named("gh200"), "identity", [15, 15, 15], [5, 3, 4]),
    (H200, "identity", [19, 19], [13, 11]),
    (RTX, "identity", [14, 14, 14, 14], [3, 4, 5, 6]),
    (RTX, "identity", [5, 14, 14], [1, 5, 6]),
]


@pytest.mark.parametrize(("product", "variant", "create", "seen"), TRACES)
def test_the_drivers_own_placement(product: Product, variant: str, create: list[int], seen: list[int | None]) -> None:
    layout: list[Placed] = []
    got: list[int | None] = []
    for gi_profile_id in create:
        name = _name(product, gi_profile_id)
        start = auto_placement(product, layout, name)
        if start is None:
            got.append(None)
            continue
        layout.append((name, start))
        got.append(product.gi_ids[variant][(start, product.profiles[name].size)])
    assert got == seen


def test_order_of_a_layout_does_not_matter() -> None:
    for counts in ({"3g.20gb": 1, "4g.20gb": 1}, {"4g.20gb": 1, "3g.20gb": 1}):
        assert why_impossible(A100.profiles, counts) is None
        assert place(A100.profiles, counts) == (("4g.20gb", 0), ("3g.20gb", 4))


@pytest.mark.parametrize(
    ("product", "counts", "says"),
    [
        (
            A100,
            {"1g.10gb": 4, "1g.5gb": 3},
            ["4x1g.10gb + 3x1g.5gb", "11 memory slices", "has 8", "what fits of it: 4x1g.10gb"],
        ),
        (
            H100,
            {"2g.10gb": 1},
            ["no profile '2g.10gb'", "did you mean 2g.20gb", "offered: 1g.10gb, 1g.10gb+me, 1g.20gb"],
        ),
        (H100, {"1g.10gb+me": 2}, ["2 OFA engines", "has 1", "what fits of it: 1x1g.10gb+me"]),
        (
            H100,
            {"1g.10gb": 8},
            ["no arrangement", "1g.10gb starts at 0, 1, 2, 3, 4, 5, 6", "what fits of it: 7x1g.10gb"],
        ),
        (H100, {"4g.40gb": 2}, ["no arrangement", "what fits of it: 1x4g.40gb"]),
        (H100, {"7g.80gb": 1, "1g.10gb": 1}, ["9 memory slices", "what fits of it: 1x7g.80gb"]),
        (H100, {"1g.10gb": -1}, ["-1 instances of 1g.10gb"]),
        (H100, {"1g.10gb": 10**9}, ["1000000000 memory slices", "what fits of it: 7x1g.10gb"]),
    ],
)
def test_an_impossible_layout_is_told_why(product: Product, counts: dict[str, int], says: list[str]) -> None:
    reason = why_impossible(product.profiles, counts)
    assert reason is not None
    for part in says:
        assert part in reason
    if all(name in product.profiles for name in counts) and sum(counts.values()) < 100:
        assert min(counts.values()) < 0 or place(product.profiles, counts) is None


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ([("3g.40gb", 1)], "3g.40gb cannot start at 1, only at 0, 4"),
        ([("3g.40gb", 0), ("1g.10gb", 3)], "1g.10gb at 3 overlaps 3g.40gb"),
        ([("9g.1gb", 0)], "no profile '9g.1gb'"),
        ([("1g.10gb+me", 0), ("1g.10gb+me", 1)], "2 OFA engines are needed and the GPU has 1"),
    ],
)
def test_a_conflict_is_named(layout: Layout, says: str) -> None:
    assert says in (conflict(H100.profiles, layout) or "")
    assert not feasible(H100.profiles, layout)


def test_every_multiset_that_has_a_layout_is_placed_and_no_other() -> None:
    profiles = H100.profiles
    possible = _multisets(all_layouts(profiles))
    ranges = [range(min(row.most, 4) + 2) for row in profiles.values()]
    for numbers in cartesian(*ranges):
        counts = {name: number for name, number in zip(profiles, numbers, strict=True) if number}
        if sum(profiles[name].size * number for name, number in counts.items()) > 9:
            continue  # far too big: the same refusal as for 9 slices
        expected = not counts or tuple(sorted(counts.items())) in possible
        assert (place(profiles, counts) is not None) == expected, counts
        assert (why_impossible(profiles, counts) is None) == expected, counts


H100_LAYOUTS = list(all_layouts(H100.profiles))


@given(st.sampled_from(H100_LAYOUTS), st.data())
def test_place_keeps_what_it_can_and_never_touches_what_is_fixed(layout: Layout, data: st.DataObject) -> None:
    fixed = [placed for placed in layout if data.draw(st.booleans())]
    keep = [placed for placed in layout if placed not in fixed]
    counts = counts_of(keep)
    assert place(H100.profiles, counts, keep=keep, fixed=fixed) == tuple(keep)
    again = place(H100.profiles, counts, fixed=fixed)
    assert again is not None
    assert counts_of(again) == counts
    assert feasible(H100.profiles, [*fixed, *again])


def test_place_leaves_the_most_room() -> None:
    assert place(H100.profiles, {"1g.10gb": 1}) == (("1g.10gb", 6),)
    assert place(H100.profiles, {"1g.10gb": 1}, fixed=[("4g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6)]) is None


def test_no_multiset_has_more_arrangements_than_expected() -> None:
    for product in (H100, RTX):
        by_multiset = _multisets(all_layouts(product.profiles))
        assert max(len(arrangements(product.profiles, dict(counts))) for counts in by_multiset) < 1_000


def test_what_a_gpu_answers_serves_as_well_as_the_table() -> None:
    answered = {
        row.name: GpuProfile(
            name=row.name,
            gi_profile_id=row.gi_profile_id,
            compute_slices=row.compute_slices,
            memory_mib=row.memory_mib,
            starts=row.starts,
            size=row.size,
        )
        for row in H100.profiles.values()
    }
    assert place(answered, {"3g.40gb": 1, "4g.40gb": 1}) == (("4g.40gb", 0), ("3g.40gb", 4))
    assert place(answered, {"1g.10gb+me": 2}) is not None  # it told no engines: then NVML refuses, not we
    assert place(H100.profiles, {"1g.10gb+me": 2}) is None
