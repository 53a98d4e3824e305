"""GPUs counted by state, with the best place for each profile at hand while jobs come and go."""

import random

import pytest

from benchmarks.stock import Stock
from slurm_plugin.mig.layouts import conflict
from tests.unit.planner.asking import plain


@pytest.mark.parametrize("seed", range(5))
def test_the_stock_knows_the_best_state_while_jobs_come_and_go(seed: int) -> None:
    shapes, rng = plain(), random.Random(seed)
    stock = Stock(shapes, shapes)
    gpus = [stock.cell((), ()) for _ in range(6)]
    for cell in gpus:
        stock.add(cell)
    for _ in range(300):
        name = rng.choice(sorted(shapes))
        able = [found[0] for cell in gpus if (found := cell.spots[name])]
        best = stock.best(name)
        assert (best is not None) == bool(able)
        if best and rng.random() < 0.6:
            cell, spot = best
            found = cell.spots[name]
            assert found is not None
            assert found[0] == min(able)
            gpus[gpus.index(cell)] = stock.start(cell, spot)
        elif busy := [nth for nth, cell in enumerate(gpus) if cell.fixed]:
            nth = rng.choice(busy)
            gpus[nth] = stock.end(gpus[nth], rng.choice(gpus[nth].fixed))
        assert all(cell.count == gpus.count(cell) for cell in gpus)
        assert all(conflict(shapes, (*cell.fixed, *cell.idle)) is None for cell in gpus)


def test_a_state_without_gpus_gives_none() -> None:
    stock = Stock(plain(), plain())
    cell = stock.cell((), ())
    assert stock.best("1g.5gb") is None
    with pytest.raises(ValueError, match="no GPU"):
        stock.take(cell)
