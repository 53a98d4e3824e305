"""Who may ask why a job waits, and that the answer over the link is the controller's own."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller import engine
from slurm_plugin.errors import RequestError
from slurm_plugin.explanation import Why
from slurm_plugin.explanation_wire import from_wire
from slurm_plugin.link.server import Caller
from tests.integration.controller.site import until
from tests.integration.controller.test_controller import controller
from tests.integration.link.munged import munged
from tests.unit.controller import pools


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


async def test_a_job_that_waits_is_explained_to_its_user_and_to_root(socket: Path, tmp_path: Path) -> None:
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await until(lambda: n1.as_offered() == {"1g.10gb": 7})
        started_at = int(time.time())
        site.slurm.jobs[3] = replace(pools.pending(3, "1g.10gb"), limit_s=600)
        site.slurm.start(3, "n1", started_at=started_at)
        await n1.bind(3, "1g.10gb", started_at=started_at)
        site.slurm.jobs[7] = replace(pools.pending(7, "3g.40gb"), account="physics")
        site.slurm.jobs[8] = pools.pending(8, "1g.10gb", 7)
        await until(lambda: site.engine.desk.decision and {7, 8} <= site.engine.desk.decision.waiting)
        await until(lambda: (it := site.engine.desk.decision) and (loan := it.loans.jobs.get(8)) and loan.gathered)
        told = from_wire(await link.explain(8))
        assert (told.why, [job.job_id for job in told.blockers]) == (Why.BUSY, [3])
        assert (told.free_at, told.idle, told.withheld, told.gathered) == (started_at + 600, 0, 6, 6)
        owner, other = Caller(uid=1000, peer=""), Caller(uid=1001, peer="")
        assert from_wire(await site.engine.explain(owner, 7, None)).why is Why.NOWHERE
        with pytest.raises(RequestError, match="job 7 is another user's"):
            await site.engine.explain(other, 7, None)
        with pytest.raises(RequestError, match="no job 99 waits"):
            await link.explain(99)


async def test_a_job_that_came_a_moment_ago_is_known(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "POLL_S", 60.0)
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN) as n1, await site.link() as link:
        await until(lambda: n1.as_offered() == {"1g.10gb": 7})
        site.slurm.jobs[7] = replace(pools.pending(7, "3g.40gb"), account="physics")
        assert from_wire(await link.explain(7)).job_id == 7


async def test_an_element_of_an_array_is_explained_by_its_own_number(socket: Path, tmp_path: Path) -> None:
    """Element 0 runs as job 6, element 7 has a record of its own, and the others wait as the array."""
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), await site.link() as link:
        array = replace(pools.pending(5, "3g.40gb"), array_id=5, tasks=3, elements="[1-5:2%9]")
        site.slurm.jobs[5] = array
        site.slurm.jobs[6] = replace(pools.running(6, "1g.10gb"), array_id=5, elements="0")
        site.slurm.jobs[8] = replace(array, job_id=8, tasks=1, elements="7")
        await until(lambda: site.engine.desk.decision and {5, 8} <= site.engine.desk.decision.waiting)
        for element, job_id, why in ((0, 6, Why.RUNS), (3, 5, Why.NOWHERE), (7, 8, Why.NOWHERE)):
            told = from_wire(await link.explain(5, element))
            assert (told.job_id, told.why, told.tasks) == (job_id, why, 1)
        assert from_wire(await link.explain(5)).tasks == 3
        with pytest.raises(RequestError, match="no job 5_2 waits"):
            await link.explain(5, 2)


async def test_status_tells_until_when_a_job_is_passed_over(socket: Path, tmp_path: Path) -> None:
    """Its claim is not taken for seconds, since nobody starts it here."""
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), await site.link() as link:
        site.slurm.jobs[7] = pools.pending(7, "1g.10gb")
        await until(lambda: site.engine.desk.decision and site.engine.desk.decision.loans.users)
        (waiting,) = (await link.status()).pending
        assert waiting.back_at > 0
        told = from_wire(await link.explain(7))
        assert (told.why, told.strikes) == (Why.PASSED_OVER, 1)
