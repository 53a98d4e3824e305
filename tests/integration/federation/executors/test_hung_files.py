"""A pool whose file server hangs holds threads of its own, and nobody else's."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from federation.executors.host import MountedHost
from federation.executors.layout import Record
from federation.executors.local import LocalExecutor, LocalPool
from federation.executors.spool import Spool
from federation.model.token import Key
from slurm_plugin.slurm.process import Site

PATIENCE_S = 30.0
MANY = 100  # more than there are threads
KEYS = [Key(UUID(int=nth), 1) for nth in range(MANY)]


class Hung(Spool):
    """Whoever looks there waits for `back`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.back = threading.Event(), threading.Event()

    def record(self, key: Key) -> Record:
        self.asked.set()
        self.back.wait()
        return super().record(key)


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Hung]:
    spool = Hung(tmp_path / "hung")
    yield spool
    spool.back.set()


def local(spool: Spool) -> LocalExecutor:
    return LocalExecutor(LocalPool(name="batch", spool=spool, cpus=4))


async def test_looks_at_one_local_pool_keep_nobody_else_waiting(hung: Hung, tmp_path: Path) -> None:
    one, other = local(hung), local(Spool(tmp_path / "well"))
    looks = [asyncio.create_task(one.look([key])) for key in KEYS]
    await _hang(hung)
    async with asyncio.timeout(PATIENCE_S):
        assert await other.look(KEYS[:1])
        await asyncio.to_thread(lambda: None)  # what everything else is done on
    hung.back.set()
    await asyncio.gather(*looks)


async def test_nor_do_those_at_one_of_mounted_files(hung: Hung, tmp_path: Path) -> None:
    host = MountedHost(hung, Site())
    looks = [asyncio.create_task(host.records([key])) for key in KEYS]
    await _hang(hung)
    async with asyncio.timeout(PATIENCE_S):
        assert await MountedHost(Spool(tmp_path / "well"), Site()).records(KEYS[:1])
        await asyncio.to_thread(lambda: None)
    hung.back.set()
    await asyncio.gather(*looks)


async def _hang(hung: Hung) -> None:
    """All of them have begun, as far as threads go."""
    async with asyncio.timeout(PATIENCE_S):
        while not hung.asked.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(10):  # a turn for each
            await asyncio.sleep(0)
