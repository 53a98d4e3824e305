"""A journal that remembers a million finished jobs serves as soon as a small one, and forgets in small portions."""

import time
from pathlib import Path

import pytest

from federation.model.states import Origin
from tests.integration.federation.store.rig import add, job, numbers, opened

MILLION = 1_000_000
TOGETHER = 20_000
OPENED_S, ADDED_S, FORGOT_S = 0.5, 0.1, 0.2


def spent(since: float) -> float:
    return time.perf_counter() - since


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_million_finished_jobs(tmp_path: Path) -> None:
    store = opened(tmp_path / "fed.db")
    for start in range(0, MILLION, TOGETHER):
        with store.transaction():
            for number in range(start, start + TOGETHER):
                store.save_job(job(number, Origin.DONE, ended_at=float(number)), was=None)
    store.close()
    at = time.perf_counter()
    store = opened(tmp_path / "fed.db")
    assert (numbers(store), sum(store.jobs().values())) == (set(), 0)
    assert spent(at) < OPENED_S
    at = time.perf_counter()
    with store.transaction():
        add(store, MILLION)
    assert spent(at) < ADDED_S
    assert store.forget_done(0.0, MILLION - 500, 500) == 500  # counts them, once
    at = time.perf_counter()
    with store.transaction():
        assert store.forget_done(0.0, MILLION - 1000, 500) == 500
    assert spent(at) < FORGOT_S
    store.close()
