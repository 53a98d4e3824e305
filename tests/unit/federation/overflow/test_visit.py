"""What a proxy says is dealt with in its order, what ends a job first, and though the proxy has gone meanwhile."""

import asyncio
import signal
from typing import Any, cast

import pytest

from federation.access.local import Caller
from federation.overflow.burst import Ends, Heard
from federation.overflow.frames import FromProxy, Hello, Ping, Signalled
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
