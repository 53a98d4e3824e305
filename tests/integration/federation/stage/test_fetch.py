"""Files that come back: resumed, whole, and none but those that were asked for, whatever the far side does."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from federation.errors import Refused, Unavailable
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import CHUNK_BYTES
from federation.stage.fetch import fetch
from federation.stage.pull import Pull
from tests.integration.federation.stage.bench import KEY, Offer, file_of, goal

DATA = os.urandom(5 * CHUNK_BYTES + 17)


def names(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


def nothing(count: int) -> None:
    """Nobody watches the progress."""


async def test_a_file_that_was_cut_goes_on_at_the_chunk(tmp_path: Path) -> None:
    far = Offer.of(big=DATA)

    def cut(sent: int) -> None:
        if sent == 3:
            raise Unavailable("cut")

    far.cut = cut
    with pytest.raises(Unavailable, match="cut"):
        await fetch(far, KEY, goal(tmp_path), nothing)
    assert not (tmp_path / "big").exists()
    far.cut, far.sent = lambda count: None, 0
    await fetch(far, KEY, goal(tmp_path), nothing)
    assert (tmp_path / "big").read_bytes() == DATA
    assert far.sent == 3
    assert names(tmp_path) == ["big"]
    await fetch(far, KEY, goal(tmp_path), nothing)
    assert far.sent == 3  # it is there already


async def test_what_is_there_is_replaced_only_by_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"old" * 10)
    far = Offer.of(big=DATA)
    far.spoil = lambda data: data[:-1] + b"x"
    with pytest.raises(Unavailable, match="not what its hash says"):
        await fetch(far, KEY, goal(tmp_path), nothing)
    assert (tmp_path / "big").read_bytes() == b"old" * 10
    far.spoil = lambda data: data
    await fetch(far, KEY, goal(tmp_path), nothing)
    assert (tmp_path / "big").read_bytes() == DATA


async def test_a_list_that_lies_about_the_whole_gives_no_file(tmp_path: Path) -> None:
    far = Offer.of(big=DATA)
    far.files[0].sha256 = bytes(32)
    with pytest.raises(Unavailable, match="not whole"):
        await fetch(far, KEY, goal(tmp_path), nothing)
    assert names(tmp_path) == []


@pytest.mark.parametrize("path", [b"../x", b"/etc/x", b".bashrc", b"other", b"out/../../x", b"out", b"", b"a\0b"])
async def test_a_file_that_was_not_asked_for_is_not_taken(tmp_path: Path, path: bytes) -> None:
    far = Offer(files=[file_of(path, b"")])
    with pytest.raises(Refused):
        await fetch(far, KEY, goal(tmp_path, b"out/*", b"x.*"), nothing)
    assert names(tmp_path) == []


async def test_a_pattern_that_meant_no_file_is_told(tmp_path: Path) -> None:
    far = Offer.of(big=DATA)
    assert await fetch(far, KEY, goal(tmp_path, b"b*", b"out/*", b"x"), nothing) == (b"out/*", b"x")
    assert await fetch(far, KEY, goal(tmp_path, b"big"), nothing) == ()


async def test_no_more_is_taken_than_is_taken_from_there(tmp_path: Path) -> None:
    far, limited = Offer.of(one=DATA, two=DATA), goal(tmp_path, b"*")
    with pytest.raises(Refused, match=f"has {2 * len(DATA)} bytes, and {2 * len(DATA) - 1} are taken"):
        await fetch(far, KEY, replace(limited, most_bytes=2 * len(DATA) - 1), nothing)
    assert names(tmp_path) == []
    await fetch(far, KEY, replace(limited, most_bytes=2 * len(DATA)), nothing)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("size", "most"), [(2**63, 1 << 30), (2**63, 1 << 62), (2**60, 1 << 62)])
async def test_a_size_that_is_a_lie_costs_nothing(tmp_path: Path, size: int, most: int) -> None:
    far = Offer(files=[pb.File(path=b"x", size=size, mode=0o644)])
    with pytest.raises(Refused):
        await fetch(far, KEY, replace(goal(tmp_path), most_bytes=most), nothing)
    assert names(tmp_path) == []


async def test_an_output_that_does_not_stop_is_stopped(tmp_path: Path) -> None:
    pull = Pull(KEY, tmp_path)
    with pytest.raises(Unavailable, match="more than the 5 bytes"):
        await pull.run(Offer(parts=[data(0, b"abc"), data(3, b"def"), data(6, b"ghi")]), 5)
    assert (tmp_path / "stdout").read_bytes() == b"abcdef"


async def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home/out").symlink_to(tmp_path / "elsewhere")
    far = Offer(files=[file_of(b"out/x", b"")])
    with pytest.raises(Refused, match="through a link"):
        await fetch(far, KEY, goal(tmp_path / "home", b"out/*"), nothing)
    assert names(tmp_path / "elsewhere") == []


def part(offset: int, what: pb.OutputPart) -> pb.OutputPart:
    one = pb.OutputPart(stream=pb.STREAM_STDOUT, offset=offset)
    one.MergeFrom(what)
    return one


def data(offset: int, some: bytes) -> pb.OutputPart:
    return part(offset, pb.OutputPart(data=some))


def missing(offset: int, size: int) -> pb.OutputPart:
    return part(offset, pb.OutputPart(missing=size))


def end(offset: int) -> pb.OutputPart:
    return part(offset, pb.OutputPart(end=True))


END_OF_ERRORS = pb.OutputPart(stream=pb.STREAM_STDERR, offset=0, end=True)


async def test_missing_bytes_are_a_hole_and_are_told(tmp_path: Path) -> None:
    parts = [data(0, b"abc"), missing(3, 4), data(7, b"def"), missing(10, 2), end(12)]
    pull = Pull(KEY, tmp_path)
    await pull.run(Offer(parts=[*parts, END_OF_ERRORS]))
    again = Pull(KEY, tmp_path)
    assert again.ended
    assert again.streams["stdout"].gaps == [(3, 4), (10, 2)]
    assert (tmp_path / "stdout").read_bytes() == b"abc" + bytes(4) + b"def" + bytes(2)


@pytest.mark.parametrize(
    "bad", [data(1, b"x"), data(5, b"x"), part(3, pb.OutputPart(failed="not now")), missing(3, 1 << 63)]
)
async def test_what_does_not_fit_ends_the_stream_and_loses_nothing(tmp_path: Path, bad: pb.OutputPart) -> None:
    pull = Pull(KEY, tmp_path)
    with pytest.raises(Unavailable):
        await pull.run(Offer(parts=[data(0, b"abc"), bad]))
    await pull.run(Offer(parts=[data(0, b"abc"), end(3), END_OF_ERRORS]))
    assert pull.ended
    assert (tmp_path / "stdout").read_bytes() == b"abc"
