"""FirstJobId stays ahead of the ids that Slurm has given, whatever happens to the file or to Slurm."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slurm_plugin.controller import job_ids
from slurm_plugin.controller.engine import Engine
from slurm_plugin.controller.job_ids import AHEAD, LEAST, Ahead, first_job_id
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.pool import Mode
from slurm_plugin.ports import JobIds
from tests.integration.controller.site import DictSlurm, until
from tests.integration.controller.test_controller import NODES, controller
from tests.integration.link.munged import munged
from tests.unit.controller import pools

MOST = 67_043_328


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


class Counting(DictSlurm):
    following: int | None = 7
    asked = 0

    async def job_ids(self) -> JobIds:
        self.asked += 1
        if self.following is None:
            raise SlurmUnavailable("no answer")
        return JobIds(following=self.following, most=MOST)


@asynccontextmanager
async def ahead(
    socket: Path, folder: Path, file: Path, mode: Mode = Mode.MANAGE
) -> AsyncIterator[tuple[Counting, Engine]]:
    slurm = Counting({name: pools.slurm_node(name) for name in NODES})
    async with controller(socket, folder, slurm=slurm, mode=mode) as site:
        task = asyncio.create_task(Ahead(site.engine.desk, slurm, file).run())
        try:
            yield slurm, site.engine
        finally:
            task.cancel()
            await asyncio.wait([task])


async def looks(slurm: Counting) -> None:
    asked = slurm.asked
    await until(lambda: slurm.asked >= asked + 3)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_ids, "LOOK_S", 0.01)


async def test_the_file_is_ahead_and_is_written_only_when_that_gets_less(socket: Path, tmp_path: Path) -> None:
    file = tmp_path / "job_ids.conf"
    async with ahead(socket, tmp_path, file) as (slurm, engine):
        await until(lambda: file.exists() and file.read_text() == f"FirstJobId={7 + AHEAD}\n")
        assert file.stat().st_mode & 0o777 == 0o644
        slurm.following = 7 + LEAST - 1
        await looks(slurm)
        assert file.read_text() == f"FirstJobId={7 + AHEAD}\n"
        slurm.following = None
        await looks(slurm)
        slurm.following = 7 + LEAST
        await until(lambda: file.read_text() == f"FirstJobId={7 + LEAST + AHEAD}\n")
        slurm.following = 7  # somebody began anew with an empty StateSaveLocation
        await until(lambda: file.read_text() == f"FirstJobId={7 + AHEAD}\n")
        assert "job_ids" not in engine.desk.problems


async def test_where_the_pool_is_only_observed_nothing_is_written(socket: Path, tmp_path: Path) -> None:
    file = tmp_path / "job_ids.conf"
    async with ahead(socket, tmp_path, file, Mode.OBSERVE) as (slurm, engine):
        await until(lambda: engine.passes >= 5)
        assert slurm.asked == 0
    assert not file.exists()


async def test_a_file_that_can_not_be_written_is_told_until_it_can(socket: Path, tmp_path: Path) -> None:
    file = tmp_path / "later" / "job_ids.conf"
    async with ahead(socket, tmp_path, file) as (_, engine):
        await until(lambda: "job_ids" in engine.desk.problems)
        assert engine.desk.problems["job_ids"] == f"can't write {file}: No such file or directory"
        file.parent.mkdir()
        await until(lambda: file.exists() and "job_ids" not in engine.desk.problems)


@pytest.mark.parametrize(
    ("following", "first"),
    [
        (1, 1 + AHEAD),
        (MOST - 2 * AHEAD - 1, MOST - AHEAD - 1),
        (MOST - 2 * AHEAD, 1),
        (MOST, 1),
        ((3 << 26) + 50, 50 + AHEAD),
    ],
)
def test_near_the_last_id_and_in_a_federation_of_clusters(following: int, first: int) -> None:
    assert first_job_id(JobIds(following=following, most=MOST)) == first
