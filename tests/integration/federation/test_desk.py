"""The local socket in service: whatever a user sends, he gets an answer, and nothing of it stays in the daemon."""

import asyncio
import errno
import gc
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import federation.desk.desk
from federation.access.audit import Audit
from federation.daemon import local_account
from federation.desk.answers import Answers, Office
from federation.desk.desk import Desk, Staff
from federation.desk.submit import Front
from federation.desk.talk import line, weight
from federation.model.token import RANDOM_BYTES, mint
from federation.stage.mover import Mover
from federation.stage.spool import Spool
from slurm_plugin import atomic
from tests.integration.federation.site import PATIENCE_S, Net

JOBS = {"do": "jobs"}
DEEP = b'{"a": ' + b"[" * 50_000


class Place:
    """A desk, and where it listens."""

    def __init__(self, desk: Desk, path: Path) -> None:
        self.desk, self.path = desk, path

    async def called(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(data)
        return reader, writer

    async def asked(self, data: bytes) -> dict[str, Any]:
        reader, writer = await self.called(data)
        return await answered(reader, writer)


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        told = await reader.readline()
    writer.close()
    return cast(dict[str, Any], json.loads(told))


@asynccontextmanager
async def up(folder: Path) -> AsyncIterator[Place]:
    net = Net(folder)
    net.site("hpc")
    async with net.site("edge", "hpc").up() as runner:
        spool = Spool(folder / "jobs")
        mover = Mover(spool, lambda: runner, lambda _: None, local_account)
        desk = Desk(
            Staff(
                front=Front(runner=runner, spool=spool, environment=(), targets=frozenset({"hpc"})),
                answers=Answers(Office(runner=runner, mover=mover, addresses={})),
                mover=mover,
                audit=Audit(folder / "audit.log"),
                admins=(),
            )
        )
        async with desk.open(folder / "fed.sock"):
            yield Place(desk, folder / "fed.sock")


@pytest.mark.parametrize("question", [DEEP + b"\n", b'{"do": "jobs", "most": Infinity}\n', b"\xff\n", b"[]\n"])
async def test_what_is_no_question_is_answered_and_leaves_no_task(tmp_path: Path, question: bytes) -> None:
    async with up(tmp_path) as place:
        for _ in range(50):
            told = await place.asked(question)
            assert (told["error"]["code"], told["error"]["message"][:19]) == ("refused", "this is no question")
        await _gone()
        assert "ok" in await place.asked(line(JOBS))


async def test_a_fault_of_ours_is_told_and_leaves_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()  # pytest's own record of what is logged keeps what was raised, and its frames
    monkeypatch.setattr(federation.desk.desk.log, "exception", said.append)
    async with up(tmp_path) as place:
        place.desk.staff = cast(Staff, None)
        told = await place.asked(line(JOBS))
        assert told["error"]["hint"] == "the daemon's log says why"
        await _gone()
    assert said == ["caller.failed"]


async def test_what_one_user_asks_at_once_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation.desk.desk, "MOST_KEPT_OF_ONE", 750_000)  # one, and less than two
    long = line(JOBS | {"more": "x" * 150_000})
    async with up(tmp_path) as place:
        reader, writer = await place.called(long[:-1])
        async with asyncio.timeout(PATIENCE_S):
            while place.desk._kept.total() < 300_000:  # noqa: ASYNC110 - not all of it while its end is missing
                await asyncio.sleep(0.01)
        assert (await place.asked(long))["error"]["message"] == "too many ask at once"
        writer.write(b"\n")
        assert "ok" in await answered(reader, writer)
        assert "ok" in await place.asked(long)


async def test_a_line_that_never_ends_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation.desk.desk, "MAX_LINE", 1 << 18)
    async with up(tmp_path) as place:
        told = await place.asked(b"x" * (1 << 19))
        assert told["error"]["message"] == "this is no question: it is too long"


async def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    question: dict[str, Any] = {"token": str(mint(int(time.time() * 1000), b"x" * RANDOM_BYTES)), "inputs": []}
    question["pin"] = "hpc"  # of which nothing is known
    question |= {"script_size": 10, "name": "full", "folder": "/", "args": [], "env": [], "asked": [], "outputs": []}
    async with up(tmp_path) as place:
        monkeypatch.setattr(atomic, "write", full)
        told = await place.asked(line({"do": "submit"} | question) + b"#!/bin/sh\n")
    assert (told["error"]["code"], told["error"]["hint"]) == ("store_full", "make room in state_dir")


def test_what_is_made_of_many_parts_weighs_more_than_its_bytes() -> None:
    assert weight(b"[[],[],[]]") > 500
    assert weight(b'"' + b"x" * 1000 + b'"') < 5000


async def _gone() -> None:
    """All who were answered, and what they sent."""
    async with asyncio.timeout(PATIENCE_S):
        while _kept():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _kept() -> list[object]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and "served.<locals>.one" in repr(one)]
