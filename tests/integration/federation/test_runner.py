"""Sites in service: what is accepted at one runs at another once, across restarts of either and a link that was cut."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

import federation.runner
from federation.engine.effects import Effect
from federation.errors import Refused, Unavailable
from federation.model.job import Job
from federation.model.messages import Message, Room, Submit
from federation.model.states import End, Origin
from federation.model.token import Key
from federation.ports import Now
from federation.runner import Runner
from federation.store.store import Store
from slurm_plugin.errors import ConfigError
from tests.integration.federation.site import PATIENCE_S, SPEC, Net, Site, all_done, jobs, linked, until


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


@pytest.fixture
def pair(net: Net) -> tuple[Site, Site]:
    """Edge sends to hpc, and has no room of its own."""
    edge, hpc = net.site("edge", "hpc"), net.site("hpc", "edge")
    edge.backend.full = True
    return edge, hpc


async def submit(site: Site, count: int) -> list[UUID]:
    assert site.runner is not None
    tokens = [uuid4() for _ in range(count)]
    await asyncio.gather(*(site.runner.accept(token, SPEC) for token in tokens))
    return tokens


async def test_jobs_run_at_the_other_site_once_and_are_released(pair: tuple[Site, Site]) -> None:
    edge, hpc = pair
    hpc.backend.size = 7
    async with edge.up(), hpc.up():
        await linked(edge, hpc)
        tokens = await submit(edge, 100)
        await until(lambda: all_done(edge, tokens))
        ends = {(job.site, job.outcome and job.outcome.end, job.attempt) for job in await jobs(edge, tokens)}
        assert ends == {("hpc", End.EXITED, 1)}
        assert set(hpc.backend.ran.values()) == {1}
        assert len(hpc.backend.ran) == 100
        await until(lambda: released(hpc))


async def test_who_watches_a_job_hears_of_each_change_once_it_is_durable(pair: tuple[Site, Site]) -> None:
    edge, hpc = pair
    async with edge.up() as runner, hpc.up():
        await linked(edge, hpc)
        heard: list[Origin] = []
        over = asyncio.Event()
        token, other = uuid4(), uuid4()

        def changed(job: Job) -> None:
            heard.append(job.state)
            over.set() if job.state is Origin.DONE else None

        with runner.watching(token, changed):
            await asyncio.gather(runner.accept(token, SPEC), runner.accept(other, SPEC))
            async with asyncio.timeout(PATIENCE_S):
                await over.wait()
    assert (heard[0], heard[-1]) == (Origin.QUEUED, Origin.DONE)
    assert Origin.SENDING in heard


async def released(site: Site) -> bool:
    """Nothing is left to be done about any attempt, and its output has been dropped."""
    assert site.runner is not None
    attempts = await site.runner.read(lambda store: store.attempts_since("edge", 0, 1000))
    left = {(one.state.value, one.due_at) for one in attempts}
    return left == {("released", None)} and site.backend.forgotten == set(site.backend.ran)


@pytest.mark.parametrize("fault", [Refused("no"), ZeroDivisionError()])
async def test_a_message_that_fails_takes_no_other_of_its_batch_with_it(
    pair: tuple[Site, Site], fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, hpc = pair
    keys = [Key(uuid4(), 1) for _ in range(5)]
    async with hpc.up() as runner:
        whole = runner.engine.message

        def message(store: Store, sender: str, message: Message, now: Now) -> list[Effect]:
            if isinstance(message, Submit) and message.key == keys[2]:
                raise fault
            return whole(store, sender, message, now)

        monkeypatch.setattr(runner.engine, "message", message)
        await runner.messages("edge", [Submit(key=key, pool="batch", spec=SPEC) for key in keys])
        known = await runner.read(lambda store: [store.attempt(key) is not None for key in keys])
    assert known == [True, True, False, True, True]


async def test_a_job_that_can_not_be_gone_on_with_stops_no_other_and_is_told(net: Net) -> None:
    edge = net.site("edge")
    async with edge.up() as runner:
        assert runner.trouble == ""
        await runner.accept(uuid4(), replace(SPEC, pin="edge/\udc80"))
        await until(lambda: troubled(runner))
        assert "UnicodeEncodeError" in runner.trouble
        tokens = await submit(edge, 5)
        await until(lambda: all_done(edge, tokens))


async def troubled(runner: Runner) -> bool:
    return bool(runner.trouble)


async def test_a_job_runs_at_home_when_there_is_room(net: Net) -> None:
    edge = net.site("edge")
    async with edge.up():
        tokens = await submit(edge, 5)
        await until(lambda: all_done(edge, tokens))
        assert len(edge.backend.ran) == 5


async def test_why_a_pool_takes_nothing_is_what_a_job_is_told(net: Net) -> None:
    edge = net.site("edge")
    edge.backend.why = "sinfo: nobody answers"
    async with edge.up():
        tokens = await submit(edge, 1)

        async def told() -> bool:
            return (await jobs(edge, tokens))[0].why == "no pool fits now: edge/batch: sinfo: nobody answers"

        await until(told)


async def test_a_pool_whose_adapter_fails_takes_nothing_and_ends_no_daemon(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = net.site("edge")

    async def room() -> Room:
        raise ConfigError("line 5: not understood")

    with monkeypatch.context() as broken:
        broken.setattr(edge.backend, "room", room)
        async with edge.up() as runner:
            tokens = await submit(edge, 1)

            async def told() -> bool:
                return "a fault of its daemon's" in (await jobs(edge, tokens))[0].why

            await until(told)
            assert "line 5: not understood" in runner.trouble
    async with edge.up():
        await until(lambda: all_done(edge, tokens))


async def test_what_was_accepted_without_a_link_goes_when_there_is_one(net: Net, pair: tuple[Site, Site]) -> None:
    edge, hpc = pair
    net.cut = True
    async with edge.up():
        tokens = await submit(edge, 20)
        async with hpc.up():
            assert {job.state for job in await jobs(edge, tokens)} == {Origin.QUEUED}
            net.cut = False
            await linked(edge, hpc)
            await until(lambda: all_done(edge, tokens))
    assert set(hpc.backend.ran.values()) == {1}


class Full:
    """Whose queue to every site is full."""

    def send(self, site: str, message: Message) -> bool:
        return False


async def test_what_finds_a_queue_full_is_counted_and_logged(
    pair: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(federation.runner, "ROOMS_S", 0.01)
    caplog.set_level(logging.INFO)
    edge, _ = pair
    async with edge.up(peers=Full()) as runner:
        await runner.link("hpc", True)
        await until(lambda: _true("effects.dropped" in caplog.messages))
    said = next(record for record in caplog.records if record.message == "effects.dropped")
    assert vars(said)["send"] > 0


async def _true(found: bool) -> bool:
    return found


async def test_restarts_of_both_lose_nothing_and_run_nothing_twice(pair: tuple[Site, Site]) -> None:
    edge, hpc = pair
    tokens: list[UUID] = []
    for _ in range(4):
        async with edge.up():
            async with hpc.up():
                await linked(edge, hpc)
                tokens += await submit(edge, 25)
            tokens += await submit(edge, 5)
    async with edge.up(), hpc.up():
        await linked(edge, hpc)
        await until(lambda: all_done(edge, tokens))
        assert len(await jobs(edge, tokens)) == len(tokens) == 120
    assert set(hpc.backend.ran.values()) == {1}
    assert {key.token for key in hpc.backend.ran} == set(tokens)


async def test_a_drained_site_takes_nothing_new_and_ends_what_it_has(pair: tuple[Site, Site]) -> None:
    edge, hpc = pair
    async with edge.up() as runner, hpc.up():
        tokens = await submit(edge, 3)
        await runner.drain()
        with pytest.raises(Unavailable, match="draining"):
            await runner.accept(uuid4(), SPEC)
        await linked(edge, hpc)
        await until(lambda: all_done(edge, tokens))
        with pytest.raises(Refused, match="is over"):
            await runner.cancel(tokens[0])
