"""What a proxy says is dealt with in its order, what ends a job first, and though the proxy has gone meanwhile."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from unittest.mock import AsyncMock
from uuid import UUID

import pytest

from federation.access.local import Caller
from federation.model.job import Job
from federation.model.spec import Lease
from federation.model.states import Origin
from federation.overflow import burst
from federation.overflow.burst import Ending, Ends, Heard
from federation.overflow.frames import Ended, FromProxy, Hello, Ping, Signalled, to_proxy
from federation.overflow.visit import Staff, Visit
from tests.unit.federation.overflow.test_burst import BURST
from tests.unit.federation.overflow.wire import to_daemon

TERM, CONT, USR1 = (Signalled(number=one, from_stepd=True) for one in (signal.SIGTERM, signal.SIGCONT, signal.SIGUSR1))


class Side:
    """Slurm's: a question about a CONT, or any while `answers` is not set, is not answered."""

    def __init__(self) -> None:
        self.heard_of: list[int] = []
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def heard(self, job_id: int, heard: Heard) -> Ends:
        self.asked.set()
        if heard.signal == signal.SIGCONT:
            await asyncio.Event().wait()
        await self.answers.wait()
        self.heard_of.append(heard.signal)
        return Ends.CANCEL if heard.signal == signal.SIGTERM else Ends.SIGNAL


class Way:
    """To a proxy that is killed at some time."""

    is_cut = False

    def write(self, data: bytes) -> None:
        pass

    async def drain(self) -> None:
        if self.is_cut:
            raise ConnectionResetError


async def visited(side: Side, *said: FromProxy) -> Visit:
    """It has said this, and has gone."""
    staff = Staff(runner=cast(Any, None), mover=cast(Any, None), side=cast(Any, side))
    caller, way = Caller(pid=1, uid=1, gid=1, user="alice", admin=False), Way()
    visit = Visit(staff, caller, Hello(job_id=7, node="cloud-1"), cast(Any, way))
    await visit.welcome(BURST)
    way.is_cut = True
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(map(to_daemon, said)))
    reader.feed_eof()
    with pytest.raises(asyncio.IncompleteReadError):
        await visit.listen(reader)
    return visit


async def test_what_a_proxy_said_before_it_was_killed_is_dealt_with() -> None:
    side = Side()
    visit = await visited(side, USR1, Ping(), TERM, Ping())
    closing = asyncio.create_task(visit.close(gone=True))
    await side.asked.wait()
    side.answers.set()
    await asyncio.wait_for(closing, 20)
    assert side.heard_of == [signal.SIGUSR1, signal.SIGTERM]


async def test_a_term_does_not_wait_for_what_the_cont_before_it_means() -> None:
    side = Side()
    side.answers.set()
    visit = await visited(side, CONT, Ping(), TERM)
    await asyncio.wait_for(visit.close(gone=True), 20)
    assert side.heard_of == [signal.SIGTERM]


async def test_the_end_of_a_job_waits_for_no_signal() -> None:
    side = Side()
    visit = await visited(side, TERM)
    await side.asked.wait()
    await asyncio.wait_for(visit.close(), 20)
    assert side.heard_of == []


async def test_one_that_is_refused_is_not_answered_while_slurm_does_not_know_its_job() -> None:
    side = AsyncMock()
    side.job.return_value = None
    side.heard.return_value = Ends.CANCEL
    visit = Visit(
        Staff(runner=cast(Any, None), mover=cast(Any, None), side=side),
        Caller(pid=1, uid=1, gid=1, user="alice", admin=False),
        Hello(job_id=7, node="cloud-1"),
        cast(Any, Way()),
    )
    await visit.welcome(BURST)
    refused = asyncio.create_task(visit.refused("it is over in Slurm"))
    async with asyncio.timeout(20):
        while not side.job.called:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not refused.done()
        await visit.hears(Heard(signal=signal.SIGTERM, from_stepd=True, restarts=0))
        assert await refused == to_proxy(Ended(by_signal=True, value=signal.SIGTERM))
    await visit.close()


class Busy:
    """A runner whose loop hears of a job's end before an older look at the job comes back."""

    def __init__(self, before: Job, end: Job) -> None:
        self._before, self._end = before, end

    @contextmanager
    def watching(self, token: UUID, told: Callable[[Job], None]) -> Iterator[None]:
        self._told = told
        yield

    async def read(self, call: object) -> Job:
        self._told(self._end)
        return self._before


async def test_an_end_that_comes_before_an_older_look_at_the_job_is_not_forgotten() -> None:
    job = Job(token=BURST.token, user="alice", lease=Lease(), accepted_at=1.0, due_at=None)
    runner, side = Busy(job, replace(job, state=Origin.DONE)), AsyncMock()
    side.end.return_value = Ending(way=burst.Way.EXIT, value=3)
    staff = Staff(runner=cast(Any, runner), mover=cast(Any, None), side=side)
    caller = Caller(pid=1, uid=1, gid=1, user="alice", admin=False)
    visit = Visit(staff, caller, Hello(job_id=7, node="cloud-1"), cast(Any, Way()))
    async with asyncio.timeout(20):
        assert await visit.served(BURST, job) == Ended(by_signal=False, value=3)
