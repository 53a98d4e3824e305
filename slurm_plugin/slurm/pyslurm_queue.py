"""The queue through pyslurm, read by a process of its own (`pyslurm_child`), which lives for many readings.

For a pyslurm that is of the running Slurm's own release. Loading 100,000 jobs takes it longer and more memory than
squeue takes to load and print them: it is for those who have it and want to start no command for the queue.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.slurm.process import MAX_OUTPUT_BYTES, Site
from slurm_plugin.slurm.table import LINE

END_S = 1.0
MAX_STARTS = 3  # of a process that gives no answer, one after the other; then pyslurm is not usable
_RELEASE = re.compile(r"(\d+)\.(\d+)")


class PyslurmUnusable(SlurmError):
    """Here the queue can't be read through pyslurm: ask with Slurm's commands."""

    code = "pyslurm_unusable"


class PyslurmQueue:
    """One reading at a time. Crash: the process ends when we do, since its input ends."""

    def __init__(self, site: Site, gres: str) -> None:
        self._site = site
        self._gres = gres
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._starts = 0

    async def lines(self, partitions: Sequence[str], version: Callable[[], Awaitable[str]]) -> list[str]:
        """The rows of vgpu jobs in one of these partitions, or in any; `version` tells that of the running Slurm.

        Raises PyslurmUnusable for good; SlurmUnavailable when there is no answer. Bound: the site's time limit.
        """
        async with self._turn:
            process = self._process or await self._start(version)
            try:
                async with asyncio.timeout(self._site.timeout_s):
                    text = await self._ask(process, partitions)
            except BaseException as error:
                if not isinstance(error, _Said):
                    await self._end()
                if isinstance(error, TimeoutError | OSError | EOFError | ValueError):
                    raise SlurmUnavailable(f"pyslurm gave no answer: {type(error).__name__}") from None
                raise
            self._starts = 0
            return text.split(LINE) if text else []

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _start(self, version: Callable[[], Awaitable[str]]) -> asyncio.subprocess.Process:
        if self._starts >= MAX_STARTS:
            raise PyslurmUnusable(f"pyslurm was started {MAX_STARTS} times and gave no answer")
        running = await version()
        self._starts += 1
        self._process = await self._child()
        try:
            async with asyncio.timeout(self._site.timeout_s):
                said = await _line(self._process)
            why = _unlike(said, running)
        except (TimeoutError, OSError, EOFError):
            why = "importing it ends the process: is there a slurm.conf?"
        except BaseException:
            await self._end()
            raise
        if why:
            await self._end()
            raise PyslurmUnusable(f"pyslurm can't be used: {why}")
        return self._process

    async def _child(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "slurm_plugin.slurm.pyslurm_child"),
                env={**self._site.environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            hint = "this host may be short of memory, processes or open files"
            raise SlurmUnavailable(f"pyslurm's process could not be started: {error.strerror}", hint=hint) from error

    async def _ask(self, process: asyncio.subprocess.Process, partitions: Sequence[str]) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        question = json.dumps({"gres": self._gres, "partitions": list(partitions)})
        process.stdin.write(f"{question}\n".encode())
        await process.stdin.drain()
        said = await _line(process)
        if said.startswith("!"):
            raise _Said(f"pyslurm: {said[1:300]}", hint="is slurmctld running and reachable?")
        size = int(said)
        if size > MAX_OUTPUT_BYTES:
            raise SlurmError(f"pyslurm's answer is longer than {MAX_OUTPUT_BYTES} bytes")
        return (await process.stdout.readexactly(size)).decode(errors="replace")

    async def _end(self) -> None:
        """It ends when its input does; one that hangs is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        ended = asyncio.create_task(process.wait())
        # asyncio.timeout of Python 3.11.2 is never over in a task that was cancelled.
        if not (await asyncio.wait({ended}, timeout=END_S))[0]:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await ended


class _Said(SlurmUnavailable):
    """The process answered that Slurm did not."""


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line.decode(errors="replace").strip()


def _unlike(pyslurm: str, slurm: str) -> str:
    """Why a pyslurm can't be used with this Slurm; "" when it can."""
    if pyslurm.startswith("!"):
        return pyslurm[1:300]
    ours, theirs = _RELEASE.match(pyslurm), _RELEASE.match(slurm)
    if ours is None or theirs is None or tuple(map(int, ours.groups())) != tuple(map(int, theirs.groups())):
        return f"it is {pyslurm[:32]}, and Slurm is {slurm[:32]}"
    return ""
