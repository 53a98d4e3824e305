"""What shows in an attempt's folder is told once, when it shows."""

import asyncio
import os
from pathlib import Path
from uuid import uuid4

import pytest

from federation.executors import layout, marks
from federation.executors.marks import Marks
from federation.executors.spool import Spool
from federation.model.token import Key

PATIENCE_S = 30.0


class Followed:
    def __init__(self, folder: Path) -> None:
        self.spool, self.told = Spool(folder), asyncio.Queue[tuple[Key, ...]]()
        self.marks = Marks(self.spool, self.told.put_nowait)

    def attempt(self) -> Key:
        key = Key(uuid4(), 1)
        self.spool.folder(key).mkdir()
        return key

    def claim(self, key: Key) -> None:
        os.symlink("run.1.2.x.3", self.spool.folder(key) / layout.CLAIM)  # noqa: PTH211

    async def next(self) -> tuple[Key, ...]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.told.get()


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    monkeypatch.setattr(marks, "LOOK_S", 0.02)
    return Followed(tmp_path)


async def test_a_start_and_an_end_are_told_once_each(followed: Followed) -> None:
    key, other = followed.attempt(), followed.attempt()
    followed.marks.follow(key, begun=False)
    followed.marks.follow(other, begun=False)
    followed.claim(key)
    assert await followed.next() == (key,)
    (followed.spool.folder(key) / layout.EXIT).touch()
    assert await followed.next() == (key,)
    followed.claim(other)
    assert await followed.next() == (other,)
    assert followed.told.empty()


async def test_an_end_that_is_none_is_told_once(followed: Followed) -> None:
    """A user may write anything into his folder: who looked, and found no end, follows it again."""
    key, last = followed.attempt(), followed.attempt()
    followed.marks.follow(key, begun=True)
    (followed.spool.folder(key) / layout.EXIT).write_text("no record")
    assert await followed.next() == (key,)
    followed.marks.follow(key, begun=True)
    followed.marks.follow(last, begun=False)
    followed.claim(last)
    assert await followed.next() == (last,)
    assert followed.told.empty()


async def test_what_has_begun_already_is_followed_to_its_end(followed: Followed) -> None:
    key = followed.attempt()
    followed.claim(key)
    followed.marks.follow(key, begun=True)
    (followed.spool.folder(key) / layout.EXIT).touch()
    assert await followed.next() == (key,)


async def test_what_nobody_wants_to_know_of_any_more_is_not_told_and_then_nothing_looks(followed: Followed) -> None:
    key, last = followed.attempt(), followed.attempt()
    for one in (key, last):
        followed.marks.follow(one, begun=True)
    followed.marks.drop(key)
    for one in (key, last):
        (followed.spool.folder(one) / layout.EXIT).touch()
    assert await followed.next() == (last,)
    async with asyncio.timeout(PATIENCE_S):
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert followed.told.empty()


async def test_more_than_can_be_followed_wait_for_their_next_look(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "MOST", 1)
    key, more = followed.attempt(), followed.attempt()
    for one in (key, more):
        followed.claim(one)
        followed.marks.follow(one, begun=False)
    assert await followed.next() == (key,)
    assert followed.told.empty()
