from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.change import Blocked, Change, Existing, converge
from slurm_plugin.mig.geometry import Layout, Placed, Product
from slurm_plugin.mig.layouts import all_layouts, counts_of, feasible
from slurm_plugin.mig.products import product_named
from slurm_plugin.model import GpuProfile, Instance

A100 = product_named("a100-40gb")
H100 = product_named("h100-80gb")
RTX = product_named("rtx-pro-6000")


def on(
    product: Product, layout: Iterable[Placed], busy: Iterable[Placed] = (), foreign: Iterable[Placed] = ()
) -> list[Existing]:
    held, alien = set(busy), set(foreign)
    return [
        Existing(
            profile=name,
            start=start,
            size=product.profiles[name].size,
            busy=(name, start) in held,
            foreign=(name, start) in alien,
        )
        for name, start in layout
    ]


def carried_out(product: Product, current: Iterable[Existing], change: Change) -> list[Existing]:
    left = [e for e in current if e.placed not in change.destroy]
    return left + on(product, change.create)


def test_an_empty_gpu_gets_its_layout() -> None:
    change = converge(H100.profiles, [], {"1g.10gb": 4, "3g.40gb": 1})
    assert change == Change(create=change.create)
    assert counts_of(change.create) == {"1g.10gb": 4, "3g.40gb": 1}
    assert ("3g.40gb", 4) in change.create  # the only arrangement: 1g cannot start at 7


def test_a_gpu_with_its_layout_is_left_alone() -> None:
    layout: Layout = (("3g.40gb", 0), ("1g.10gb", 4), ("1g.10gb", 6))
    current = on(H100, layout, busy=[("1g.10gb", 4)])
    change = converge(H100.profiles, current, {"1g.10gb": 2, "3g.40gb": 1, "7g.80gb": 0})
    assert change == Change(keep=layout)
    assert change.settled
    assert change.reached


def test_a_busy_instance_of_the_wanted_layout_stays_where_it_is() -> None:
    layout: Layout = (("2g.10gb", 0), ("1g.5gb", 2), ("1g.5gb", 3), ("3g.20gb", 4))
    change = converge(A100.profiles, on(A100, layout, busy=[("1g.5gb", 2)]), {"1g.5gb": 7})
    assert change.keep == (("1g.5gb", 2), ("1g.5gb", 3))
    assert change.destroy == (("2g.10gb", 0), ("3g.20gb", 4))
    assert change.create == tuple(("1g.5gb", start) for start in (0, 1, 4, 5, 6))
    assert not change.blocked_by
    assert not change.reached


def test_as_few_idle_instances_as_can_be_are_destroyed() -> None:
    change = converge(
        H100.profiles, on(H100, [("1g.10gb", 0), ("1g.10gb", 2), ("2g.20gb", 4)]), {"1g.10gb": 1, "2g.20gb": 1}
    )
    assert change.keep in ((("1g.10gb", 0), ("2g.20gb", 4)), (("1g.10gb", 2), ("2g.20gb", 4)))
    assert len(change.destroy) == 1
    assert not change.create


def test_a_busy_instance_in_the_way_is_waited_for_by_name() -> None:
    layout: Layout = (("1g.5gb", 1), ("1g.5gb", 5))
    change = converge(A100.profiles, on(A100, layout, busy=[("1g.5gb", 1)]), {"4g.20gb": 1, "3g.20gb": 1})
    assert change.destroy == (("1g.5gb", 5),)
    assert change.create == (("3g.20gb", 4),)
    assert change.blocked_by == (Blocked(wanted=("4g.20gb", 0), by=(("1g.5gb", 1),)),)
    assert change.leaving == (("1g.5gb", 1),)


def test_capacity_beside_a_foreign_instance_is_what_still_places() -> None:
    foreign: Layout = (("3g.20gb", 0),)
    change = converge(A100.profiles, on(A100, foreign, foreign=foreign), {"1g.5gb": 7})
    assert change.create == (("1g.5gb", 4), ("1g.5gb", 5), ("1g.5gb", 6))
    assert [b.by for b in change.blocked_by] == [foreign] * 4
    assert not change.keep
    assert not change.leaving
    assert not change.destroy


def test_a_foreign_instance_is_never_one_of_the_wanted() -> None:
    current = on(A100, [("3g.20gb", 0)], foreign=[("3g.20gb", 0)])
    change = converge(A100.profiles, current, {"3g.20gb": 1})
    assert change == Change(create=(("3g.20gb", 4),))


def test_a_foreign_instance_of_an_unknown_profile_is_kept_clear_of() -> None:
    current = [Existing(profile="2g.66gb", start=4, size=2, foreign=True)]
    change = converge(H100.profiles, current, {"3g.40gb": 1, "4g.40gb": 1})
    assert change.create == (("4g.40gb", 0),)
    assert change.blocked_by == (Blocked(wanted=("3g.40gb", 4), by=(("2g.66gb", 4),)),)


def test_a_busy_one_too_many_is_leaving() -> None:
    layout: Layout = (("1g.10gb", 0), ("1g.10gb", 1))
    change = converge(H100.profiles, on(H100, layout, busy=layout), {"1g.10gb": 1})
    assert len(change.keep) == len(change.leaving) == 1
    assert change.settled
    assert not change.reached


def test_a_half_made_instance_is_made_anew_unless_it_is_held() -> None:
    half = Existing(profile="1g.10gb", start=6, size=1, whole=False)
    change = converge(H100.profiles, [half], {"1g.10gb": 1})
    assert change == Change(destroy=(("1g.10gb", 6),), create=(("1g.10gb", 6),))
    foreign = converge(H100.profiles, [replace(half, foreign=True)], {"1g.10gb": 1})
    assert foreign.destroy == ()
    assert foreign.create != (("1g.10gb", 6),)


def test_engines_held_by_a_leaving_instance_are_waited_for() -> None:
    current = on(H100, [("1g.10gb+me", 0)], busy=[("1g.10gb+me", 0)])
    change = converge(H100.profiles, current, {"4g.40gb": 1, "1g.10gb+me": 1, "1g.10gb": 1})
    assert change.create == tuple(p for p in change.create if p[0] == "1g.10gb")
    assert len(change.create) == 1
    assert {b.wanted[0]: b.by for b in change.blocked_by} == {
        "4g.40gb": (("1g.10gb+me", 0),),
        "1g.10gb+me": (("1g.10gb+me", 0),),
    }


def test_a_layout_that_can_never_be_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"4x1g\.10gb \+ 3x1g\.5gb does not fit one GPU: 11 memory slices"):
        converge(A100.profiles, [], {"1g.10gb": 4, "1g.5gb": 3})


def test_wanting_nothing_clears_what_is_idle() -> None:
    layout: Layout = (("3g.40gb", 0), ("1g.10gb", 4), ("1g.10gb", 6))
    current = on(H100, layout, busy=[("1g.10gb", 4)], foreign=[("1g.10gb", 6)])
    change = converge(H100.profiles, current, {})
    assert change == Change(destroy=(("3g.40gb", 0),), leaving=(("1g.10gb", 4),))


def test_a_gpu_that_offers_no_profiles_can_only_be_left_alone() -> None:
    stranger = Existing(profile="1g.10gb", start=0, size=1, foreign=True)
    assert converge({}, [stranger], {}) == Change()
    with pytest.raises(ConfigError, match=r"no profile '1g\.10gb' on this GPU"):
        converge({}, [stranger], {"1g.10gb": 1})


def test_what_the_gpu_says_of_its_instances_is_taken_over() -> None:
    instance = Instance(profile="2g.20gb", start=2, size=2, gi=4, ci=0, uuid="MIG-x", foreign=False)
    assert Existing.of(instance, busy=True) == Existing(profile="2g.20gb", start=2, size=2, busy=True)
    assert not Existing.of(replace(instance, ci=-1), busy=False).whole
    assert Existing.of(replace(instance, foreign=True), busy=False).held


def test_a_gpus_own_profiles_will_do() -> None:
    profiles = {
        "1g.10gb": GpuProfile(
            name="1g.10gb", gi_profile_id=19, compute_slices=1, memory_mib=9984, starts=tuple(range(7)), size=1
        ),
        "7g.80gb": GpuProfile(name="7g.80gb", gi_profile_id=0, compute_slices=7, memory_mib=81152, starts=(0,), size=8),
    }
    change = converge(profiles, [Existing(profile="7g.80gb", start=0, size=8)], {"1g.10gb": 7})
    assert change.destroy == (("7g.80gb", 0),)
    assert len(change.create) == 7


LAYOUTS = {product.key: [(), *all_layouts(product.profiles)] for product in (H100, RTX)}


@st.composite
def situations(draw: st.DrawFn) -> tuple[Product, list[Existing], Mapping[str, int]]:
    product = draw(st.sampled_from((H100, RTX)))
    now, then = draw(st.sampled_from(LAYOUTS[product.key])), draw(st.sampled_from(LAYOUTS[product.key]))
    kinds = draw(st.lists(st.sampled_from("iiibbfh"), min_size=len(now), max_size=len(now)))
    current = [
        replace(e, busy=kind == "b", foreign=kind == "f", whole=kind != "h")
        for e, kind in zip(on(product, now), kinds, strict=True)
    ]
    return product, current, counts_of(then)


@settings(max_examples=300, deadline=None)
@given(situations())
def test_a_change_is_safe_possible_complete_and_the_last_one(
    situation: tuple[Product, list[Existing], Mapping[str, int]],
) -> None:
    product, current, wanted = situation
    change = converge(product.profiles, current, wanted)

    held = {e.placed for e in current if e.held}
    assert not held.intersection(change.destroy)
    assert set(change.keep).isdisjoint(e.placed for e in current if e.foreign or (not e.whole and not e.busy))
    assert set(change.leaving) == {e.placed for e in current if e.busy and not e.foreign} - set(change.keep)

    after = carried_out(product, current, change)
    assert feasible(product.profiles, [e.placed for e in after])
    assert counts_of(sorted((*change.keep, *change.create, *(b.wanted for b in change.blocked_by)))) == dict(
        sorted(wanted.items())
    )
    assert {e.placed for e in after} == {
        *change.keep,
        *change.create,
        *change.leaving,
        *(p for p in held if p not in change.keep),
    }

    again = converge(product.profiles, after, wanted)
    assert again.settled, (change, again)


@settings(max_examples=200, deadline=None)
@given(situations())
def test_when_all_jobs_end_the_wanted_layout_is_reached(
    situation: tuple[Product, list[Existing], Mapping[str, int]],
) -> None:
    product, current, wanted = situation
    ours = [replace(e, foreign=False) for e in current]
    after = carried_out(product, ours, converge(product.profiles, ours, wanted))
    freed = [replace(e, busy=False) for e in after]
    last = carried_out(product, freed, converge(product.profiles, freed, wanted))
    assert counts_of(e.placed for e in last) == wanted
    assert converge(product.profiles, last, wanted).reached


@settings(max_examples=200, deadline=None)
@given(situations())
def test_no_other_goal_has_more_at_once_or_destroys_less(
    situation: tuple[Product, list[Existing], Mapping[str, int]],
) -> None:
    """Against brute force over every layout of the product."""
    product, current, wanted = situation
    change = converge(product.profiles, current, wanted)
    sizes = {name: row.size for name, row in product.profiles.items()}
    ours = {e.placed for e in current if e.whole and not e.foreign}
    free = 0
    for e in current:
        free |= e.bits if e.held else 0

    def merit(goal: Layout) -> tuple[int, int, int]:
        kept = ours.intersection(goal)
        now = [p for p in goal if p in kept or not free & (((1 << sizes[p[0]]) - 1) << p[1])]
        busy = [p for p in kept if any(e.placed == p and e.busy for e in current)]
        return sum(sizes[name] for name, _ in now), sum(sizes[name] for name, _ in busy), len(kept) - len(busy)

    mine = (*change.keep, *change.create, *(b.wanted for b in change.blocked_by))
    assert merit(mine) == max(merit(goal) for goal in LAYOUTS[product.key] if counts_of(goal) == wanted)
