"""Bursts in a real journal: one that is not closed a JobId, whatever has had the id, and all of it whole."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from federation.overflow.burst import Burst, Phase
from federation.overflow.bursts import (
    burst_of,
    bursts_of,
    bursts_of_array,
    by_token,
    drop_closed,
    newest_bursts,
    open_bursts,
    save,
    written,
)
from tests.integration.federation.store.rig import opened

BURST = Burst(
    token=UUID(int=7),
    job_id=12,
    array_id=10,
    task_id=2,
    uid=1000,
    user="ann",
    submitted_at=100,
    restarts=1,
    started_at=110,
    node="cloud-aws-1",
    pool="aws/gpu",
    limit_s=3600,
    stdout_base=5,
    stderr_base=6,
    began_at=120,
    told=4000,
    partitions=("gpu", "vgpu-wait", "cloud"),
    why="so",
    written=True,
    stdout_own=1,
    stderr_own=2,
    stdout_acked=3,
    stderr_acked=4,
    stdout_most=5,
    stderr_most=6,
)


def closed(burst: Burst, at: int = 200) -> Burst:
    return replace(burst, phase=Phase.CLOSED, closed_at=at)


def test_what_was_saved_is_read_whole_after_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path / "fed.db")
    save(store, BURST)
    store.close()
    again = opened(tmp_path / "fed.db")
    assert by_token(again, BURST.token) == burst_of(again, 12) == BURST
    assert open_bursts(again) == [BURST]
    assert (by_token(again, UUID(int=8)), burst_of(again, 13)) == (None, None)


def test_what_may_change_does_and_who_it_is_does_not(tmp_path: Path) -> None:
    store = opened(tmp_path / "fed.db")
    save(store, BURST)
    later = replace(
        BURST,
        submitted_at=300,
        restarts=2,
        started_at=310,
        node="cloud-aws-2",
        phase=Phase.STOPPING,
        stdout_base=7,
        stderr_base=8,
        stdout_acked=30,
        stderr_acked=40,
        stdout_most=50,
        stderr_most=60,
        began_at=320,
        told=321,
        partitions=(),
        why="requeued",
    )
    save(store, later)
    assert open_bursts(store) == [later]


def test_a_second_one_of_an_id_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    store = opened(tmp_path / "fed.db")
    save(store, BURST)
    second = replace(BURST, token=UUID(int=8), uid=1001, user="bob")
    with pytest.raises(sqlite3.IntegrityError):
        save(store, second)
    assert burst_of(store, 12) == BURST
    save(store, closed(BURST))
    save(store, second)
    assert burst_of(store, 12) == second
    assert bursts_of(store, 12) == [second, closed(BURST)]


def test_an_array_is_listed_whole_and_by_its_elements(tmp_path: Path) -> None:
    store = opened(tmp_path / "fed.db")
    other = replace(BURST, token=UUID(int=8), job_id=13, task_id=3)
    alone = replace(BURST, token=UUID(int=9), job_id=14, array_id=0, task_id=-1, user="bob")
    for one in (BURST, other, alone):
        save(store, one)
    assert bursts_of_array(store, 10) == [other, BURST]
    assert bursts_of_array(store, 10, 2) == [BURST]
    assert newest_bursts(store, "ann", 10) == [other, BURST]
    assert newest_bursts(store, "", 2) == [alone, other]


def test_those_that_closed_long_ago_are_forgotten_and_no_others(tmp_path: Path) -> None:
    store = opened(tmp_path / "fed.db")
    old, young = closed(BURST, 200), closed(replace(BURST, token=UUID(int=8), job_id=13), 300)
    open_one = replace(BURST, token=UUID(int=9), job_id=14)
    for one in (old, young, open_one):
        save(store, one)
    assert (drop_closed(store, 300), drop_closed(store, 300)) == (1, 0)
    assert newest_bursts(store, "", 10) == [open_one, young]


def test_what_a_job_wrote_is_kept_until_all_of_it_is_in_its_own_files(tmp_path: Path) -> None:
    store = opened(tmp_path / "fed.db")
    tokens = [UUID(int=nth) for nth in range(1, 5)]
    all_written = replace(BURST, token=tokens[0])
    for burst in (closed(all_written), closed(replace(BURST, token=tokens[1], written=False)), BURST):
        save(store, replace(burst, job_id=burst.token.int))
    assert written(store, [*tokens, BURST.token]) == {tokens[0]}
