"""What a target tells of an output that it can't read: the reader hears of it, and asks again."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from federation.access.acting import Account
from federation.errors import Unavailable
from federation.model.states import End, Outcome, Target
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage import outputs
from federation.stage.holdings import Held, Holdings
from federation.stage.pull import Pull
from federation.stage.slots import MOST_PARTS
from federation.wire.convert import key_to_wire
from tests.integration.federation.daemons import passable
from tests.integration.federation.stage.bench import KEY, Far
from tests.integration.federation.stage.steps import Step, cancelled, files_of

WAIT_S = 30
DATA = os.urandom(2 << 20)


@pytest.fixture(name="passable")
def _passable() -> Iterator[Path]:
    with passable() as found:
        yield found


def ended(folder: Path) -> Far:
    """Its attempt has ended, and left its outputs."""
    there = Far(folder, [])
    for name, data in (("o", DATA), ("e", b"")):
        (there.work / name).write_bytes(data)
        (there.work / name).chmod(0o644)
    there.goes_to(Target.ENDED, Outcome(end=End.EXITED, exit_code=0, stdout_size=len(DATA)))
    return there


class Fails:
    """Once it is called for what is not the first part."""

    def __init__(self, call: Callable[[int, int, int], bytes], error: Exception) -> None:
        self._call, self._error = call, error
        self.left = 1

    def __call__(self, handle: int, size: int, offset: int) -> bytes:
        if offset and self.left:
            self.left -= 1
            raise self._error
        return self._call(handle, size, offset)


@pytest.mark.timeout(WAIT_S)
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
async def test_a_folder_that_fails_is_told_with_the_file_s_name_and_read_again(
    passable: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    there, pull = ended(passable), Pull(KEY, passable)
    monkeypatch.setattr(os, "pread", Fails(os.pread, OSError(number, why := os.strerror(number))))
    with pytest.raises(Unavailable, match=f"can't read {there.work}/o: {why}"):
        await pull.run(there.near)
    await pull.run(there.near)
    assert pull.ended
    assert (passable / "stdout").read_bytes() == DATA


@pytest.mark.timeout(WAIT_S)
async def test_a_fault_of_ours_is_told_to_the_reader_and_logged(
    passable: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there, pull = ended(passable), Pull(KEY, passable)
    monkeypatch.setattr(os, "pread", Fails(os.pread, ZeroDivisionError()))
    with pytest.raises(Unavailable, match="a fault of the daemon's there"):
        await pull.run(there.near)
    assert [(one.getMessage(), one.levelno) for one in caplog.records] == [("output.failed", logging.ERROR)]
    await pull.run(there.near)
    assert (passable / "stdout").read_bytes() == DATA


@pytest.mark.timeout(WAIT_S)
async def test_what_fails_before_there_is_a_file_is_told_whatever_is_in_its_text(
    passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def place(holdings: Holdings, held: Held) -> None:
        raise Unavailable("no folder caf\udce9")

    there = ended(passable)
    monkeypatch.setattr(Holdings, "place", place)
    with pytest.raises(Unavailable, match="no folder caf"):
        await Pull(KEY, passable).run(there.near)


@pytest.mark.timeout(WAIT_S)
@pytest.mark.parametrize("name", ["_open", "_read"])
async def test_a_feed_that_is_cut_while_a_thread_has_its_file_closes_it_after(
    passable: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    there, here = ended(passable), passable / "here"
    here.mkdir()
    monkeypatch.setattr(outputs, name, step := Step(getattr(outputs, name)))
    task = asyncio.create_task(Pull(KEY, here).run(there.near))
    await step.until_begun()
    await cancelled(task, 1)
    step.go.set()
    await asyncio.wait((task,), timeout=WAIT_S)
    assert task.cancelled()
    assert files_of(there.work) == []


class Served:
    """Files as a server of files shows them: an open one has what there was when it was opened, until it is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open, self._read = outputs._open, outputs._read
        self._sizes: dict[int, int] = {}
        self.opened = 0
        self.on_open: Callable[[int], None] = lambda opened: None
        monkeypatch.setattr(outputs, "_open", self.open)
        monkeypatch.setattr(outputs, "_read", self.read)

    def open(self, path: Path, account: Account) -> int:
        handle = self._open(path, account)
        self._sizes[handle] = os.fstat(handle).st_size if handle >= 0 else 0
        if path.name == "o":
            self.opened += 1
            self.on_open(self.opened)
        return handle

    def read(self, handle: int, path: Path, size: int, offset: int) -> bytes:
        return self._read(handle, path, max(0, min(size, self._sizes[handle] - offset)), offset)


def running(folder: Path) -> Far:
    """It has written half of it."""
    there = Far(folder, [])
    for name, data in (("o", DATA[: len(DATA) // 2]), ("e", b"")):
        (there.work / name).write_bytes(data)
        (there.work / name).chmod(0o644)
    there.goes_to(Target.RUNNING)
    return there


async def until_caught_up(pull: Pull) -> None:
    while not pull.all_there:
        pull.changed.clear()
        await pull.changed.wait()


@pytest.mark.timeout(WAIT_S)
@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(end=End.EXITED, exit_code=0, started_at=1.0, stdout_size=len(DATA)),
        Outcome(end=End.NODE_FAIL, started_at=1.0, stdout_size=len(DATA) // 2),  # as it was seen
    ],
)
async def test_what_an_open_file_does_not_show_of_a_job_s_last_bytes_comes_by_opening_it_again(
    passable: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    there, pull = running(passable), Pull(KEY, passable)
    served = Served(monkeypatch)
    task = asyncio.create_task(pull.run(there.near))
    await until_caught_up(pull)
    (there.work / "o").write_bytes(DATA)
    there.goes_to(Target.ENDED, outcome)
    await task
    assert (passable / "stdout").read_bytes() == DATA
    assert [one.gaps for one in pull.streams.values()] == [[], []]
    assert served.opened == 2


@pytest.mark.timeout(WAIT_S)
@pytest.mark.parametrize(("comes_at", "gaps"), [(4, []), (99, [(len(DATA) // 2, len(DATA) // 2)])])
async def test_bytes_that_are_on_record_are_waited_for_and_not_for_ever(
    passable: Path, monkeypatch: pytest.MonkeyPatch, comes_at: int, gaps: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(outputs, "LATE_S", 0.01)
    there, pull = running(passable), Pull(KEY, passable)
    served = Served(monkeypatch)

    def comes(opened: int) -> None:
        if opened == comes_at:
            (there.work / "o").write_bytes(DATA)

    served.on_open = comes
    there.goes_to(Target.ENDED, Outcome(end=End.EXITED, exit_code=0, stdout_size=len(DATA)))
    await pull.run(there.near)
    assert (pull.streams["stdout"].gaps, pull.ended) == (gaps, True)
    assert gaps or served.opened == comes_at + 1


def asks(*streams: "pb.Stream.ValueType") -> AsyncIterator[pb.OutputAsk]:
    async def said() -> AsyncIterator[pb.OutputAsk]:
        for stream in streams:
            yield pb.OutputAsk(key=key_to_wire(KEY), stream=stream, offset=0, credit=32 << 20)
        await asyncio.Event().wait()

    return said()


@pytest.mark.timeout(WAIT_S)
async def test_a_peer_that_takes_nothing_makes_a_target_hold_no_more_than_its_share(
    passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ended(passable)
    read: list[bytes] = []
    take, enough = outputs._read, asyncio.Event()
    loop = asyncio.get_running_loop()

    def counted(handle: int, path: Path, size: int, offset: int) -> bytes:
        read.append(take(handle, path, min(size, 1 << 10), offset))
        if len(read) >= MOST_PARTS:
            loop.call_soon_threadsafe(enough.set)
        return read[-1]

    monkeypatch.setattr(outputs, "_read", counted)
    streams = [there.near.outputs(asks(pb.STREAM_STDOUT)) for _ in range(100)]
    first = [asyncio.ensure_future(anext(one)) for one in streams]
    await enough.wait()
    _, waiting = await asyncio.wait(first, timeout=0.3)
    assert (len(read), bool(waiting)) == (MOST_PARTS, True)
    for task in first:
        task.cancel()
    await asyncio.wait(first)
    for one in streams:
        assert isinstance(one, AsyncGenerator)
        await one.aclose()
    await Pull(KEY, passable).run(there.near)
    assert (passable / "stdout").read_bytes() == DATA
