"""Who may ask why a job waits, and that the answer over the link is the controller's own."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

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
        told = from_wire(await link.explain(8))
        assert (told.why, told.idle, [job.job_id for job in told.blockers], told.free_at) == (
            Why.BUSY,
            6,
            [3],
            started_at + 600,
        )
        owner, other = Caller(uid=1000, peer=""), Caller(uid=1001, peer="")
        assert from_wire(await site.engine.explain(owner, 7)).why is Why.NOWHERE
        with pytest.raises(RequestError, match="job 7 is another user's"):
            await site.engine.explain(other, 7)
        with pytest.raises(RequestError, match="no job 99 waits"):
            await link.explain(99)


async def test_status_tells_until_when_a_job_is_passed_over(socket: Path, tmp_path: Path) -> None:
    """Its claim is not taken for seconds, since nobody starts it here."""
    async with controller(socket, tmp_path) as site, site.agent("n1", pools.SEVEN), await site.link() as link:
        site.slurm.jobs[7] = pools.pending(7, "1g.10gb")
        await until(lambda: site.engine.desk.decision and site.engine.desk.decision.loans.users)
        (waiting,) = (await link.status()).pending
        assert waiting.back_at > 0
        told = from_wire(await link.explain(7))
        assert (told.why, told.strikes) == (Why.PASSED_OVER, 1)
