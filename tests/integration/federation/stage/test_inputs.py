"""Inputs at a target: put together only as the job's signed spec says, as its user, and for its own site."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from federation.errors import Refused, Unavailable
from federation.model.states import Target
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage import inputs as staged
from federation.stage.chunks import CHUNK_BYTES
from federation.stage.heap import Heap
from federation.stage.kept import Kept
from federation.wire.convert import key_to_wire
from tests.integration.federation.daemons import passable
from tests.integration.federation.site import until
from tests.integration.federation.stage.bench import KEY, UID, Far, chunks, file_of
from tests.integration.federation.stage.steps import Step, cancelled

DATA = os.urandom(2 * CHUNK_BYTES + 5)


@pytest.fixture(name="passable")
def _passable() -> Iterator[Path]:
    with passable() as found:
        yield found


async def test_files_are_put_together_as_the_job_s_user_once_all_is_there(passable: Path) -> None:
    file = file_of(b"in/data", DATA)
    there = Far(passable, [file])
    first, *rest = chunks(DATA)
    assert await there.put(first) == 1
    asked = pb.ChunkList(key=key_to_wire(KEY), sha256=file.chunks)
    assert list((await there.inputs.which("edge", asked)).sha256) == [file.chunks[0]]
    assert await there.commit(file) == list(file.chunks[1:])
    assert there.here == []
    await there.put(*rest)
    assert await there.commit(file) == []
    assert there.here == [KEY]
    assert (there.work / "in/data").read_bytes() == DATA
    assert (there.work / "in/data").stat().st_uid == UID
    assert not (passable / "staging" / f"{KEY.token}.{KEY.attempt}").exists()


async def test_what_a_job_of_the_same_user_brought_before_need_not_travel(passable: Path) -> None:
    file = file_of(b"in/data", DATA)
    there = Far(passable, [file])
    await there.put(*chunks(DATA))
    assert await there.commit(file) == []
    changed = DATA[:-5] + b"other"
    again = Far(passable, [file_of(b"in/data", changed)], key=Key(UUID(int=9), 1))
    missing = await again.missing()
    assert missing == [hashlib.sha256(b"other").digest()]
    await again.put(b"other")
    assert await again.commit(file_of(b"in/data", changed)) == []
    assert (again.work / "in/data").read_bytes() == changed
    somebody_elses = Far(passable, [file], key=Key(UUID(int=10), 1), origin="mars")
    assert await somebody_elses.missing() == list(file.chunks)


async def test_a_kept_chunk_that_is_damaged_is_dropped_and_travels_again(passable: Path) -> None:
    file = file_of(b"in/data", DATA)
    there = Far(passable, [file])
    await there.put(*chunks(DATA))
    await there.commit(file)
    kept = passable / f"staging/kept/edge.{UID}/{file.chunks[0].hex()}"
    kept.write_bytes(b"x" * CHUNK_BYTES)
    again = Far(passable, [file], key=Key(UUID(int=9), 1))
    assert await again.missing() == []
    with pytest.raises(Refused, match="not the one"):
        await again.commit(file)
    assert await again.missing() == list(file.chunks)
    await again.put(*chunks(DATA))
    assert await again.commit(file) == []
    assert (again.work / "in/data").read_bytes() == DATA


def test_what_is_kept_has_a_bound_and_what_was_used_last_stays(tmp_path: Path) -> None:
    kept, parts = Kept(tmp_path / "kept", most_bytes=20), [bytes([n]) * 8 for n in range(4)]
    hashes = [hashlib.sha256(one).digest() for one in parts]
    for nth, (sha256, part) in enumerate(zip(hashes, parts, strict=True)):
        (heap := Heap(tmp_path / str(nth))).put(sha256, part)
        kept.keep(heap)
        for one in (tmp_path / "kept").iterdir():
            os.utime(one, (nth, nth)) if one.name == sha256.hex() else None
        if nth == 2:
            kept.lend(hashes[1:2], Heap(tmp_path / "used"))
    kept.lend(hashes, last := Heap(tmp_path / "last"))
    assert last.here(hashes) == [hashes[1], hashes[3]]


async def test_more_bytes_than_were_said_are_refused(passable: Path) -> None:
    there = Far(passable, [file_of(b"small", b"abc")])
    with pytest.raises(Refused, match="more bytes"):
        await there.put(b"abcd")
    with pytest.raises(Refused, match="more bytes"):
        await there.put(b"abc", b"d")


async def test_several_who_send_at_once_bring_no_more_than_one(passable: Path) -> None:
    there = Far(passable, [file_of(b"small", b"abc")])
    wait, came = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[pb.Chunk]:
        yield pb.Chunk(key=key_to_wire(KEY), sha256=hashlib.sha256(b"ab").digest(), data=b"ab")
        came.set()
        await wait.wait()

    first = asyncio.create_task(there.inputs.put("edge", slowly()))
    await asyncio.wait_for(came.wait(), 10)
    with pytest.raises(Unavailable, match="sent already"):
        await there.put(b"xyz")
    wait.set()
    assert (await asyncio.wait_for(first, 10)).chunks == 1
    assert await there.put(b"c") == 1


@pytest.mark.parametrize("site", ["other", "edge-2", ""])
async def test_another_site_is_told_nothing(passable: Path, site: str) -> None:
    there = Far(passable, [file_of(b"small", b"abc")])
    with pytest.raises(Refused, match="is not here"):
        await there.put(b"abc", site=site)
    with pytest.raises(Refused, match="is not here"):
        await there.inputs.which(site, pb.ChunkList(key=key_to_wire(KEY)))


@pytest.mark.parametrize(
    "files",
    [
        [],
        [file_of(b"other", b"abc")],
        [file_of(b"small", b"abx")],
        [file_of(b"small", b"abcd")],
        [file_of(b"small", b"abc"), file_of(b"small", b"abc")],
        [pb.File(path=b"small", size=3, sha256=hashlib.sha256(b"abc").digest())],
    ],
)
async def test_a_list_that_is_not_the_signed_one_is_refused(passable: Path, files: list[pb.File]) -> None:
    there = Far(passable, [file_of(b"small", b"abc")])
    await there.put(b"abc")
    with pytest.raises(Refused):
        await there.commit(*files)
    assert list(there.work.iterdir()) == []


async def test_chunks_that_are_not_the_signed_whole_leave_no_file(passable: Path) -> None:
    there = Far(passable, [file_of(b"small", b"abc")])
    lying = file_of(b"small", b"xyz")
    lying.sha256 = hashlib.sha256(b"abc").digest()
    await there.put(b"xyz")
    with pytest.raises(Refused, match="not the one that the job names"):
        await there.commit(lying)
    assert list(there.work.iterdir()) == []
    assert await there.put(b"abc") == 1  # what came before takes no room from it
    assert await there.commit(file_of(b"small", b"abc")) == []


@pytest.mark.parametrize("path", [b"../x", b"/etc/x", b"link/x", b"a//b"])
async def test_an_input_can_not_be_written_outside(passable: Path, path: bytes) -> None:
    there = Far(passable, [file_of(path, b"abc")])
    (passable / "elsewhere").mkdir(mode=0o777)
    (there.work / "link").symlink_to(passable / "elsewhere")
    await there.put(b"abc")
    with pytest.raises(Refused):
        await there.commit(file_of(path, b"abc"))
    assert list((passable / "elsewhere").iterdir()) == []


async def test_an_attempt_that_went_on_takes_no_more(passable: Path) -> None:
    there = Far(passable, [file_of(b"small", b"abc")])
    there.goes_to(Target.READY)
    with pytest.raises(Refused, match="takes no inputs"):
        await there.put(b"abc")
    assert await there.commit(file_of(b"small", b"abc")) == []
    assert there.here == []


async def gone(path: Path) -> None:
    await until(lambda: _is(not path.exists()))


async def _is(done: bool) -> bool:
    return done


LEAVES = [Target.ENDED, Target.RELEASED]  # cancelled, or its lease is over, while it waits for inputs


@pytest.mark.parametrize("state", LEAVES)
async def test_chunks_of_an_attempt_that_ends_without_its_inputs_are_dropped(passable: Path, state: Target) -> None:
    there = Far(passable, [file_of(b"in/data", DATA)])
    await there.put(*chunks(DATA)[:-1])  # all but one
    assert there.heap.exists()
    there.goes_to(state)
    await gone(there.heap)
    assert not there.told_of[KEY]
    await there.inputs.close()


async def test_a_stream_that_stays_open_brings_nothing_after_the_end(passable: Path) -> None:
    there = Far(passable, [file_of(b"in/data", DATA)])
    first, second, _ = chunks(DATA)
    came, go = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[pb.Chunk]:
        yield pb.Chunk(key=key_to_wire(KEY), sha256=hashlib.sha256(first).digest(), data=first)
        came.set()
        await go.wait()
        yield pb.Chunk(sha256=hashlib.sha256(second).digest(), data=second)

    putting = asyncio.create_task(there.inputs.put("edge", slowly()))
    await asyncio.wait_for(came.wait(), 10)
    there.goes_to(Target.ENDED)
    await gone(there.heap)
    go.set()
    with pytest.raises(Refused, match="takes no inputs any more"):
        await asyncio.wait_for(putting, 10)
    assert not there.heap.exists()


async def test_what_was_being_written_at_the_end_is_dropped_too(
    passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Far(passable, [file_of(b"in/data", DATA)])
    step = Step(Heap.put)
    monkeypatch.setattr(Heap, "put", lambda *args: step(*args))
    putting = asyncio.create_task(there.put(chunks(DATA)[0]))
    await step.until_begun()
    there.goes_to(Target.ENDED)
    await until(lambda: _is(not there.told_of[KEY]))
    step.go.set()
    await asyncio.wait_for(putting, 10)
    assert not there.heap.exists()


async def test_files_are_put_together_by_one_even_when_the_first_who_asked_was_cut(
    passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(b"in/data", DATA)
    there = Far(passable, [file], ready=True)
    await there.put(*chunks(DATA))
    monkeypatch.setattr(staged, "_assemble", step := Step(staged._assemble))
    cut = asyncio.create_task(there.commit(file))
    await step.until_begun()
    await cancelled(cut, 2)
    with pytest.raises(Unavailable, match="are being put together"):
        await there.commit(file)
    step.go.set()
    await asyncio.wait((cut,), timeout=10)
    assert cut.cancelled()
    assert await there.commit(file) == []
    assert there.here == [KEY]
    assert (there.work / "in/data").read_bytes() == DATA
    await gone(there.heap)
    assert len(list((passable / f"staging/kept/edge.{UID}").iterdir())) == 3


async def test_an_attempt_that_ends_while_its_files_are_put_together_leaves_no_chunks(
    passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(b"in/data", DATA)
    there = Far(passable, [file])
    await there.put(*chunks(DATA))
    monkeypatch.setattr(staged, "_assemble", step := Step(staged._assemble))
    cut = asyncio.create_task(there.commit(file))
    await step.until_begun()
    there.goes_to(Target.ENDED)
    await until(lambda: _is(not there.told_of[KEY]))
    assert there.heap.exists()  # it is being read
    cut.cancel()
    step.go.set()
    await asyncio.wait((cut,), timeout=10)
    assert cut.cancelled()
    assert not there.heap.exists()


@pytest.mark.parametrize("state", [Target.STAGING, *LEAVES])
async def test_after_a_crash_only_chunks_of_attempts_that_wait_for_them_stay(passable: Path, state: Target) -> None:
    there = Far(passable, [file_of(b"in/data", DATA)])
    (passable / "staging/kept" / f"edge.{UID}").mkdir(parents=True)
    for folder in (there.heap, unknown := there.heap.with_name(f"{UUID(int=99)}.1")):
        Heap(folder).put(hashlib.sha256(b"x").digest(), b"x")
    there.goes_to(state)
    await there.inputs.tidy()
    assert there.heap.exists() == (state is Target.STAGING)
    assert not unknown.exists()
    assert (passable / "staging/kept" / f"edge.{UID}").exists()


async def test_where_nothing_was_ever_staged_there_is_nothing_to_tidy(passable: Path) -> None:
    await Far(passable, []).inputs.tidy()
    assert not (passable / "staging").exists()
