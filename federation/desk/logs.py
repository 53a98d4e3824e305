"""What a job writes, to a local user: from the bytes that are here, which grow while he looks."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from federation.desk.talk import PORTION
from federation.errors import Refused
from federation.model.job import Job
from federation.model.states import Origin
from federation.stage.mover import Mover
from federation.stage.pull import Pull
from federation.stage.spool import STREAMS

LOOK_S = 0.5  # between looks when nothing wakes us
PATIENCE_S = 10.0  # longest wait for what there is now, of who does not follow

Again = Callable[[Job], Awaitable[Job]]
Said = tuple[dict[str, Any], bytes]
"""A line, and the bytes that it announces."""


async def logs(mover: Mover, job: Job, again: Again, *, follow: bool) -> AsyncIterator[Said]:
    """What came, then with `follow` what comes until the end. Raises Refused before there is anything."""
    if not job.site or job.state is Origin.QUEUED:
        raise Refused(f"the job is {job.state.value}: it has written nothing", hint=job.why)
    told, key = dict.fromkeys(STREAMS, 0), job.key
    until = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        job = await again(job)
        if job.key != key:
            told, key = dict.fromkeys(STREAMS, 0), job.key
            yield {"remark": f"attempt {job.attempt} begins"}, b""
        done = job.state is Origin.DONE
        pull = mover.pull(key) if done or not job.site else mover.follow(job.site, key)
        pull.changed.clear()
        over = done or pull.ended or (not follow and pull.all_there)
        for name in STREAMS:
            async for part in _from(pull, name, told):
                yield part
        if over:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await pull.changed.wait()
        if not follow and asyncio.get_running_loop().time() >= until:
            yield {"remark": f"no answer from {job.site}: this is what is here"}, b""
            return


async def _from(pull: Pull, name: str, told: dict[str, int]) -> AsyncIterator[Said]:
    """Up to what is written now, with a mark for bytes that will never come."""
    gaps = dict(pull.streams[name].gaps)
    while (offset := told[name]) < pull.streams[name].written:
        if offset in gaps:
            told[name] += gaps[offset]
            yield {"stream": name, "offset": offset, "missing": gaps[offset]}, b""
            continue
        stop = min([pull.streams[name].written, *(start for start in gaps if start > offset)])
        data = await asyncio.to_thread(_read, pull, name, min(PORTION, stop - offset), offset)
        if not data:
            return
        told[name] += len(data)
        yield {"stream": name, "offset": offset, "size": len(data)}, data


def _read(pull: Pull, name: str, size: int, offset: int) -> bytes:
    try:
        handle = os.open(pull.folder / name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(handle, size, offset)
    finally:
        os.close(handle)
