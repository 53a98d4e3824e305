"""A mix of layouts spread over GPUs, with as few changes as can be."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.controller.layout import spread
from slurm_plugin.controller.state import NodeState
from slurm_plugin.pool import NodeGroup, Share
from tests.unit.controller.pools import MIXED, SEVEN, gpu, node

WHOLE = (("7g.80gb", 0),)
MIX = (Share(layout={"1g.10gb": 7}, share=2), Share(layout={"7g.80gb": 1}, share=1))


def pool(*layouts: tuple[tuple[str, int], ...], shares: tuple[Share, ...] = MIX) -> dict[str, NodeState]:
    names = tuple(f"n{nth}" for nth in range(len(layouts)))
    of = NodeGroup(hosts=names, shares=shares)
    return {name: node(name, gpu(name, layout), of=of) for name, layout in zip(names, layouts, strict=True)}


def test_shares_are_kept_by_largest_remainder() -> None:
    assert Counter(spread(pool(*[()] * 6), {}).values()) == {0: 4, 1: 2}
    assert Counter(spread(pool(*[()] * 4), {}).values()) == {0: 3, 1: 1}
    assert Counter(spread(pool(()), {}).values()) == {0: 1}


def test_gpus_get_the_layout_they_have() -> None:
    assert spread(pool(WHOLE, SEVEN, SEVEN), {}) == {"GPU-n0": 1, "GPU-n1": 0, "GPU-n2": 0}
    assert spread(pool(SEVEN, MIXED, WHOLE), {}) == {"GPU-n0": 0, "GPU-n1": 0, "GPU-n2": 1}


def test_what_was_given_stays_and_newcomers_fill_up() -> None:
    nodes = pool(SEVEN, SEVEN, SEVEN)
    given_before = {"GPU-n0": 1}
    assert spread(nodes, given_before) == {"GPU-n0": 1, "GPU-n1": 0, "GPU-n2": 0}


def test_given_share_that_is_no_more_is_given_anew() -> None:
    assert spread(pool(SEVEN, shares=MIX[:1]), {"GPU-n0": 1}) == {"GPU-n0": 0}


def test_nodes_without_a_layout_get_none() -> None:
    assert spread(pool(SEVEN, shares=()), {}) == {}


@given(st.lists(st.sampled_from([(), SEVEN, WHOLE, MIXED]), min_size=1, max_size=8))
def test_spread_is_whole_and_stable(layouts: list[tuple[tuple[str, int], ...]]) -> None:
    nodes = pool(*layouts)
    first = spread(nodes, {})
    assert first.keys() == {f"GPU-n{nth}" for nth in range(len(layouts))}
    assert abs(sum(which == 1 for which in first.values()) - len(layouts) / 3) < 1
    assert spread(nodes, first) == first
    assert spread(dict(reversed(nodes.items())), {}) == first
