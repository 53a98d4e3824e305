import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from slurm_plugin.agent import session as session_module
from slurm_plugin.agent.session import ControllerSession
from slurm_plugin.agent.terms import Offer
from slurm_plugin.errors import LinkError
from slurm_plugin.model import Step
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from slurm_plugin.wire import grant_to_wire
from tests.integration.agent.bench import FIRST, PATIENCE_S, Bench
from tests.unit.agent.world import terms

EMPTY = pool_pb2.SliceShape(profile="1g.20gb", start=2)


class Controller:
    """The other end: what it heard, and what it says. Hangs up when told to, and can be dialled again."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[pool_pb2.FromAgent] = asyncio.Queue()
        self.says: asyncio.Queue[pool_pb2.ToAgent | LinkError] = asyncio.Queue()
        self.calls = 0
        self.takes = asyncio.Event()  # cleared: the link is slow, and a message is not taken yet
        self.takes.set()

    @asynccontextmanager
    async def dial(self) -> AsyncIterator["Controller"]:
        self.calls += 1
        yield self

    async def send(self, message: pool_pb2.FromAgent) -> None:
        self.heard.put_nowait(message)
        await self.takes.wait()

    async def __aiter__(self) -> AsyncIterator[pool_pb2.ToAgent]:
        while True:
            said = await self.says.get()
            if isinstance(said, LinkError):
                raise said
            yield said

    async def hear(self, kind: str) -> pool_pb2.FromAgent:
        """The next message of this kind."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = await self.heard.get()
                if message.WhichOneof("message") == kind:
                    return message


class Site:
    def __init__(self, bench: Bench, controller: Controller, session: ControllerSession) -> None:
        self.bench, self.controller, self.session = bench, controller, session

    async def say(self, **message: Any) -> None:
        self.controller.says.put_nowait(pool_pb2.ToAgent(**message))


@pytest_asyncio.fixture
async def site(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(session_module, "FIRST_PAUSE_S", 0.001)
    controller = Controller()
    async with bench.running():

        def inventory(revision: int) -> pool_pb2.Inventory:
            grants = [grant_to_wire(grant) for grant in bench.book.grants.values()]
            return pool_pb2.Inventory(node="n1", revision=revision, grants=grants)

        session = ControllerSession(controller.dial, runs=bench.runs, slices=bench.slices, inventory=inventory)
        stir = bench.slices.moved

        def moved() -> None:
            stir()
            session.changed()

        bench.slices.moved = moved
        bench.rules.fence = session.fence
        talking = asyncio.create_task(session.run())
        yield Site(bench, controller, session)
        talking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await talking


async def test_a_session_starts_with_a_whole_inventory_and_sends_the_next_when_it_changed(site: Site) -> None:
    first = (await site.controller.hear("inventory")).inventory
    assert (first.node, list(first.grants)) == ("n1", [])
    await site.bench.start(1)
    second = (await site.controller.hear("inventory")).inventory
    assert [grant.job_id for grant in second.grants] == [1]
    assert second.revision > first.revision


async def test_a_lost_session_is_dialled_again_and_starts_whole(site: Site) -> None:
    await site.controller.hear("inventory")
    await site.bench.start(1)
    await site.controller.hear("inventory")
    for _ in range(3):
        site.controller.says.put_nowait(LinkError("gone"))
        again = (await site.controller.hear("inventory")).inventory
        assert [grant.job_id for grant in again.grants] == [1]
    assert site.controller.calls == 4


async def test_the_terms_are_taken_in(site: Site) -> None:
    await site.say(
        offers=pool_pb2.Offers(
            offers=[pool_pb2.Offer(slice=FIRST, gres_class="x", ask=True)],
            classes=[pool_pb2.ClassProfiles(gres_class="x", profiles=["1g.20gb"])],
            gpus=["A"],
        )
    )
    await site.bench.until(lambda: FIRST in site.bench.book.terms.offers)
    assert site.bench.book.terms.classes == {"x": ("1g.20gb",)}


async def test_steps_are_made_and_answered_in_order_and_refused_where_somebody_is(site: Site) -> None:
    await site.bench.start(1)
    busy = pool_pb2.SliceShape(profile="1g.20gb", start=0)
    await site.say(step=pool_pb2.Step(id=7, gpu="A", destroy=[busy]))
    await site.say(step=pool_pb2.Step(id=8, gpu="A", destroy=[EMPTY]))
    refused = (await site.controller.hear("result")).result
    assert (refused.id, refused.code) == (7, "gpu_busy")
    assert "in use" in refused.error
    done = (await site.controller.hear("result")).result
    assert (done.id, done.error, done.code) == (8, "", "")
    assert [one.start for one in site.bench.gpus.now["A"].instances] == [0, 4]


async def test_an_epilog_returns_when_the_controller_has_published(site: Site) -> None:
    site.bench.book.terms = terms("A", offers={FIRST: Offer(gres_class="m20", ask=True)})
    await site.bench.start(1)
    epilog = asyncio.create_task(site.bench.end(1))
    released = (await site.controller.hear("released")).released
    assert (released.job_id, list(released.slices)) == (1, [FIRST])
    assert not epilog.done()
    await site.say(verdict=pool_pb2.Verdict(job_id=1))
    await asyncio.wait_for(epilog, PATIENCE_S)


async def test_an_epilog_waits_only_so_long_and_not_at_all_without_a_controller(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "VERDICT_S", 0.01)
    await site.controller.hear("inventory")
    site.bench.book.terms = terms("A", offers={FIRST: Offer(gres_class="m20", ask=True)})
    await site.bench.start(1)
    await asyncio.wait_for(site.bench.end(1), PATIENCE_S)
    await site.controller.hear("released")
    monkeypatch.setattr(session_module, "VERDICT_S", 600.0)
    site.session.connected.clear()
    await site.bench.start(1)
    await asyncio.wait_for(site.bench.end(1), PATIENCE_S)


async def test_a_step_under_way_is_finished_when_the_session_is_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.controller.hear("inventory")
    begun, go = asyncio.Event(), asyncio.Event()
    make = site.bench.slices.make

    async def slow(step: Step) -> None:
        begun.set()
        await go.wait()
        await make(step)

    monkeypatch.setattr(site.bench.slices, "make", slow)
    await site.say(step=pool_pb2.Step(id=1, gpu="A", destroy=[EMPTY]))
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    site.controller.says.put_nowait(LinkError("gone"))
    await site.controller.hear("inventory")
    go.set()
    await site.bench.until(lambda: [one.start for one in site.bench.gpus.now["A"].instances] == [0, 4])


async def test_an_answer_never_overtakes_the_inventory_it_speaks_of(site: Site) -> None:
    """A controller that hears "made" before it sees what was made would ask for it again."""
    await site.controller.hear("inventory")
    site.controller.takes.clear()
    site.session.changed()
    stale = await site.controller.hear("inventory")  # on its way while the step is made
    made = asyncio.Event()

    def moved() -> None:
        site.session.changed()
        made.set()

    site.bench.slices.moved = moved
    await site.say(step=pool_pb2.Step(id=7, gpu="A", destroy=[EMPTY]))
    await asyncio.wait_for(made.wait(), PATIENCE_S)
    await site.bench.until(lambda: site.session.owes > 0)
    site.controller.takes.set()
    kinds: list[str] = []
    while "result" not in kinds:
        message = await site.controller.heard.get()
        kinds.append(str(message.WhichOneof("message")))
        if kinds[-1] == "inventory":
            assert message.inventory.revision > stale.inventory.revision
    assert kinds[0] == "inventory"


async def test_an_apply_has_the_agent_try_its_gpus_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()

    async def retry() -> None:
        tried.set()

    monkeypatch.setattr(site.bench.slices, "retry", retry)
    await site.say(retry=pool_pb2.Retry())
    await site.say(step=pool_pb2.Step(id=8, gpu="A", destroy=[EMPTY]))
    assert (await site.controller.hear("result")).result.id == 8
    assert tried.is_set()
