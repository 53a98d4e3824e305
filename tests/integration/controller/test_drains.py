"""What Slurm does when it has used a job's id twice is undone; no other drain is, and no other job released."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller import drains, engine, rescue
from slurm_plugin.controller.drains import FORGOT_S
from slurm_plugin.controller.prologs import ENDED_S
from slurm_plugin.model import RunKey
from slurm_plugin.pool import DuplicateJobid
from tests.integration.controller.site import DictSlurm, ListAgent, until
from tests.integration.controller.test_controller import Site, controller
from tests.integration.link.munged import munged
from tests.unit.controller import pools

TWICE = "Duplicate jobid [root@1796034490]"
HELD = "launch failed requeued held"
PUT_BACK = 9_500


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_S", 0.05)
    monkeypatch.setattr("slurm_plugin.controller.books.POLL_S", 0.05)
    monkeypatch.setattr(rescue, "SPACING_S", 0.01)


class Clock:
    now = 10_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def one_node(socket: Path, folder: Path, clock: Clock) -> AsyncIterator[tuple[Site, ListAgent]]:
    slurm = DictSlurm({name: pools.slurm_node(name) for name in ("n1", "n2")})
    async with controller(socket, folder, slurm=slurm, clock=clock) as site, site.agent("n1", pools.SEVEN) as n1:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        yield site, n1


def drain(site: Site, reason: str = TWICE, *, held: str = HELD) -> None:
    site.slurm.node_list["n1"] = replace(site.slurm.node_list["n1"], state="MIXED+DRAIN", reason=reason)
    refuse(site, held=held)


def refuse(site: Site, *, held: str = HELD) -> None:
    job = pools.pending(7, "1g.10gb")
    site.slurm.jobs[7] = replace(job, reason=held, priority=0, eligible=False, submitted_at=PUT_BACK)


async def some_passes(site: Site) -> None:
    passes = site.engine.passes
    await until(lambda: site.engine.passes >= passes + 5)


async def patience(site: Site, clock: Clock) -> None:
    await some_passes(site)
    assert not site.slurm.resumed, "Slurm has its moment"
    clock.now += drains.PATIENCE_S
    await some_passes(site)


async def test_a_node_drained_for_an_id_used_twice_is_resumed_and_the_job_released(
    socket: Path, tmp_path: Path
) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        drain(site)
        await patience(site, clock)
        assert (site.slurm.resumed, site.slurm.released) == (["n1"], [7])


@pytest.mark.parametrize("started_s", [-20, 0, 30])
async def test_a_node_drained_for_a_prolog_that_its_restarted_slurmd_forgot_is_resumed(
    socket: Path, tmp_path: Path, started_s: int
) -> None:
    """It may have been killed once more since."""
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        site.slurm.node_list["n1"] = replace(site.slurm.node_list["n1"], slurmd_started_at=PUT_BACK + started_s)
        drain(site, f"Prolog error [root@{PUT_BACK}]")
        await patience(site, clock)
        assert (site.slurm.resumed, site.slurm.released) == (["n1"], [7])


@pytest.mark.parametrize("started_s", [-61, 61])
async def test_a_prolog_that_fails_long_after_its_slurmds_start_is_an_admins(
    socket: Path, tmp_path: Path, started_s: int
) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        site.slurm.node_list["n1"] = replace(site.slurm.node_list["n1"], slurmd_started_at=PUT_BACK + started_s)
        drain(site, f"Prolog error [root@{PUT_BACK}]")
        await patience(site, clock)
        assert (site.slurm.resumed, site.slurm.released) == ([], [])


@pytest.mark.parametrize("reason", ["Duplicate jobid, says the admin", "disk [root@1796034490]", "Not responding"])
async def test_a_drain_for_any_other_reason_is_somebodys(socket: Path, tmp_path: Path, reason: str) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        drain(site, reason)
        await patience(site, clock)
        assert (site.slurm.resumed, site.slurm.released) == ([], [])


async def test_a_job_that_its_user_holds_is_not_released(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        drain(site, held="JobHeldUser")
        await patience(site, clock)
        assert (site.slurm.resumed, site.slurm.released) == (["n1"], [])


class HeldMeanwhile(DictSlurm):
    """An admin holds the job between the reading of the queue and the release."""

    async def release(self, run: RunKey, reason: str = "") -> None:
        self.jobs[7] = replace(self.jobs[7], reason="JobHeldAdmin")
        await super().release(run, reason)


async def test_nor_one_that_an_admin_holds_at_that_moment(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    slurm = HeldMeanwhile({name: pools.slurm_node(name) for name in ("n1", "n2")})
    async with controller(socket, tmp_path, slurm=slurm, clock=clock) as site, site.agent("n1", pools.SEVEN):
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        drain(site)
        await patience(site, clock)
        assert (slurm.resumed, slurm.jobs[7].reason, slurm.released) == (["n1"], "JobHeldAdmin", [])


async def test_a_node_where_a_forgotten_job_may_still_run_stays_drained_until_that_is_over(
    socket: Path, tmp_path: Path
) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, n1):
        await until(lambda: n1.offers)
        await n1.bind(5, "1g.10gb", started_at=9_000)
        drain(site)
        await patience(site, clock)
        assert site.slurm.resumed == []
        await n1.release(5)
        clock.now += drains.AGAIN_S
        await until(lambda: site.slurm.resumed == ["n1"])


async def resumed(site: Site, times: int) -> None:
    await until(lambda: len(site.slurm.resumed) == times)


async def test_a_job_that_is_refused_again_and_again_is_left_for_a_person(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        for times in range(1, drains.TIMES + 2):
            drain(site)
            await some_passes(site)
            clock.now += drains.AGAIN_S
            await resumed(site, times)
            await some_passes(site)
        assert site.slurm.released == [7] * drains.TIMES


@pytest.mark.parametrize(
    ("started_s", "forgot"), [(5, True), (5 - FORGOT_S, True), (-FORGOT_S, False)], ids=["since", "soon", "long-ago"]
)
async def test_a_job_that_slurmctld_put_back_alone_is_released_when_it_started_since_or_soon_before(
    socket: Path, tmp_path: Path, started_s: float, forgot: bool
) -> None:
    """It has forgotten the drain, or the job was put back when that was over."""
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        site.slurm.booted_at = PUT_BACK + round(started_s)
        refuse(site)
        await some_passes(site)
        assert (site.slurm.resumed, site.slurm.released) == ([], [7] if forgot else [])


async def test_slurmctld_is_asked_now_and_then_when_it_was_started_while_a_job_stays_refused(
    socket: Path, tmp_path: Path
) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        refuse(site)
        await some_passes(site)
        await some_passes(site)
        assert site.slurm.asked_boot == 1
        clock.now += drains.AGAIN_S
        await until(lambda: site.slurm.asked_boot == 2)


async def test_a_node_that_leaves_the_pool_while_its_drain_is_looked_at_is_left_alone(
    socket: Path, tmp_path: Path
) -> None:
    clock = Clock()
    slurm = DictSlurm({name: pools.slurm_node(name) for name in ("n1", "n2")})
    async with controller(socket, tmp_path, slurm=slurm, clock=clock) as site:
        desk = site.engine.desk
        drain(site)
        await until(lambda: "n1" in desk.books.nodes and drains.drained_twice(desk.books.nodes["n1"]))
        late = drains.Drains(desk, site.slurm)
        late.see()
        clock.now += drains.PATIENCE_S
        late.see()
        desk.roster.follow(pools.config("n2"))
        running = asyncio.create_task(late.run())
        await some_passes(site)
        assert not running.done()
        running.cancel()
        assert site.slurm.resumed == []


async def test_by_policy_it_is_only_reported(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _), await site.link() as link:
        site.config = replace(site.config, duplicate_jobid=DuplicateJobid.REPORT)
        await link.apply()
        await until(lambda: site.engine.desk.config == site.config)
        drain(site)
        await patience(site, clock)
        assert site.slurm.resumed == []
        decision = site.engine.desk.decision
        assert decision is not None
        assert any("Duplicate jobid" in line for line in decision.problems["n1"])


@pytest.mark.parametrize("forgot", [True, False], ids=["slurmctld-forgot", "the-agent-forgot"])
async def test_a_job_that_ended_unseen_is_requeued_only_when_slurmctld_is_younger_than_it(
    socket: Path, tmp_path: Path, forgot: bool
) -> None:
    clock = Clock()
    started_at = round(clock.now - ENDED_S)
    async with one_node(socket, tmp_path, clock) as (site, _):
        site.slurm.booted_at = started_at + (5 if forgot else -5)
        site.slurm.jobs[7] = replace(pools.pending(7, "1g.10gb"), partitions=("gpu",))
        site.slurm.start(7, "n1", started_at=started_at)
        await until(lambda: site.engine.desk.decision and site.engine.desk.decision.lost, "it is found")
        clock.now += rescue.PATIENCE_S
        await some_passes(site)
        assert site.slurm.sent_back == ([(7, "requeue")] if forgot else [])
