"""The planned mix: whole, possible, as good as its bound, and what anybody would choose in the plain cases."""

import pytest

from benchmarks.mix import carried, mix
from slurm_plugin.mig.layouts import conflict, counts_of
from tests.unit.planner.asking import A30, A100, plain

COMPUTE = {name: shape.compute_slices for name, shape in A100.items()}


def test_erlang_losses_are_the_known_ones() -> None:
    assert carried(1.0, 1)[1] == pytest.approx(0.5)
    assert carried(2.0, 2)[2] == pytest.approx(2.0 * (1 - 0.4))
    assert carried(10.0, 10)[10] == pytest.approx(10.0 * (1 - 0.2146), rel=1e-3)
    assert carried(10.0, 60)[60] == pytest.approx(10.0)


def test_one_profile_alone_gets_everything() -> None:
    (share,) = mix(A100, {"1g.5gb": 1_000.0}, 10) or ()
    assert share.gpus == 10
    assert counts_of(share.layout) == {"1g.5gb": 7}


def test_nothing_expected_is_no_mix() -> None:
    assert mix(A100, {}, 4) == ()
    assert mix(A100, {"unknown": 3.0, "1g.5gb": 0.0}, 4) == ()


@pytest.mark.parametrize("load", [0.6, 1.0, 1.4])
@pytest.mark.parametrize("gpus", [1, 8, 300])
def test_a_mix_has_as_many_gpus_as_there_are_and_no_impossible_layout(load: float, gpus: int) -> None:
    shapes = plain()
    asked = sum(COMPUTE[name] for name in shapes)
    shares = mix(shapes, dict.fromkeys(shapes, load * 7 * gpus / asked), gpus)
    assert shares
    assert sum(share.gpus for share in shares) <= gpus
    assert all(conflict(shapes, share.layout) is None for share in shares)


def test_slices_come_in_proportion_to_an_even_load() -> None:
    shapes = plain()
    shares = mix(shapes, dict.fromkeys(shapes, 49.4), 100) or ()
    slices = {name: sum(counts_of(s.layout).get(name, 0) * s.gpus for s in shares) for name in shapes}
    assert all(38 <= count <= 45 for count in slices.values())
    used = sum(COMPUTE[name] * carried(49.4, count)[count] for name, count in slices.items())
    assert used / 700 > 0.93


def test_other_models_have_their_own_layouts() -> None:
    shares = mix(A30, {"2g.12gb": 20.0}, 3) or ()
    assert [(counts_of(share.layout), share.gpus) for share in shares] == [({"2g.12gb": 2}, 3)]
