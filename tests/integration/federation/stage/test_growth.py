"""Who waits for more of a file is woken when there is some, and only then."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from federation.stage.growth import Growth

PATIENCE_S = 30.0


async def woken(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def test_each_is_woken_by_its_own_file(tmp_path: Path) -> None:
    growth, there, absent = Growth(), asyncio.Event(), asyncio.Event()
    path, later = tmp_path / "stdout", tmp_path / "later"
    path.write_bytes(b"12345")
    handle = os.open(path, os.O_RDONLY)
    try:
        with growth.watching(there, handle, 5), growth.watching(absent, later, -1):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await there.wait()
            with path.open("ab") as file:
                file.write(b"6")
            await woken(there)
            assert not absent.is_set()
            later.touch()
            await woken(absent)
    finally:
        os.close(handle)


async def test_what_can_not_be_looked_at_wakes_who_waits_for_it() -> None:
    growth, gone = Growth(), asyncio.Event()
    reader, writer = os.pipe()
    os.close(writer)
    os.close(reader)
    with growth.watching(gone, reader, 0):
        await woken(gone)


async def test_it_rests_while_nobody_waits_and_begins_again(tmp_path: Path) -> None:
    growth, event = Growth(), asyncio.Event()
    (path := tmp_path / "a").touch()
    for _ in range(2):
        with growth.watching(event, path, -1):
            await woken(event)
        event.clear()
        async with asyncio.timeout(PATIENCE_S):
            while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_file_system_that_hangs_keeps_nobody_waiting_for_another(tmp_path: Path) -> None:
    growth, hangs, well, back = Growth(), asyncio.Event(), asyncio.Event(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(back.wait)
        path = tmp_path / "a"
        with growth.watching(hangs, path, -1, threads), growth.watching(well, path, -1):
            path.touch()
            await woken(well)
            assert not hangs.is_set()
            back.set()
            await woken(hangs)
