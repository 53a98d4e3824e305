"""The Gres string of a node: the three rules, whatever the input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.controller.counts import below_use, publish, same, shrinks
from slurm_plugin.pool import GresNames
from slurm_plugin.ports import GresItem
from tests.unit.controller.pools import vgpu

NAMES = GresNames()
BASE = (
    GresItem(name="gpu", type="h100", count=4),
    GresItem(name="vgpu", count=1000),
    GresItem(name="vgpu_mem", count=32),
)
CLASSES = st.sampled_from(["1g.10gb", "m20", "q4", "3g.40gb", "small"])
COUNTS = st.dictionaries(CLASSES, st.integers(0, 60), max_size=5)


def text(items: tuple[GresItem, ...]) -> str:
    return ",".join(f"{i.name}:{i.type}:{i.count}" if i.type else f"{i.name}:{i.count}" for i in items)


def published(idle: dict[str, int], used: tuple[GresItem, ...] = (), unbound: dict[str, int] | None = None) -> str:
    result = publish(NAMES, BASE, used, idle, unbound or {})
    assert result is not None
    return text(result.items)


def test_idle_slices_of_an_idle_node() -> None:
    assert published({"m20": 1, "1g.10gb": 3}) == "gpu:h100:4,vgpu:1g.10gb:3,vgpu:m20:1,vgpu:pad:996,vgpu_mem:32"


def test_used_and_idle_add_up() -> None:
    assert published({"m20": 1}, (vgpu("m20", 2),)) == "gpu:h100:4,vgpu:m20:3,vgpu:pad:997,vgpu_mem:32"


def test_job_that_has_not_bound_takes_one_of_the_idle_ones() -> None:
    assert published({"m20": 2}, (vgpu("m20"),), {"m20": 1}) == "gpu:h100:4,vgpu:m20:2,vgpu:pad:998,vgpu_mem:32"
    assert published({}, (vgpu("m20"),), {"m20": 1}) == "gpu:h100:4,vgpu:m20:1,vgpu:pad:999,vgpu_mem:32"


def test_jobs_counted_untyped_after_a_restart_use_no_type() -> None:
    assert published({"m20": 1}, (vgpu("", 2),)) == "gpu:h100:4,vgpu:m20:1,vgpu:pad:999,vgpu_mem:32"


def test_type_of_a_class_that_is_no_more_is_kept_while_it_is_used() -> None:
    assert "vgpu:gone:2" in published({"m20": 1}, (vgpu("gone", 2),))


def test_weight_that_somebody_left_out_comes_back() -> None:
    by_hand = (vgpu("pad", 0), vgpu("m20", 0))
    result = publish(NAMES, by_hand, (), {"m20": 1}, {}, 1000, 32)
    assert result is not None
    assert text(result.items) == "vgpu:m20:1,vgpu:pad:999,vgpu_mem:32"


def test_exclusive_job_that_was_granted_everything_leaves_no_room() -> None:
    used = (vgpu("m20", 3), vgpu("pad", 997))
    result = publish(NAMES, BASE, used, {"m20": 2, "q4": 1}, {})
    assert result is not None
    assert result.cut == 3
    assert text(result.items) == "gpu:h100:4,vgpu:m20:3,vgpu:pad:997,vgpu_mem:32"


def test_node_without_our_gres_is_not_touched() -> None:
    assert publish(NAMES, (GresItem(name="gpu", count=4),), (), {"m20": 1}, {}) is None


def test_types_of_count_zero_after_a_reconfigure_stand_for_slurm_confs_total() -> None:
    gres = (vgpu("pad", 0), vgpu("m20", 0), GresItem(name="vgpu_mem", count=32))
    result = publish(NAMES, gres, (vgpu("m20", 1),), {"m20": 2}, {})
    assert result is not None
    assert (text(result.items), result.total) == ("vgpu:m20:3,vgpu:pad:997,vgpu_mem:32", 1000)


def test_after_a_reconfigure_every_type_is_shown_with_nothing_and_the_total_is_as_it_was_seen() -> None:
    """Slurm 22.05 then shows one of three jobs of a class as used, and no total."""
    zero = (vgpu("pad", 0), vgpu("1g.10gb", 0), GresItem(name="vgpu_mem", count=32))
    used = (vgpu("pad", 0), vgpu("1g.10gb", 1))
    for total, pad in ((0, 994), (500, 494)):
        result = publish(NAMES, zero, used, {"1g.10gb": 5}, {}, total)
        assert result is not None
        assert text(result.items) == f"vgpu:1g.10gb:6,vgpu:pad:{pad},vgpu_mem:32"


def test_same_sees_through_order_and_nothing() -> None:
    assert same((vgpu("a", 1), vgpu("b", 2)), (vgpu("b", 2), vgpu("a", 1), vgpu("c", 0)))
    assert not same((vgpu("a", 1),), (vgpu("a", 2),))


def test_shrinks_sees_a_class_that_has_less() -> None:
    now = (vgpu("a", 2), vgpu("b", 1), vgpu("pad", 7))
    assert shrinks(NAMES, now, (vgpu("a", 2), vgpu("pad", 8)))
    assert not shrinks(NAMES, now, (vgpu("a", 3), vgpu("b", 1), vgpu("pad", 6)))
    assert not shrinks(NAMES, (vgpu("", 10),), (vgpu("a", 3), vgpu("pad", 7)))


def test_below_use_is_seen_but_not_on_an_untyped_base() -> None:
    assert below_use(NAMES, (vgpu("a", 1), vgpu("pad", 9)), (vgpu("a", 2),)) == ("a",)
    assert below_use(NAMES, (vgpu("", 1000),), (vgpu("a", 2),)) == ()


@given(idle=COUNTS, used=COUNTS, untyped=st.integers(0, 20), unbound=COUNTS, total=st.integers(1, 1023))
def test_the_three_rules(
    idle: dict[str, int], used: dict[str, int], untyped: int, unbound: dict[str, int], total: int
) -> None:
    if sum(used.values()) + untyped > total:
        return
    gres = tuple(GresItem(name="vgpu", count=total) if i.name == "vgpu" else i for i in BASE)
    taken = tuple(vgpu(name, count) for name, count in used.items()) + ((vgpu("", untyped),) if untyped else ())
    result = publish(NAMES, gres, taken, idle, unbound)
    assert result is not None
    ours = {i.type: i.count for i in result.items if i.name == "vgpu"}
    assert sum(ours.values()) == total
    assert "" not in ours
    assert all(ours.get(name, 0) >= count for name, count in used.items())
    assert all(ours[name] - used.get(name, 0) <= idle.get(name, 0) for name in ours if name != "pad")
    assert [i for i in result.items if i.name != "vgpu"] == [i for i in gres if i.name != "vgpu"]
    again = publish(NAMES, result.items, taken, idle, unbound)
    assert again is not None
    assert same(again.items, result.items)


@pytest.mark.parametrize("order", [BASE, BASE[::-1]])
def test_other_gres_keep_their_place(order: tuple[GresItem, ...]) -> None:
    result = publish(NAMES, order, (), {"m20": 1}, {})
    assert result is not None
    assert [i.name for i in result.items if i.type != "pad"] == [i.name for i in order]
