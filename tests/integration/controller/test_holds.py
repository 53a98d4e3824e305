"""A job that Slurm holds for a class that vanished is released, and nothing that somebody holds."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller import engine, holds
from slurm_plugin.errors import SlurmError
from slurm_plugin.model import RunKey
from tests.integration.controller.site import DictSlurm, until
from tests.integration.controller.test_controller import Site, controller
from tests.integration.link.munged import munged
from tests.unit.controller import pools

LONG_AFTER_SLURMCTLDS_START = 9_500


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_S", 0.05)
    monkeypatch.setattr("slurm_plugin.controller.books.POLL_S", 0.05)


class Clock:
    now = 10_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def pool(socket: Path, folder: Path, clock: Clock) -> AsyncIterator[Site]:
    async with controller(socket, folder, clock=clock) as site, site.agent("n1", pools.SEVEN):
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        yield site


def hold(site: Site, reason: str, *, gres_class: str = "1g.10gb", partitions: tuple[str, ...] = ("gpu",)) -> None:
    job = pools.pending(7, gres_class)
    site.slurm.jobs[7] = replace(
        job, reason=reason, priority=0, eligible=False, partitions=partitions, submitted_at=LONG_AFTER_SLURMCTLDS_START
    )


async def patience(site: Site, clock: Clock, waited_s: float = holds.PATIENCE_S) -> None:
    for _ in range(2):
        passes = site.engine.passes
        await until(lambda: site.engine.passes >= passes + 4)  # noqa: B023
        clock.now += waited_s


@pytest.mark.parametrize(
    ("gres_class", "partitions"),
    [("1g.10gb", ("gpu",)), ("7g.80gb", ("gpu", "vgpu-wait"))],
    ids=["published", "listed"],
)
async def test_it_is_released_when_slurm_would_not_hold_it_again(
    socket: Path, tmp_path: Path, gres_class: str, partitions: tuple[str, ...]
) -> None:
    clock = Clock()
    async with pool(socket, tmp_path, clock) as site, await site.link() as link:
        hold(site, holds.REASON, gres_class=gres_class, partitions=partitions)
        await patience(site, clock)
        assert site.slurm.released == [7]
        await until(lambda: (tmp_path / "state/history.jsonl").read_text().count("released") == 1)
        (told,) = [entry for entry in (await link.history()).entries if entry.what == "released"]
        assert told.why == f"job 7: Slurm held it as BadConstraints, and vgpu:{gres_class} is there again"


async def test_not_while_nothing_of_its_class_is_published(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    async with pool(socket, tmp_path, clock) as site:
        hold(site, holds.REASON, gres_class="7g.80gb")
        await patience(site, clock)
        assert site.slurm.released == []


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "Dependency", "launch failed requeued held"])
async def test_what_somebody_holds_is_never_released(socket: Path, tmp_path: Path, reason: str) -> None:
    clock = Clock()
    async with pool(socket, tmp_path, clock) as site:
        hold(site, reason, partitions=("gpu", "vgpu-wait"))
        await patience(site, clock)
        await patience(site, clock)
        assert site.slurm.released == []


class HeldMeanwhile(DictSlurm):
    """Its owner holds the job between the reading of the queue and the release."""

    async def release(self, run: RunKey, reason: str = "") -> None:
        self.jobs[7] = replace(self.jobs[7], reason="JobHeldUser")
        await super().release(run, reason)


async def test_nor_what_its_owner_holds_at_that_moment(socket: Path, tmp_path: Path) -> None:
    clock = Clock()
    slurm = HeldMeanwhile({name: pools.slurm_node(name) for name in ("n1", "n2")})
    async with controller(socket, tmp_path, slurm=slurm, clock=clock) as site, site.agent("n1", pools.SEVEN):
        await until(lambda: site.gres("n1").get("1g.10gb") == 7)
        hold(site, holds.REASON)
        await patience(site, clock)
        assert (slurm.jobs[7].reason, slurm.released) == ("JobHeldUser", [])


async def test_one_that_is_held_again_is_released_less_often_and_then_no_more(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "TIMES", 2)
    clock = Clock()
    async with pool(socket, tmp_path, clock) as site:
        hold(site, holds.REASON)
        await patience(site, clock)
        assert site.slurm.released == [7]
        hold(site, holds.REASON)
        await patience(site, clock)
        assert site.slurm.released == [7]
        await patience(site, clock, holds.FIRST_PAUSE_S)
        assert site.slurm.released == [7, 7]
        hold(site, holds.REASON)
        await patience(site, clock, holds.LONGEST_PAUSE_S)
        assert site.slurm.released == [7, 7]


async def test_a_refusal_of_slurms_ends_nothing(socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    async with pool(socket, tmp_path, clock) as site:
        refusals = 1
        works = site.slurm.release

        async def release(run: RunKey, reason: str = "") -> None:
            nonlocal refusals
            refusals -= 1
            if refusals >= 0:
                raise SlurmError("slurm_update error: Access/permission denied")
            await works(run, reason)

        monkeypatch.setattr(site.slurm, "release", release)
        hold(site, holds.REASON)
        await patience(site, clock)
        assert site.slurm.released == []
        await patience(site, clock, holds.FIRST_PAUSE_S)
        assert site.slurm.released == [7]
