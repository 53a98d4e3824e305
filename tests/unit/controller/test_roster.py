"""Who is there, and for how long a node whose agent is gone is left as it is."""

import asyncio

import pytest

from slurm_plugin.controller.roster import GRACE_S, OUTBOX, Hello, Member, Roster
from slurm_plugin.controller.state import Agent
from slurm_plugin.errors import ConfigError
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from tests.unit.controller import pools


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def roster(clock: Clock) -> Roster:
    return Roster(pools.config("n1"), {}, clock, clock)


async def never(_: pb.ToAgent) -> None:
    await asyncio.Event().wait()


def hello(member: Member, revision: int = 1) -> Hello:
    return Hello(member=member, inventory=pb.Inventory(node=member.name, revision=revision), peer="ipv4:10.0.0.1:4")


def listening() -> "asyncio.Task[None]":
    return asyncio.create_task(never(pb.ToAgent()))


async def test_agent_that_is_thrown_out_has_the_same_grace_as_one_that_went(roster: Roster, clock: Clock) -> None:
    member = roster["n1"]
    clock.now += 10 * GRACE_S
    assert member.agent(clock.now) is Agent.AWAY
    session = asyncio.create_task(roster.serve(hello(member), never, listening))
    await asyncio.sleep(0)
    assert member.agent(clock.now) is Agent.CONNECTED
    for _ in range(OUTBOX + 1):  # it does not read
        member.say(pb.ToAgent())
    assert member.agent(clock.now) is Agent.EXPECTED
    assert member.agent(clock.now + GRACE_S) is Agent.AWAY
    session.cancel()


async def test_newer_session_ends_the_older_one(roster: Roster) -> None:
    member = roster["n1"]
    told: list[pb.ToAgent] = []

    async def take(message: pb.ToAgent) -> None:
        told.append(message)

    older = asyncio.create_task(roster.serve(hello(member), take, listening))
    newer = asyncio.create_task(roster.serve(hello(member, 2), take, listening))
    await asyncio.wait_for(older, 5)
    assert member.outbox is not None
    member.say(pb.ToAgent())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(told) == 1
    assert member.inventory is not None
    assert member.inventory.revision == 2
    newer.cancel()


async def test_node_that_left_the_pool_while_its_agent_said_hello_is_refused(roster: Roster) -> None:
    member = roster["n1"]
    roster.follow(pools.config("n2"))
    with pytest.raises(ConfigError, match="n1"):
        await roster.serve(hello(member), never, listening)


async def test_an_error_of_ours_in_what_an_agent_said_is_logged_and_ends_its_session(
    roster: Roster, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise KeyError("GPU-1")

    await asyncio.wait_for(roster.serve(hello(roster["n1"]), never, lambda: asyncio.create_task(broken())), 5)
    assert roster["n1"].outbox is None
    (told,) = [record for record in caplog.records if record.message == "agent.session_broke"]
    assert (told.__dict__["node"], told.exc_info and told.exc_info[0]) == ("n1", KeyError)
