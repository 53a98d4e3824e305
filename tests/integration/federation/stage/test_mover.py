"""What an origin takes of one job is bounded by what came, not by what the far side says of it.

And what it remembers of transfers is bounded by those that are wanted yet.
"""

import asyncio
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest

from federation.access.paths import Folder
from federation.engine.sites import FIRST_BYTE_S, LEAST_MOVED
from federation.errors import Unavailable
from federation.model.job import Job
from federation.model.spec import JobSpec, Lease
from federation.model.states import End, Origin, Outcome
from federation.model.token import Key
from federation.ports import now
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage import mover as movers
from federation.stage.mover import Mover
from federation.stage.spool import Home, Spool
from federation.store.opening import in_memory
from federation.store.store import Store
from tests.integration.federation.daemons import passable
from tests.integration.federation.site import Net, linked, until
from tests.integration.federation.stage.bench import KEY, ROOT, Far, Offer, file_of

T = TypeVar("T")


class Engine:
    def __init__(self) -> None:
        self.here: list[Key] = []

    async def moved(self, site: str, size: int, seconds: float) -> None:
        """Of no use to it."""

    async def read(self, call: Callable[[Store], T]) -> T:
        spec = JobSpec(user="root", outputs=(b"file",))
        return call(type("Known", (), {"spec": lambda _self, _token: spec})())

    async def results_here(self, key: Key, remark: str = "") -> None:
        self.here.append(key)


@pytest.mark.parametrize(("most", "fits"), [(8, True), (7, False)])
@pytest.mark.parametrize("claimed", [0, 1, 5])
async def test_outputs_and_files_are_bounded_together(tmp_path: Path, most: int, claimed: int, fits: bool) -> None:
    (tmp_path / "home").mkdir()
    spool = Spool(tmp_path / "spool")
    spool.begin(KEY.token, Home(user="root", folder=str(tmp_path / "home")))
    far, engine = Offer.of(file=b"abc"), Engine()
    far.parts = [
        pb.OutputPart(stream=pb.STREAM_STDOUT, offset=0, data=b"12345"),
        pb.OutputPart(stream=pb.STREAM_STDOUT, offset=5, end=True),
        pb.OutputPart(stream=pb.STREAM_STDERR, offset=0, end=True),
    ]
    mover = Mover(spool, lambda: engine, lambda _: far, lambda _: ROOT, lambda _: most)
    mover.follow("hpc", KEY)  # somebody read it while it ran
    await until(lambda: _is(not mover._tasks))
    assert mover.pull(KEY).ended
    ended = Outcome(end=End.EXITED, exit_code=0, started_at=1.0, ended_at=2.0, stdout_size=claimed)
    mover.fetch_results("hpc", KEY, ended)
    progress = mover.progress[KEY]
    await until(lambda: _is(bool(engine.here or progress.why)))
    assert (engine.here == [KEY], (tmp_path / "home/file").exists()) == (fits, fits)
    assert fits or progress.why.startswith("its output has 3 bytes, and 2 are taken")
    await mover.close()


async def _is(done: bool) -> bool:
    return done


async def test_an_output_that_nobody_looks_at_any_more_is_not_remembered(tmp_path: Path) -> None:
    mover = Mover(Spool(tmp_path), lambda: Engine(), lambda _: None, lambda _: ROOT)
    looked_at = mover.pull(KEY)
    assert mover.pull(KEY) is looked_at
    del looked_at
    assert len(mover._pulls) == 0


class Journal(Engine):
    """With a store."""

    def __init__(self) -> None:
        super().__init__()
        connection = in_memory()
        self.store = Store(connection, journal=UUID(int=1))
        weakref.finalize(self.store, connection.close)

    async def read(self, call: Callable[[Store], T]) -> T:
        return call(self.store)


def job(number: int, state: Origin = Origin.ACCEPTED, attempt: int = 1) -> Job:
    known = Job(token=UUID(int=number), user="root", lease=Lease(), accepted_at=1.0, due_at=None)
    return replace(known, state=state, attempt=attempt, site="hpc", pool="batch")


async def test_how_far_it_came_is_forgotten_when_it_is_through_or_its_attempt_is_over(tmp_path: Path) -> None:
    engine = Journal()
    mover = Mover(Spool(tmp_path), lambda: engine, lambda _: None, lambda _: ROOT)
    known = [job(1), job(2, Origin.DONE), job(3, attempt=2)]
    for one in known:
        engine.store.add_job(one, JobSpec(user="root"))
    for number in range(1, 5):  # the last is not known at all
        mover.push_inputs("hpc", Key(UUID(int=number), 1), JobSpec(user="root"))
    await until(lambda: _is(not mover._tasks))
    assert {one.why for one in mover.progress.values()} == {"no link to hpc now"}
    assert len(mover.progress) == 4
    await mover.tidy()
    assert list(mover.progress) == [known[0].key]


async def test_inputs_that_are_through_are_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pushed(*_: object) -> int:
        """All there."""
        return 0

    monkeypatch.setattr(movers, "push", pushed)
    mover = Mover(Spool(tmp_path), lambda: Engine(), lambda _: Offer(), lambda _: ROOT)
    mover.push_inputs("hpc", KEY, JobSpec(user="root"))
    assert list(mover.progress) == [KEY]
    await until(lambda: _is(not mover._tasks))
    assert mover.progress == {}


async def test_how_fast_inputs_travelled_is_heeded_where_the_next_job_is_placed(tmp_path: Path) -> None:
    net, data = Net(tmp_path), os.urandom(LEAST_MOVED)
    edge, hpc = net.site("edge", "hpc"), net.site("hpc", "edge")
    with passable() as folder:
        far, spool = Far(folder, [file_of(b"data", data)]), Spool(tmp_path / "spool")
        (spool.begin(KEY.token, Home(user="root", folder=str(tmp_path))) / "0").write_bytes(data)
        spool.finish(KEY.token, pb.Manifest(files=far.files))
        async with edge.up() as runner, hpc.up() as other:
            await linked(edge, hpc)
            await other.tell_rooms()

            async def speeds() -> list[float]:
                pools = await runner.read(lambda _: runner.engine.sites.pools(Counter(), now()))
                return [pool.bytes_per_s for pool in pools if pool.site == "hpc"]

            async def known() -> bool:
                return await speeds() not in ([], [1 / FIRST_BYTE_S])

            await until(lambda: _true(speeds()))
            assert not await known()
            mover = Mover(spool, lambda: runner, lambda _: far.near, lambda _: ROOT)
            mover.push_inputs("hpc", KEY, JobSpec(user="root"))
            await until(known)
            assert far.here == [KEY]
            await mover.close()


async def _true(found: Awaitable[list[float]]) -> bool:
    return bool(await found)


async def test_a_fault_of_ours_says_that_it_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(movers, "push", fails)
    mover = Mover(Spool(tmp_path), lambda: Engine(), lambda _: Offer(), lambda _: ROOT)
    mover.push_inputs("hpc", KEY, JobSpec(user="root"))
    await until(lambda: _is(not mover._tasks))
    assert mover.progress[KEY].why == "a fault of the daemon's: its log says which"
    assert [(one.getMessage(), one.levelno) for one in caplog.records] == [("transfer.failed", logging.ERROR)]


async def test_transfers_that_find_no_place_are_told_of_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(movers, "MOST_WAITING", 2)
    mover = Mover(Spool(tmp_path), lambda: Engine(), lambda _: None, lambda _: ROOT)
    for number in range(10):
        mover.push_inputs("hpc", replace(KEY, attempt=number), JobSpec(user="root"))
    assert len(mover.progress) == 2
    assert [one.getMessage() for one in caplog.records] == ["transfer.dropped"]
    assert mover._drops.count == 8
    await mover.close()


DONE = Outcome(end=End.EXITED, exit_code=0, started_at=1.0, ended_at=2.0)


async def test_how_much_of_the_results_is_here_is_known_while_they_come(tmp_path: Path) -> None:
    """And that what came before a cut is counted no higher than the whole."""
    size, come = (3 << 20) + 5, asyncio.Event()
    far, engine = Offer.of(file=bytes(size)), Engine()

    def cut(sent: int) -> None:
        if not come.is_set():
            come.set()
            raise Unavailable("the link was cut")

    mover = Mover(Spool(tmp_path / "spool"), lambda: engine, lambda _: far, lambda _: ROOT)
    mover.spool.begin(KEY.token, Home(user="root", folder=str(tmp_path)))
    far.cut = cut
    mover.fetch_results("hpc", KEY, DONE)
    await until(lambda: _is(not mover._tasks))
    stopped = mover.progress[KEY]
    assert (stopped.what, stopped.moved, stopped.total, stopped.why) == ("results", 0, size, "the link was cut")
    (tmp_path / "file").write_bytes(bytes(size))
    mover.fetch_results("hpc", KEY, DONE)
    again = mover.progress[KEY]
    await until(lambda: _is(engine.here == [KEY]))
    assert (again.moved, again.total) == (size, size)
    await mover.close()


class Stuck(Offer):
    """A site that takes and gives nothing, and says nothing of it."""

    async def results(self, request: pb.ResultsRequest) -> pb.Manifest:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


async def test_a_site_that_is_slow_keeps_no_other_site_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movers, "MOST_TO_HOME", 2 * movers.MOST_AT_ONCE)
    engine = Engine()
    sites = {"slow": Stuck(), "hpc": Offer()}
    mover = Mover(Spool(tmp_path), lambda: engine, sites.get, lambda _: ROOT)
    keys = [Key(UUID(int=number), 1) for number in range(movers.MOST_AT_ONCE + 1)]
    for key in keys:
        mover.spool.begin(key.token, Home(user="root", folder=str(tmp_path)))
    for key in keys[:-1]:
        mover.fetch_results("slow", key, DONE)
    await until(lambda: _is(mover._gates["fetch", "slow"].locked()))
    mover.fetch_results("hpc", keys[-1], DONE)
    await until(lambda: _is(engine.here == keys[-1:]))
    await mover.close()


async def test_nor_do_results_keep_inputs_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[Key] = []

    async def push(_far: object, _spool: object, key: Key, _seen: object) -> int:
        pushed.append(key)
        return 0

    monkeypatch.setattr(movers, "push", push)
    monkeypatch.setattr(movers, "MOST_AT_ONCE", 1)
    mover = Mover(Spool(tmp_path), lambda: Engine(), lambda _: Stuck(), lambda _: ROOT)
    mover.spool.begin(KEY.token, Home(user="root", folder=str(tmp_path)))
    mover.fetch_results("hpc", KEY, DONE)
    await until(lambda: _is(mover._gates["fetch", "hpc"].locked()))
    mover.push_inputs("hpc", KEY, JobSpec(user="root"))
    await until(lambda: _is(pushed == [KEY]))
    await mover.close()


class Users(Engine):
    """Each job is of a user of its token's number."""

    async def read(self, call: Callable[[Store], T]) -> T:
        def spec(_: object, token: UUID) -> JobSpec:
            return JobSpec(user=f"user{token.int % 2}", outputs=(b"file",))

        return call(type("Known", (), {"spec": spec})())


async def test_a_users_folder_that_hangs_keeps_no_other_user_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of his jobs are over, and on few cores too."""
    hung, awake, whole = threading.Semaphore(0), threading.Event(), Folder.__init__

    def opened(folder: Folder, path: Path) -> None:
        if path.name == "hangs":
            hung.release()
            awake.wait()
        whole(folder, path)

    monkeypatch.setattr(Folder, "__init__", opened)
    (tmp_path / "home").mkdir()
    engine = Users()
    mover = Mover(Spool(tmp_path / "spool"), lambda: engine, lambda _: Offer.of(file=b"abc"), lambda _: ROOT)
    hanging = [Key(UUID(int=2 * number), 1) for number in range(2 * movers.MOST_AT_ONCE)]
    well = Key(UUID(int=1), 1)
    for key in hanging:
        mover.spool.begin(key.token, Home(user="user0", folder=str(tmp_path / "hangs")))
        mover.fetch_results("hpc", key, DONE)
    mover.spool.begin(well.token, Home(user="user1", folder=str(tmp_path / "home")))
    try:
        for _ in range(movers.MOST_TO_HOME):
            assert await asyncio.to_thread(hung.acquire, timeout=30.0)
        mover.fetch_results("hpc", well, DONE)
        await until(lambda: _is(engine.here == [well]))
    finally:
        awake.set()
    assert (tmp_path / "home/file").read_bytes() == b"abc"
    await mover.close()
    await until(lambda: _is(not any(one.name.startswith("home_") for one in threading.enumerate())))
