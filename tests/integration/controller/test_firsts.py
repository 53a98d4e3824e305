"""Jobs that a guarantee is for are put before the others, an element of an array at a time, and not at every pass."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.controller import firsts
from slurm_plugin.errors import SlurmError
from slurm_plugin.model import RunKey
from tests.integration.controller.site import until
from tests.integration.controller.test_controller import Site, controller
from tests.integration.link.munged import munged
from tests.unit.controller import pools


class Clock:
    now = 10_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with munged() as path:
        yield path


@pytest.fixture
async def scene(socket: Path, tmp_path: Path) -> AsyncIterator[tuple[Site, firsts.Firsts, Clock]]:
    """Job 7 waits, and elements 3 and later of array 8."""
    clock = Clock()
    async with controller(socket, tmp_path, clock=clock) as site, site.agent("n1", pools.SEVEN):
        site.slurm.jobs[7] = pools.pending(7, "1g.10gb")
        site.slurm.jobs[8] = replace(pools.pending(8, "1g.10gb"), tasks=4, first_task=3)
        await until(lambda: len(site.engine.desk.books.jobs) == 2)
        one = firsts.Firsts(site.engine.desk, site.slurm)
        running = asyncio.create_task(one.run())
        yield site, one, clock
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_each_is_put_first_once_and_again_when_it_is_still_behind(
    scene: tuple[Site, firsts.Firsts, Clock],
) -> None:
    site, one, clock = scene
    one.see({7: 10, 8: 10})
    await until(lambda: len(site.slurm.put) == 2)
    assert site.slurm.put == [(7, 10, -1), (8, 10, 3)]
    one.see({7: 12})
    await asyncio.sleep(0)
    clock.now += firsts.AGAIN_S
    one.see({7: 2**32})
    await until(lambda: len(site.slurm.put) == 3)
    assert site.slurm.put[2] == (7, 2**32 - 3, -1), "2**32 - 2 is Slurm's word for no change"


async def test_what_slurm_says_no_to_stops_nothing(
    scene: tuple[Site, firsts.Firsts, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, _ = scene
    put = site.slurm.put_first

    async def refuse(run: RunKey, priority: int, task: int = -1) -> None:
        if run.job_id == 7:
            raise SlurmError("Access/permission denied")
        await put(run, priority, task)

    monkeypatch.setattr(site.slurm, "put_first", refuse)
    one.see({7: 10, 8: 10})
    await until(lambda: site.slurm.put == [(8, 10, 3)])


async def test_a_controller_without_agents_puts_nobody_first(socket: Path, tmp_path: Path) -> None:
    """The other controller, which has the agents, knows what its guarantees lack."""
    clock = Clock()
    async with controller(socket, tmp_path, clock=clock) as site:
        site.slurm.jobs[7] = pools.pending(7, "1g.10gb")
        await until(lambda: len(site.engine.desk.books.jobs) == 1)
        one = firsts.Firsts(site.engine.desk, site.slurm)
        running = asyncio.create_task(one.run())
        one.see({7: 10})
        async with site.agent("n1", pools.SEVEN):
            await until(lambda: site.engine.desk.has_agents)
            one.see({7: 12})
            await until(lambda: site.slurm.put)
        assert site.slurm.put == [(7, 12, -1)]
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
