"""What is left of jobs that are over goes; what fails at that keeps nothing from going on."""

import asyncio
import logging
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

import pytest

from federation import tidying
from federation.errors import Unavailable
from federation.model.job import Job
from federation.model.spec import JobSpec, Lease
from federation.model.states import Origin
from federation.model.token import mint
from federation.stage.spool import Home, Spool
from federation.store.opening import in_memory
from federation.store.store import Store
from federation.tidying import tidied, tidy_jobs

T = TypeVar("T")
WAIT_S = 10.0


class Journal:
    def __init__(self) -> None:
        connection = in_memory()
        self.store = Store(connection, journal=UUID(int=1))
        weakref.finalize(self.store, connection.close)

    async def read(self, call: Callable[[Store], T]) -> T:
        return call(self.store)


def token(age_s: float) -> UUID:
    return mint(int((time.time() - age_s) * 1000), uuid4().bytes[:10])


async def test_folders_of_jobs_that_are_over_or_not_known_go(tmp_path: Path) -> None:
    journal, spool = Journal(), Spool(tmp_path)
    runs, done, written, unknown, fresh = (token(age_s) for age_s in (9000, 9000, 9000, 9000, 10))
    for one in (runs, done, written, unknown, fresh):
        spool.begin(one, Home(user="ann", folder="/"))
    for one, state in ((runs, Origin.RUNNING), (done, Origin.DONE), (written, Origin.DONE)):
        job = Job(token=one, user="ann", lease=Lease(), accepted_at=1.0, due_at=None, state=state)
        journal.store.add_job(job, JobSpec(user="ann"))
    (tmp_path / "lost+found").mkdir()  # nothing of ours
    await tidy_jobs(journal, spool, lambda _store, tokens: {written} & set(tokens))
    assert set(spool.tokens()) == {runs, done, fresh}
    assert [one for one in (runs, done, fresh) if (tmp_path / str(one) / "inputs").exists()] == [runs, fresh]
    assert (tmp_path / "lost+found").exists()


async def test_one_that_fails_keeps_no_other_from_its_turn_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tidying, "TIDY_S", 0.0)
    caplog.set_level(logging.INFO)
    turns, over = list[str](), asyncio.Event()

    async def full() -> None:
        turns.append("full")
        raise Unavailable("10000 transactions wait")

    async def broken() -> None:
        turns.append("broken")
        raise ZeroDivisionError

    async def fine() -> None:
        turns.append("fine")
        if len(turns) == 6:
            over.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(tidied(full, broken, fine))
    await asyncio.wait_for(over.wait(), WAIT_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert turns == ["full", "broken", "fine"] * 2
    levels = [one.levelno for one in caplog.records if one.getMessage() == "daemon.not_tidied"]
    assert levels == [logging.INFO, logging.ERROR] * 2
