"""Who stops taking an output has let go of its files: what a thread had begun with them is over."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from federation.errors import Unavailable
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage import fetch as fetched
from federation.stage import pull as pulled
from federation.stage.chunks import CHUNK_BYTES
from federation.stage.fetch import fetch
from federation.stage.mover import Mover
from federation.stage.pull import MOST_GAPS, MOST_WHY, Pull
from federation.stage.spool import Spool
from slurm_plugin import atomic
from tests.integration.federation.stage.bench import KEY, ROOT, Offer, goal
from tests.integration.federation.stage.steps import Step, cancelled, files_of

WAIT_S = 30.0


def part(offset: int, **what: Any) -> pb.OutputPart:
    return pb.OutputPart(stream=pb.STREAM_STDOUT, offset=offset, **what)


class Endless(Offer):
    """Its parts, and then nothing more."""

    async def outputs(self, asks: AsyncIterator[pb.OutputAsk]) -> AsyncIterator[pb.OutputPart]:
        for one in self.parts:
            yield one
        await asyncio.Event().wait()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_write_that_is_held_up_is_over_before_its_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(pulled, "_write_all", step := Step(pulled._write_all))
    pull = Pull(KEY, tmp_path)
    task = asyncio.create_task(pull.run(Endless(parts=[part(0, data=b"abc")])))
    await step.until_begun()
    await cancelled(task, times)
    assert len(files_of(tmp_path)) == 2
    step.go.set()
    await asyncio.wait((task,), timeout=WAIT_S)
    assert task.cancelled()
    assert step.over.is_set()
    assert files_of(tmp_path) == []


async def test_what_is_written_down_late_is_never_put_over_what_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    folder = spool.attempt(KEY)
    parts = [part(0, data=b"abc"), part(3, end=True), pb.OutputPart(stream=pb.STREAM_STDERR, offset=0, end=True)]
    monkeypatch.setattr(atomic, "write", step := Step(atomic.write))
    mover = Mover(spool, lambda: pytest.fail("nobody asks"), lambda _: Endless(parts=parts), lambda _: ROOT)
    mover.follow("hpc", KEY)
    await step.until_begun()
    unfollowing = asyncio.create_task(mover.unfollow(KEY))
    await asyncio.wait((unfollowing,), timeout=0.05)
    assert not unfollowing.done()
    assert not (folder / "pulled.json").exists()
    step.go.set()
    await asyncio.wait_for(unfollowing, WAIT_S)
    assert step.over.is_set()
    assert json.loads((folder / "pulled.json").read_bytes())["stdout"] == [3, True, []]
    await Pull(KEY, folder).run(Endless(parts=parts[2:]))
    assert Pull(KEY, folder).ended


@pytest.mark.parametrize("name", ["_begin", "_write", "_finish"])
async def test_a_file_that_comes_back_is_let_go_of_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(fetched, name, step := Step(getattr(fetched, name)))
    home = tmp_path / "home"
    home.mkdir()

    async def call() -> None:
        await fetch(Offer.of(big=bytes(CHUNK_BYTES)), KEY, goal(home), lambda _: None)

    task = asyncio.create_task(call())
    await step.until_begun()
    await cancelled(task, 2)
    step.go.set()
    await asyncio.wait((task,), timeout=WAIT_S)
    assert task.cancelled()
    assert step.over.is_set()
    assert files_of(home) == []


async def test_a_file_that_can_not_be_opened_leaves_none_open(tmp_path: Path) -> None:
    (tmp_path / "stderr").mkdir()
    with pytest.raises(IsADirectoryError):
        await Pull(KEY, tmp_path).run(Offer())
    assert files_of(tmp_path) == []


async def test_nothing_is_no_gap(tmp_path: Path) -> None:
    pull = Pull(KEY, tmp_path)
    with pytest.raises(Unavailable, match="0 bytes of stdout can't be missing"):
        await pull.run(Offer(parts=[part(0, missing=0)]))
    assert not (tmp_path / "pulled.json").exists()


async def test_gaps_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    pull = Pull(KEY, tmp_path)
    with pytest.raises(Unavailable, match=f"more than {MOST_GAPS} gaps"):
        await pull.run(Offer(parts=[part(at, missing=1) for at in range(MOST_GAPS + 1)]))
    assert len(Pull(KEY, tmp_path).streams["stdout"].gaps) == MOST_GAPS


async def test_why_the_far_side_failed_is_told_as_far_as_a_person_reads(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as told:
        await Pull(KEY, tmp_path).run(Offer(parts=[part(0, failed="x" * (1 << 20))]))
    assert str(told.value) == "x" * MOST_WHY
