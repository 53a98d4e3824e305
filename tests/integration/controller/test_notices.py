"""Lines on jobs by the controller: written once, read back, and never in the way when Slurm says no."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller import engine, notices
from slurm_plugin.controller.roster import GRACE_S
from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.pool import Mode
from slurm_plugin.ports import Notes
from tests.integration.controller.site import DictSlurm, until
from tests.integration.controller.test_controller import Site, controller
from tests.integration.link.munged import munged
from tests.unit.controller import pools

STARTED = 9_000


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_S", 0.05)
    monkeypatch.setattr("slurm_plugin.controller.books.POLL_S", 0.05)
    monkeypatch.setattr(notices, "ROUND_S", 0.02)
    monkeypatch.setattr(notices, "SHARE", 0)


class Clock:
    now = 10_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def busy(
    socket: Path, folder: Path, clock: Clock, *, mode: Mode = Mode.MANAGE, slurm: DictSlurm | None = None
) -> AsyncIterator[Site]:
    """Job 3 has the only slice, and job 7 has waited for one long enough."""
    slurm = slurm or DictSlurm({name: pools.slurm_node(name) for name in ("n1", "n2")})
    async with (
        controller(socket, folder, slurm=slurm, clock=clock, mode=mode) as site,
        site.agent("n1", (("7g.80gb", 0),)) as n1,
    ):
        if mode is Mode.MANAGE:
            await until(lambda: n1.as_offered() == {"7g.80gb": 1})
            site.slurm.jobs[3] = pools.pending(3, "7g.80gb")
            site.slurm.start(3, "n1", started_at=STARTED)
            await n1.bind(3, "7g.80gb", started_at=STARTED)
            desk = site.engine.desk
            await until(lambda: desk.roster["n1"].view.holder and any(job.on_nodes for job in desk.books.jobs))
        await wait_in_vain(site, clock, 7)
        yield site


async def wait_in_vain(site: Site, clock: Clock, *job_ids: int, gres_class: str = "7g.80gb") -> None:
    """Their time is up when the pool has decided about them, and no sooner."""
    for job_id in job_ids:
        site.slurm.jobs[job_id] = replace(pools.pending(job_id, gres_class), submitted_at=round(clock.now))
    await until(lambda: _known(site, job_ids))
    clock.now += notices.AFTER_S


def _known(site: Site, job_ids: tuple[int, ...]) -> bool:
    decision = site.engine.desk.decision
    return decision is not None and (site.config.mode is Mode.OBSERVE or set(job_ids) <= decision.waiting)


async def some_passes(site: Site) -> None:
    passes = site.engine.passes
    await until(lambda: site.engine.passes >= passes + 5)


async def test_a_job_that_waits_is_told_once_and_again_when_the_reason_changes(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with busy(socket, tmp_path, clock) as site:
        first = (7, "waits: n1 GPU 0 is free when job 3 ends")
        await until(lambda: site.slurm.notes_written == [first])
        clock.now += notices.CALM_S
        await some_passes(site)
        assert site.slurm.notes_written == [first]
        site.slurm.node_list["n1"] = replace(site.slurm.node_list["n1"], state="MIXED+DRAIN")
        await until(lambda: "DRAIN" in site.engine.desk.books.nodes["n1"].state)
        clock.now += notices.CALM_S
        await until(lambda: site.slurm.notes_written == [first, (7, "waits: no node where it may run takes jobs now")])


async def test_where_jobs_are_private_no_other_is_named(socket: Path, tmp_path: Path) -> None:
    slurm = DictSlurm({name: pools.slurm_node(name) for name in ("n1", "n2")}, noted=Notes(by_job={}, private=True))
    async with busy(socket, tmp_path, Clock(), slurm=slurm) as site:
        await until(lambda: site.slurm.notes_written)
        assert "job 3" not in site.slurm.notes_written[0][1]


async def test_what_stands_on_the_jobs_is_read_back_and_only_what_is_wrong_is_written(
    socket: Path, tmp_path: Path
) -> None:
    clock = Clock()
    async with busy(socket, tmp_path, clock) as site:
        await until(lambda: len(site.slurm.notes_written) == 1)
        line = site.slurm.notes_written[0][1]
        site.slurm.noted = Notes(by_job={7: line, 3: "waits: x"})
        clock.now += notices.REREAD_S
        await until(lambda: site.slurm.notes_written == [(7, line), (3, "got 7g.80gb on n1 GPU 0")])
        await some_passes(site)
        assert len(site.slurm.notes_written) == 2


async def test_what_somebody_has_changed_is_put_right_when_all_is_read_again(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with busy(socket, tmp_path, clock) as site:
        await until(lambda: len(site.slurm.notes_written) == 1)
        clock.now += notices.REREAD_S
        await until(lambda: len(site.slurm.notes_written) == 2)
        assert site.slurm.notes_written[0] == site.slurm.notes_written[1]


async def test_a_job_whose_line_slurm_refuses_stops_no_other(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with busy(socket, tmp_path, clock) as site:
        await until(lambda: len(site.slurm.notes_written) == 1)
        site.slurm.refuses_note = SlurmError("Job is in the process of being signaled")
        await wait_in_vain(site, clock, 8, 9)
        await until(lambda: [job_id for job_id, _ in site.slurm.notes_written] == [7, 8, 9])
        await some_passes(site)
        assert len(site.slurm.notes_written) == 3


async def test_a_slurm_that_does_not_answer_is_asked_again(socket: Path, tmp_path: Path) -> None:
    slurm = DictSlurm({name: pools.slurm_node(name) for name in ("n1", "n2")})
    slurm.refuses_note = SlurmUnavailable("no answer")
    async with busy(socket, tmp_path, Clock(), slurm=slurm) as site:
        await until(lambda: len(site.slurm.notes_written) > 2)
        site.slurm.refuses_note = None
        count = len(site.slurm.notes_written)
        await until(lambda: len(site.slurm.notes_written) > count)
        await some_passes(site)
        assert len(site.slurm.notes_written) == count + 1


async def test_an_error_of_ours_is_told_and_stops_nothing_else(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("odd job")

    with monkeypatch.context() as patch:
        patch.setattr(notices, "explain", broken)
        async with busy(socket, tmp_path, Clock()) as site:
            problems = site.engine.desk.problems
            await until(lambda: "odd job" in problems.get("notices", ""))
            await some_passes(site)
            patch.undo()
            await until(lambda: site.slurm.notes_written and "notices" not in problems)


async def test_a_pool_that_only_watches_writes_nothing(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with busy(socket, tmp_path, clock, mode=Mode.OBSERVE) as site:
        await wait_in_vain(site, clock, 8, gres_class="1g.10gb")
        await until(lambda: site.engine.desk.decision and 8 in site.engine.desk.decision.waiting)
        await some_passes(site)
        assert site.slurm.notes_written == []


async def test_switched_off_by_an_apply_the_lines_go(socket: Path, tmp_path: Path) -> None:
    async with busy(socket, tmp_path, Clock()) as site, await site.link() as link:
        await until(lambda: len(site.slurm.notes_written) == 1)
        site.config = replace(site.config, notices=False)
        await link.apply()
        await until(lambda: site.slurm.notes_written[1:] == [(7, "")])
        site.slurm.jobs[8] = replace(pools.pending(8, "7g.80gb"), submitted_at=STARTED)
        await some_passes(site)
        assert len(site.slurm.notes_written) == 2


async def test_a_controller_without_agents_says_nothing(socket: Path, tmp_path: Path) -> None:
    """To it every job waits for a node; the other controller of the pool, which has the agents, knows better."""
    clock = Clock()
    async with controller(socket, tmp_path, clock=clock) as site:
        async with site.agent("n1", (("1g.10gb", 0),)) as n1:
            await until(lambda: n1.as_offered() == {"1g.10gb": 1})
        await until(lambda: not site.engine.desk.has_agents)
        clock.now += GRACE_S
        await wait_in_vain(site, clock, 7)
        await some_passes(site)
        assert site.slurm.notes_written == []
        async with site.agent("n1", (("1g.10gb", 0),)):
            await until(lambda: site.slurm.notes_written)
