"""A state folder that fails, files that outstay their runs, and entries that may be an older run's."""

import asyncio
from pathlib import Path

import pytest

from slurm_plugin.agent.store import Store
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.model import Grant, RunKey
from tests.integration.agent.bench import FIRST, PATIENCE_S, Bench
from tests.unit.agent.world import run


def silent() -> None:
    raise SlurmUnavailable("no answer")


def grant(job_id: int, slice_: str, made_at: float) -> Grant:
    key = RunKey(job_id=job_id, started_at=100, uid=1000)
    return Grant(run=key, gres_class="m20", count=1, slices=(slice_,), made_at=made_at)


def spoil(bench: Bench) -> None:
    """No grant can be written or deleted, though root may do everything."""
    (bench.folder / "grants").rename(bench.folder / "kept")
    (bench.folder / "grants").write_text("")


def mend(bench: Bench) -> None:
    (bench.folder / "grants").unlink()
    (bench.folder / "kept").rename(bench.folder / "grants")


async def test_a_state_folder_that_fails_turns_everybody_away_at_once_until_it_works_again(bench: Bench) -> None:
    async with bench.running():
        bench.slurm.runs |= {job_id: run(job_id, "m20", 3 if job_id == 1 else 1) for job_id in (1, 2, 3, 4)}
        await bench.runs.prolog(1)
        waiter = asyncio.create_task(bench.runs.prolog(2))
        await bench.until(lambda: len(bench.runs.binding.waiting) == 1)
        spoil(bench)
        await bench.end(1)
        await asyncio.wait_for(waiter, PATIENCE_S)
        await asyncio.wait_for(bench.runs.prolog(3), PATIENCE_S)
        assert (bench.held(), bench.slurm.requeued) == ({}, [2, 3])
        assert "grants can't be kept: Not a directory" in bench.runs.ledger.fault
        mend(bench)
        await bench.runs.prolog(4)
        assert (bench.held(), bench.runs.ledger.fault) == ({4: (FIRST,)}, "")


async def test_a_file_that_can_not_be_deleted_is_told_and_tried_again(bench: Bench) -> None:
    stuck = True

    def refuse(place: str) -> None:
        if stuck and place.startswith("delete grants/"):
            raise PermissionError(1, "not permitted")

    bench.at = refuse
    file = bench.folder / "grants/1.json"
    async with bench.running():
        bench.slurm.runs[1] = run(1)
        await bench.runs.prolog(1)
        await bench.end(1)
        assert (bench.held(), file.exists(), bench.runs.ledger.fault) == ({}, True, "")
        assert bench.runs.ledger.alarms() == [f"job 1 is over, and its file {file} can't be deleted"]
        stuck = False
        await bench.runs.tend()
        assert (file.exists(), bench.runs.ledger.alarms()) == (False, [])


@pytest.mark.parametrize("alive", [1, 2])
async def test_of_two_grants_of_one_slice_the_one_whose_run_lives_is_right(bench: Bench, alive: int) -> None:
    store = Store(bench.folder)
    store.open()
    for job_id in (1, 2):
        store.save(grant(job_id, FIRST, made_at=float(job_id)))
    bench.slurm.runs[alive] = run(alive)
    async with bench.running():
        assert bench.held() == {alive: (FIRST,)}
        assert [path.name for path in (bench.folder / "grants").iterdir()] == [f"{alive}.json"]


async def test_of_two_grants_of_one_slice_the_newer_is_right_while_slurm_is_silent(bench: Bench) -> None:
    store = Store(bench.folder)
    store.open()
    for job_id, made_at in ((1, 9.0), (2, 5.0)):
        store.save(grant(job_id, FIRST, made_at=made_at))
    bench.slurm.answer = silent
    async with bench.running():
        assert bench.held() == {1: (FIRST,)}
        assert len(store.grants()[0]) == 2


async def test_a_new_run_whose_prolog_got_no_word_does_not_use_the_old_runs_slices(bench: Bench) -> None:
    async with bench.running():
        bench.slurm.runs[1] = run(1, uid=1000)
        await bench.runs.prolog(1)
        bench.slurm.runs[1] = run(1, uid=2000, started_at=200)
        bench.slurm.answer = silent
        await bench.runs.prolog(1)
        assert not bench.book.knows(1)
        with pytest.raises(SlurmUnavailable):
            await bench.runs.late(1)
        bench.slurm.answer = lambda: None
        assert await bench.runs.late(1)
        assert bench.book.grants[1].run.uid == 2000
        assert bench.book.knows(1)


async def test_runs_without_slices_are_known_to_the_next_agent_and_forgotten_when_over(bench: Bench) -> None:
    marks = bench.folder / "plain"
    async with bench.running():
        bench.slurm.runs |= {job_id: run(job_id, "") for job_id in (1, 2, 3)}
        for job_id in (1, 2, 3):
            await bench.runs.prolog(job_id)
        await bench.end(3)
        assert sorted(path.name for path in marks.iterdir()) == ["1", "2"]
    del bench.slurm.runs[2]
    (marks / "odd").write_text("?")
    async with bench.running():
        assert list(bench.book.without) == [1]
        assert bench.book.knows(1)
        assert [path.name for path in marks.iterdir()] == ["1"]


def test_a_stale_file_is_deleted_only_while_it_is_that_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    store.save(grant(1, FIRST, made_at=1.0))
    store.delete_stale(RunKey(job_id=1, started_at=99, uid=1000))
    assert len(store.grants()[0]) == 1
    store.delete_stale(RunKey(job_id=1, started_at=100, uid=1000))
    store.delete_stale(RunKey(job_id=1, started_at=100, uid=1000))
    assert store.grants()[0] == ()
