"""A job whose prolog was lost is sent back by the controller, and no other job."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.controller import engine, rescue
from slurm_plugin.controller.prologs import IN_PROLOG, RESTARTED_S
from slurm_plugin.controller.state import LostProlog
from slurm_plugin.errors import SlurmError
from slurm_plugin.pool import Mode, StuckProlog
from tests.integration.controller.site import DictSlurm, ListAgent, until
from tests.integration.controller.test_controller import Site, controller
from tests.integration.link.munged import munged
from tests.unit.controller import pools

NOW = 10_000.0
STARTED = round(NOW - RESTARTED_S) - 10


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_S", 0.05)
    monkeypatch.setattr(rescue, "SPACING_S", 0.01)


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def one_node(socket: Path, folder: Path, clock: Clock) -> AsyncIterator[tuple[Site, ListAgent]]:
    slurm = DictSlurm({name: replace(pools.slurm_node(name), slurmd_started_at=STARTED + 5) for name in ("n1", "n2")})
    async with controller(socket, folder, slurm=slurm, clock=clock) as site, site.agent("n1", pools.SEVEN) as n1:
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        yield site, n1


def lose(site: Site, job_id: int, started_at: int = STARTED) -> None:
    site.slurm.jobs[job_id] = replace(pools.pending(job_id, "1g.10gb"), partitions=("gpu",), reason=IN_PROLOG)
    site.slurm.start(job_id, "n1", started_at=started_at)


async def found(site: Site, clock: Clock) -> None:
    """Let it be seen that a job is lost, and time go by."""
    await until(lambda: _lost(site), "a prolog is seen lost")
    clock.now += rescue.PATIENCE_S


async def sent_back(site: Site, times: int) -> None:
    await until(lambda: len(site.slurm.sent_back) == times)


def _lost(site: Site) -> tuple[LostProlog, ...]:
    decision = site.engine.desk.decision
    return decision.lost if decision else ()


async def some_passes(site: Site) -> None:
    passes = site.engine.passes
    await until(lambda: site.engine.passes >= passes + 3)


async def test_a_job_that_lost_its_prolog_is_requeued_once(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        lose(site, 7)
        await found(site, clock)
        await until(lambda: site.slurm.sent_back)
        await some_passes(site)
        assert site.slurm.sent_back == [(7, "requeue")]
        assert "prologs" not in site.engine.desk.problems


async def test_one_that_can_not_be_requeued_is_cancelled_and_told(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _), await site.link() as link:
        site.slurm.takes_back = False
        lose(site, 7)
        await found(site, clock)
        await until(lambda: site.slurm.sent_back == [(7, "vgpu: slurmd was restarted in its prolog on n1")])
        assert any("job 7 was cancelled" in line for line in (await link.status()).problems)
        clock.now += rescue.TOLD_S
        await until(lambda: "prologs" not in site.engine.desk.problems)


async def test_what_slurm_says_last_counts(socket: Path, tmp_path: Path) -> None:
    """The same id is another run's by the time it is asked for."""
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        lose(site, 7)
        await until(lambda: _lost(site))
        (lost,) = _lost(site)
        site.slurm.jobs[7] = replace(site.slurm.jobs[7], started_at=STARTED + 9, reason="None")
        await some_passes(site)
        site.engine._rescue.see([lost])
        clock.now += rescue.PATIENCE_S
        site.engine._rescue.see([lost])
        await some_passes(site)
        assert site.slurm.sent_back == []


async def test_a_job_that_starts_after_all_is_left_alone(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, n1):
        lose(site, 7)
        await until(lambda: _lost(site))
        await n1.bind(7, "1g.10gb", started_at=STARTED)
        site.slurm.jobs[7] = replace(site.slurm.jobs[7], reason="None")
        await until(lambda: not _lost(site))
        clock.now += rescue.PATIENCE_S
        await some_passes(site)
        assert site.slurm.sent_back == []


@pytest.mark.parametrize("change", [{"mode": Mode.OBSERVE}, {"stuck_prolog": StuckProlog.REPORT}], ids=str)
async def test_a_pool_that_only_watches_or_reports_from_now_on_sends_nothing_back(
    socket: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _), await site.link() as link:
        lose(site, 7)
        await until(lambda: any("it is sent back" in line for line in _problems(site, "n1")))
        site.config = replace(site.config, **change)
        await link.apply()
        await until(lambda: any("scontrol requeue it" in line for line in _problems(site, "n1")))
        clock.now += rescue.PATIENCE_S
        await some_passes(site)
        assert site.slurm.sent_back == []


def _problems(site: Site, node: str) -> tuple[str, ...]:
    decision = site.engine.desk.decision
    return decision.problems.get(node, ()) if decision else ()


async def test_nothing_is_sent_back_while_the_agent_is_gone(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        pass
    site.slurm.jobs.clear()
    async with controller(socket, tmp_path, slurm=site.slurm, clock=clock) as site:
        lose(site, 7)
        clock.now += 1000
        await some_passes(site)
        assert site.slurm.sent_back == []


async def test_a_slurm_that_refuses_is_asked_again_later_and_it_is_told(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        tries: list[int] = []

        async def refuse(run: object) -> None:
            tries.append(1)
            raise SlurmError("Requested operation is presently disabled")

        monkeypatch.setattr(site.slurm, "requeue", refuse)
        lose(site, 7)
        await found(site, clock)
        await until(lambda: "presently disabled" in site.engine.desk.problems.get("prologs", ""))
        await some_passes(site)
        assert len(tries) == 1
        clock.now += rescue.AGAIN_S
        await until(lambda: len(tries) == 2)


async def test_a_job_that_loses_every_prolog_is_left_for_a_person(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with one_node(socket, tmp_path, clock) as (site, _):
        for times in range(1, rescue.TIMES + 1):
            lose(site, 7, STARTED - times)
            await found(site, clock)
            await sent_back(site, times)
            site.slurm.jobs[7] = pools.pending(7, "1g.10gb")
            await until(lambda: not _lost(site))
        lose(site, 7)
        await found(site, clock)
        await until(lambda: "lost its prolog 3 times" in site.engine.desk.problems.get("prologs", ""))
        assert len(site.slurm.sent_back) == rescue.TIMES
