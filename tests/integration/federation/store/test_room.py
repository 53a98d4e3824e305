"""Files that come to the journal's disk leave it room, however long they go on."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from federation.desk import submit
from federation.errors import FedError, StoreFull, Unavailable
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import hash_of
from federation.stage.heap import Heap
from federation.stage.pull import Pull
from federation.stage.spool import Home, Spool
from tests.integration.federation.stage.bench import KEY, Offer
from tests.integration.federation.store.rig import add, numbers, writer

BOX_BYTES = 12 << 20
LEAVE_BYTES = 4 << 20
DATA = bytes(256 << 10)
TRIES = 3  # of each that fills, after the first that found no room

Filler = Callable[[Path, int], Awaitable[None]]


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("federation.store.room.FILES_LEAVE_BYTES", LEAVE_BYTES)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={BOX_BYTES}", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


async def chunk(disk: Path, nth: int) -> None:
    data = nth.to_bytes(8, "big") + DATA
    Heap(disk / "staging").put(hash_of(data), data)


async def output(disk: Path, nth: int) -> None:
    folder = Spool(disk / "jobs").attempt(KEY)
    start = Pull(KEY, folder).streams["stdout"].durable
    one = pb.OutputPart(stream=pb.STREAM_STDOUT, offset=start, data=DATA)
    part = pb.OutputPart(stream=pb.STREAM_STDOUT, offset=start + len(DATA), missing=1)  # what came is durable now
    with pytest.raises(Unavailable, match=r"stopped telling|can't keep the output") as raised:
        await Pull(KEY, folder).run(Offer(parts=[one, part]))
    if "keep" in str(raised.value):
        raise raised.value


async def own_input(disk: Path, nth: int) -> None:
    spool, token, reader = Spool(disk / "jobs"), UUID(int=1000 + nth), asyncio.StreamReader()
    spool.begin(token, Home(user="ann", folder="/"))
    reader.feed_data(DATA)
    reader.feed_eof()
    await submit._take_one(spool, token, 0, pb.File(path=b"data", size=len(DATA), mode=0o644), reader)


FILLERS = ((chunk, Unavailable), (output, Unavailable), (own_input, StoreFull))


@pytest.mark.parametrize(("fills", "error"), FILLERS)
async def test_what_fills_the_disk_and_goes_on_takes_no_room_of_the_journal(
    small_disk: Path, fills: Filler, error: type[FedError]
) -> None:
    one = writer(small_disk / "fed.db", reserve_bytes=1 << 20, ballast_bytes=2 << 20)
    with suppress(error):
        for nth in range(BOX_BYTES // len(DATA)):
            await fills(small_disk, nth)
    for number in range(TRIES):
        with pytest.raises(error, match="No space left"):
            await fills(small_disk, 500 + number)
        await asyncio.gather(*(one.run(partial(add, number=100 * number + nth)) for nth in range(100)))
    assert len(await one.run(numbers)) == 100 * TRIES
    assert (small_disk / "fed.db.ballast").exists()
    assert await one.run(lambda store: store.may_accept())
    await one.close()
