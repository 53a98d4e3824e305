"""A journal that is torn where nobody looked when it was opened: nothing more is taken, and it is told."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from federation.errors import StoreUnfit
from federation.store.opening import whole
from federation.store.store import Store
from tests.integration.federation.daemons import PATIENCE_S, pair
from tests.integration.federation.store.rig import add, job, numbers, opened, tear, writer

JOBS = 500


def filled(path: Path) -> Path:
    store = opened(path)
    with store.transaction():
        for number in range(JOBS):
            add(store, number, bytes(3000))
    store.close()
    return path


def specs(store: Store) -> None:
    for number in range(JOBS):
        store.spec(job(number).token)


@pytest.mark.parametrize("read", [numbers, specs])
async def test_whoever_meets_it_first_nobody_is_served_after(tmp_path: Path, read: Callable[[Store], object]) -> None:
    tear(filled(tmp_path / "fed.db"))
    one = writer(tmp_path / "fed.db")
    watching = asyncio.create_task(one.damage())
    assert await one.run(lambda store: store.spec(job(0).token)) is not None
    assert not watching.done()
    with pytest.raises(StoreUnfit, match="damaged"):
        await one.run(read)
    with pytest.raises(StoreUnfit, match="damaged"):
        await one.run(lambda store: store.spec(job(0).token))
    with pytest.raises(StoreUnfit, match="damaged"):
        await asyncio.wait_for(watching, PATIENCE_S)
    await one.close()


def test_all_of_it_is_read_for_doctor(tmp_path: Path) -> None:
    path = tmp_path / "fed.db"
    assert whole(path) == ""
    assert not path.exists()
    assert whole(filled(path)) == ""
    tear(path)
    assert "damaged" in whole(path)
    path.write_bytes(b"x" * 8192)
    assert "damaged" in whole(path)


def test_one_that_is_open_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("federation.store.opening.BUSY_S", 0.05)
    store = opened(tmp_path / "fed.db")
    with pytest.raises(StoreUnfit, match="open in another daemon"):
        whole(tmp_path / "fed.db")
    store.close()


def test_a_daemon_ends_and_its_doctor_says_why() -> None:
    with pair() as both:
        edge = both.edge
        assert edge.end() == 0
        tear(filled(edge.folder / "state" / "fed.db"))
        said = edge.fed("daemon", wants=StoreUnfit.exit_code).stderr
        assert b"journal.damaged" in said
        assert b"error: the journal is damaged" in said
        assert b"fed.db is damaged" in edge.fed("doctor", wants=1).stdout
