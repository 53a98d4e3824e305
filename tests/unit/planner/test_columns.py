"""The columns are the layouts that matter, against the counts that are known of the geometry."""

from slurm_plugin.mig.geometry import mask
from slurm_plugin.mig.layouts import counts_of, maximal_layouts
from slurm_plugin.planner.columns import columns, frame_of, packings
from tests.unit.planner.asking import A100, gpu, layouts_of, plain

DOUBLE = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def _full(names: tuple[str, ...]) -> tuple[tuple[tuple[str, int], ...], ...]:
    frame = frame_of(plain(A100, names))
    return packings(frame.axis, mask(0, frame.slices), frame.limit)


def test_full_layouts_are_those_of_the_geometry() -> None:
    for names, layouts, multisets in ((tuple(plain()), 19, 14), (DOUBLE, 78, 38)):
        full = _full(names)
        assert len(full) == len(set(full)) == layouts
        assert len({tuple(sorted(counts_of(layout).items())) for layout in full}) == multisets


def test_full_layouts_with_media_engines_are_those_of_the_geometry() -> None:
    frame = frame_of(A100)
    assert set(packings(frame.axis, mask(0, frame.slices), frame.limit)) == set(maximal_layouts(A100))


def test_an_empty_gpu_has_the_pareto_best_multisets_only() -> None:
    assert len(columns(frame_of(plain(A100, DOUBLE)), gpu(), tuple(sorted(DOUBLE)))) == 28


def test_partial_layouts_and_their_full_ones() -> None:
    names = tuple(sorted(plain()))
    frame = frame_of(plain())
    partial = layouts_of(plain())
    assert len(partial) == 298
    full = packings(frame.axis, mask(0, frame.slices), frame.limit)
    edges = 0
    for fixed in partial:
        able = [layout for layout in full if set(fixed) <= set(layout)]
        edges += len(able)
        kept = {tuple(counts_of(one.idle).get(name, 0) for name in names) for one in columns(frame, gpu(fixed), names)}
        for layout in able:  # each is matched or beaten by a column, unless it adds nothing
            rest = counts_of(placed for placed in layout if placed not in fixed)
            supply = tuple(rest.get(name, 0) for name in names)
            assert not rest or any(all(a >= b for a, b in zip(k, supply, strict=True)) for k in kept)
    assert edges == 562


def test_a_column_keeps_the_idle_slices_it_can() -> None:
    (column,) = columns(frame_of(A100), gpu((("3g.20gb", 4),), (("1g.5gb", 0), ("1g.5gb", 2))), ("2g.10gb",))[:1]
    assert column.destroyed == 1
    assert column.gain == (1,)
