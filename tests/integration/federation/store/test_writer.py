"""What writes: what it says is done is on the disk; one that fails takes no other with it."""

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from federation.engine.origin import OriginRules, OriginSide
from federation.engine.sites import Sites
from federation.errors import Refused, StoreError, StoreFull, Unavailable
from federation.model.job import Job
from federation.model.spec import JobSpec
from federation.model.states import Origin
from federation.ports import Now
from federation.store import writer as writing
from federation.store.store import Store
from tests.integration.federation.store.rig import SMALL, add, job, numbers, opened, writer

BOX_BYTES = 12 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fed.db"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={BOX_BYTES}", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)  # a journal of a test that failed may be open


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


async def test_many_at_once_become_durable_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str] = []
    one = writing.Writer(path, journal=job(1).token, at=places.append)
    await asyncio.gather(*(one.run(partial(add, number=number)) for number in range(1000)))
    await one.close()
    assert places.count("commit: after") < 500
    store = opened(path)
    assert numbers(store) == set(range(1000))
    store.close()


async def test_its_log_is_brought_in_in_small_parts(path: Path) -> None:
    """A commit waits for no more pages than those, however long the journal is in service."""
    one, most = writer(path), 0
    for number in range(300):
        await one.run(partial(add, number=number, script=bytes(4096)))
        most = max(most, path.with_name("fed.db-wal").stat().st_size)
    assert 1 << 18 < most < 1 << 20
    await one.close()


async def test_what_closes_a_group_is_durable_with_it_and_told(path: Path) -> None:
    heard: asyncio.Queue[int] = asyncio.Queue()
    places: list[str] = []
    one = writing.Writer(path, journal=job(1).token, at=places.append)

    def then(store: Store) -> int:
        number = 1000 + len(numbers(store))
        add(store, number)
        return number

    one.then, one.told = then, heard.put_nowait
    await one.run(lambda store: add(store, 1))
    assert await asyncio.wait_for(heard.get(), 10) == 1001
    assert places.count("commit: after") == 1
    await one.close()
    store = opened(path)
    assert numbers(store) == {1, 1001}
    store.close()


async def test_what_closes_a_group_and_fails_takes_nothing_else_with_it(path: Path) -> None:
    def then(store: Store) -> None:
        add(store, 666)
        raise Refused("no")

    one = writer(path)
    heard: asyncio.Queue[Exception] = asyncio.Queue()
    one.then, one.failed = then, heard.put_nowait
    await one.run(lambda store: add(store, 1))
    assert isinstance(await asyncio.wait_for(heard.get(), 10), Refused)
    one.then = None
    assert await one.run(numbers) == {1}
    await one.close()


async def test_one_that_fails_is_undone_alone(path: Path) -> None:
    def fails(store: Store) -> None:
        add(store, 666)
        raise Refused("no")

    one = writer(path)
    calls = [one.run(lambda store: add(store, 1)), one.run(fails), one.run(lambda store: add(store, 2))]
    first, refused, last = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, last) == (None, None)
    assert isinstance(refused, Refused)
    assert await one.run(numbers) == {1, 2}
    assert await one.run(lambda store: store.jobs()[Origin.QUEUED, "", ""]) == 2
    await one.close()


@pytest.mark.parametrize("writes", [True, False])
async def test_a_listener_that_fails_stops_nothing(path: Path, writes: bool) -> None:
    def told(_: object) -> None:
        raise Refused("no")

    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
    one = writer(path)
    one.then, one.told = lambda _: None, told
    for number in range(3):
        await one.run(partial(add, number=number) if writes else lambda _: None)
    await one.close()
    assert [type(error) for error in heard] == [Refused] * 3


async def test_a_transaction_that_can_not_be_undone_is_told_and_the_next_is_tried(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise StoreError("no disk")

    one = writer(path)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "close_up", broken)
        patch.setattr(Store, "roll_back", broken)
        with pytest.raises(StoreError, match="no disk"):
            await one.run(lambda store: add(store, 1))
    with pytest.raises(StoreError):  # it is still in the last one, and gets rid of it
        await one.run(numbers)
    assert await one.run(numbers) == set()
    await one.close()


async def test_while_many_records_are_looked_at_others_go_on(path: Path) -> None:
    began, ends = threading.Event(), threading.Event()

    def looks(store: Store) -> set[int]:
        began.set()
        assert ends.wait(10)
        return numbers(store)

    one = writer(path)
    first, long = one.run(lambda store: add(store, 1)), asyncio.create_task(one.run(looks, long=True))
    await first
    while not began.is_set():  # noqa: ASYNC110 - the loop runs all the while
        await asyncio.sleep(0.001)
    later = asyncio.create_task(one.run(lambda store: add(store, 2)))
    await asyncio.sleep(0)
    ends.set()
    assert await long == {1}
    await later
    assert await one.run(numbers, long=True) == {1, 2}
    await one.close()


async def test_what_is_watched_and_became_durable_is_told_though_more_did_not_fit(small_disk: Path) -> None:
    heard: list[object] = []
    one = writer(small_disk / "fed.db", reserve_bytes=2 << 20, ballast_bytes=2 << 20)
    one.saved = heard.extend
    watched = {job(number).token for number in range(20)}

    def big(store: Store) -> None:
        add(store, 666)
        store.write("set_meta", {"name": "big", "value": bytes(32 << 20)})

    def small(store: Store, number: int) -> None:
        store.watched = watched
        add(store, number)

    results = await asyncio.gather(
        *(one.run(partial(small, number=number)) for number in range(20)), one.run(big), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None)] * 20 + [StoreFull]
    assert {found.token for found in heard if isinstance(found, Job)} == watched
    await one.close()


async def test_its_queue_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_WAITING", 10)
    one = writer(path)
    results = await asyncio.gather(*(one.run(numbers) for _ in range(5000)), return_exceptions=True)
    assert any(isinstance(result, Unavailable) for result in results)
    assert not any(isinstance(result, Exception) and not isinstance(result, Unavailable) for result in results)
    await one.close()


async def test_a_closed_one_says_so_after_all_that_came_before(path: Path) -> None:
    one = writer(path)
    last = asyncio.gather(one.run(lambda store: add(store, 1)), one.close())
    await last
    with pytest.raises(Unavailable, match="closed"):
        await one.run(numbers)


async def test_a_full_disk_stops_accepting_and_goes_on_with_what_is_under_way(small_disk: Path) -> None:
    path = small_disk / "fed.db"
    one = writer(path, reserve_bytes=2 << 20, ballast_bytes=2 << 20)
    assert await one.run(lambda store: store.may_accept())
    await asyncio.gather(*(one.run(partial(add, number=number)) for number in range(100)))
    fill(small_disk / "others")  # somebody else takes the disk to its last byte
    assert not await one.run(lambda store: store.may_accept())

    def end(store: Store, number: int) -> None:
        now = store.job(job(number).token)
        assert now is not None
        store.save_job(job(number, Origin.DONE, ended_at=1.0), was=now)

    for number in range(100):
        await one.run(partial(end, number=number))
    assert not (small_disk / "fed.db.ballast").exists()
    (small_disk / "others").unlink()
    for _ in range(writing.HOLD_EVERY):
        await one.run(numbers)
    async with asyncio.timeout(10):  # the ballast is written beside the journal
        while not await one.run(lambda store: store.may_accept()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await one.close()


async def test_a_new_job_on_a_disk_that_is_short_of_room_costs_no_ballast(small_disk: Path) -> None:
    one = writer(small_disk / "fed.db", reserve_bytes=2 << 20, ballast_bytes=2 << 20)
    assert await one.run(lambda store: store.may_accept())
    (small_disk / "others").write_bytes(bytes(BOX_BYTES - (3 << 20)))
    now = Now(wall=1e6, mono=0.0)
    origin = OriginSide(Sites("edge", (), now), OriginRules())
    with pytest.raises(Unavailable, match="short of room"):
        await one.run(lambda store: origin.accept(store, job(1).token, JobSpec(user="ann"), now))
    assert (small_disk / "fed.db.ballast").exists()
    await one.close()


async def test_what_does_not_fit_at_all_is_told_and_nothing_else_is_lost(small_disk: Path) -> None:
    path = small_disk / "fed.db"
    one = writer(path, ballast_bytes=SMALL)
    await one.run(lambda store: add(store, 1))
    large = one.run(lambda store: add(store, 2, bytes(BOX_BYTES)))
    small = one.run(lambda store: add(store, 3))
    full, fine = await asyncio.gather(large, small, return_exceptions=True)
    assert isinstance(full, StoreFull)
    assert fine is None
    assert await one.run(numbers) == {1, 3}
    await one.close()
    store = opened(path)
    assert numbers(store) == {1, 3}
    store.close()
