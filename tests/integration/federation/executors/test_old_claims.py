"""Claims are kept for as long as anything can come late, and no longer; what runs is looked for once."""

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from federation.engine.target import TOMBSTONE_S
from federation.executors import layout, ssh_scripts
from federation.executors.local import LocalExecutor, LocalPool
from federation.executors.spool import Spool
from federation.model.token import Key

KEYS = [Key(UUID(int=nth), 1) for nth in range(1, 5)]
OLD_S = (layout.CLAIM_DAYS + 2) * 86400.0
PATIENCE_S = 30.0


def by_the_spool(spool: Spool) -> None:
    spool.forget(Key(UUID(int=99), 1))


def by_the_login_node(spool: Spool) -> None:
    subprocess.run(["sh", "-c", ssh_scripts.sweep(str(spool.root))], check=True)


@pytest.mark.parametrize("sweep", [by_the_spool, by_the_login_node])
def test_old_claims_go_when_nothing_else_is_left(tmp_path: Path, sweep: Callable[[Spool], None]) -> None:
    spool = Spool(tmp_path / "spool")
    old, fresh, unreleased, emptied = KEYS
    for key in KEYS:
        spool.fence(key)
    (spool.folder(unreleased) / "exit").touch()
    (spool.folder(emptied) / "claim").unlink()  # by a sweep that was killed
    (spool.root / "others").mkdir()
    at = time.time() - OLD_S
    for path in (*(spool.folder(key) for key in (old, unreleased, emptied)), spool.root / "others"):
        os.utime(path, (at, at))
    sweep(spool)
    left = {layout.name_of(key) for key in (fresh, unreleased)}
    assert {one.name for one in spool.root.iterdir()} == left | {"others"}
    assert spool.record(fresh).fenced
    assert spool.record(unreleased).fenced


def test_a_claim_outlives_the_journals_memory_of_its_attempt() -> None:
    assert layout.CLAIM_DAYS * 86400 > TOMBSTONE_S


def test_old_claims_are_looked_for_now_and_then(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.forget(KEYS[0])
    spool.fence(KEYS[1])
    os.utime(spool.folder(KEYS[1]), (1.0, 1.0))
    spool.forget(KEYS[0])
    assert spool.record(KEYS[1]).fenced  # not with each


class Slow(Spool):
    """Whoever lists it waits for `go_on`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lists, self.go_on = 0, threading.Event()

    def attempts(self) -> Iterator[Key]:
        self.lists += 1
        self.go_on.wait(PATIENCE_S)
        return super().attempts()


async def test_a_search_that_takes_long_goes_on_when_the_call_that_began_it_was_cut_off(tmp_path: Path) -> None:
    spool = Slow(tmp_path / "spool")
    executor = LocalExecutor(LocalPool(name="batch", spool=spool, cpus=4))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await executor.room()
    spool.go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        assert (await executor.room()).free_cpus == 4
    assert spool.lists == 1
