"""Signals to what runs at another site: in order, one at a time, and none that matters is lost with a daemon."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from federation.errors import Unavailable
from federation.model.messages import CONT, STOP, TSTP
from federation.model.states import Origin
from federation.model.token import Key
from federation.ports import Seen, Sight
from tests.integration.federation.site import SPEC, Backend, Net, Site, jobs, linked, until

USR1 = 10


@dataclass
class Host(Backend):
    """Its jobs run for ever."""

    away: bool = False
    asked: list[int] = field(default_factory=list)
    said: list[int] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.goes_on.set()

    async def look(self, keys: Sequence[Key]) -> Mapping[Key, Seen]:
        return {key: Seen(sight=Sight.RUNNING if key in self.ran else Sight.ABSENT) for key in keys}

    async def signal(self, key: Key, signal: int) -> None:
        self.asked.append(signal)
        if self.away:
            raise Unavailable("no answer")
        await self.goes_on.wait()
        self.said.append(signal)


@dataclass
class Pair:
    edge: Site
    hpc: Site
    host: Host
    token: UUID = field(default_factory=uuid4)

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        async with self.hpc.up():
            await linked(self.edge, self.hpc)
            yield

    async def running(self) -> None:
        assert self.edge.runner is not None
        await self.edge.runner.accept(self.token, SPEC)
        await until(self._runs)

    async def _runs(self) -> bool:
        return [job.state for job in await jobs(self.edge, [self.token])] == [Origin.RUNNING]

    async def signal(self, *numbers: int) -> None:
        assert self.edge.runner is not None
        for number in numbers:
            await self.edge.runner.signal(self.token, number)

    async def asked(self) -> bool:
        return bool(self.host.asked)

    async def owes_nothing(self) -> bool:
        assert self.edge.runner is not None
        return await self.edge.runner.read(lambda store: not store.commands_of(Key(self.token, 1)))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    net = Net(tmp_path)
    edge, hpc = net.site("edge", "hpc"), net.site("hpc", "edge")
    edge.backend.full = True
    hpc.backend = host = Host()
    return Pair(edge, hpc, host)


async def test_a_job_goes_on_though_its_backend_did_not_answer_and_the_daemon_died_then(pair: Pair) -> None:
    async with pair.edge.up():
        async with pair.up():
            await pair.running()
            await pair.signal(TSTP, STOP)
            await until(pair.owes_nothing)
            pair.host.away = True
            pair.host.asked.clear()
            await pair.signal(CONT)
            await until(pair.asked)
        assert pair.host.said == [TSTP, STOP]
        pair.host.away = False
        async with pair.up():
            await until(pair.owes_nothing)
    assert pair.host.said == [TSTP, STOP, CONT]


async def test_a_quick_suspend_and_resume_come_in_their_order(pair: Pair) -> None:
    async with pair.edge.up(), pair.up():
        await pair.running()
        pair.host.goes_on.clear()
        await pair.signal(STOP)
        await until(pair.asked)
        await pair.signal(CONT, USR1)
        assert pair.host.asked == [STOP]
        pair.host.goes_on.set()
        await until(pair.owes_nothing)
        await until(lambda: delivered(pair, 3))
    assert pair.host.said == [STOP, CONT, USR1]


async def test_what_must_not_come_twice_is_not_tried_again(pair: Pair) -> None:
    async with pair.edge.up(), pair.up():
        await pair.running()
        pair.host.away = True
        await pair.signal(USR1)
        await until(pair.owes_nothing)
        await until(pair.asked)
        pair.host.away = False
        await pair.signal(CONT)
        await until(pair.owes_nothing)
    assert (pair.host.asked, pair.host.said) == ([USR1, CONT], [CONT])


async def delivered(pair: Pair, count: int) -> bool:
    return len(pair.host.said) == count
