"""One Slurm command as a child process: an environment of our own, a time limit, bounded output, errors told apart."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slurm_plugin.errors import SlurmError, SlurmUnavailable

TIMEOUT_S = 20.0  # a busy slurmctld answers late; its own MessageTimeout is 10 s
MAX_OUTPUT_BYTES = 128 * 1024 * 1024  # a queue of 100,000 jobs is about 30 MiB
MAX_ERROR_BYTES = 64 * 1024
MAX_AT_ONCE = 8  # commands in flight from one daemon; slurmctld has few threads for everybody
_READ_BYTES = 1 << 16

# After one of these nobody knows whether slurmctld did what it was asked.
_NO_ANSWER = (
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted",
    "connection refused",
    "connection timed out",
    "connection reset",
    "communication connection failure",
    "communication shutdown failure",
    "message receive failure",
    "message send failure",
    "insane message length",
    "in standby mode",
    "resource temporarily unavailable",
    "protocol authentication error",
    "munge encode failed",
    "failed to connect to munge",
    "invalid authentication credential",
    "authentication credential expired",
    "slurmctld is shutting down",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Which Slurm is meant. `conf` None is the host's own (or configless); `bin_dir` None looks on PATH."""

    conf: Path | None = None
    bin_dir: Path | None = None
    timeout_s: float = TIMEOUT_S

    def environment(self) -> dict[str, str]:
        """All that a child gets: nothing of our own environment can change what Slurm prints."""
        env = {
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "LC_ALL": "C",
            "TZ": "UTC",
            "SLURM_TIME_FORMAT": "%s",  # Unix seconds
            "SLURM_BITSTR_LEN": "0",  # array expressions whole
        }
        if self.conf is not None:
            env["SLURM_CONF"] = str(self.conf)
        return env

    def program(self, name: str) -> str:
        if self.bin_dir is not None:
            return str(self.bin_dir / name)
        return shutil.which(name) or name


class Runs(Protocol):
    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str: ...


class Runner:
    """Runs commands of one site, at most MAX_AT_ONCE at a time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._env = site.environment()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        """stdout of the command. A child that outlives the limit, or us, is killed and reaped.

        Raises SlurmError (it said no) or SlurmUnavailable (no answer: the outcome is unknown).
        """
        limit_s = timeout_s or self._site.timeout_s
        async with self._slots:
            try:
                process = await asyncio.create_subprocess_exec(
                    self._site.program(argv[0]),
                    *argv[1:],
                    env=self._env,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
            except OSError as error:
                hint = "is Slurm's client package installed, and is its folder on PATH?"
                raise SlurmError(f"{argv[0]} could not be started: {error.strerror or error}", hint=hint) from error
            try:
                async with asyncio.timeout(limit_s):
                    out, err = await _communicate(process)
            except TimeoutError:
                raise SlurmUnavailable(
                    f"{argv[0]} gave no answer in {limit_s:g} s", hint="is slurmctld running and reachable?"
                ) from None
            finally:
                await _reap(process)
        return _judge(argv, process.returncode or 0, out, err)


async def _communicate(process: asyncio.subprocess.Process) -> tuple[str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as group:
        out = group.create_task(_read(process.stdout, MAX_OUTPUT_BYTES))
        err = group.create_task(_read(process.stderr, MAX_ERROR_BYTES))
    (out_bytes, whole), (err_bytes, _) = out.result(), err.result()
    await process.wait()
    if not whole:
        raise SlurmError(f"a Slurm command printed more than {MAX_OUTPUT_BYTES} bytes")
    return out_bytes.decode(errors="replace"), err_bytes.decode(errors="replace")


async def _read(stream: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
    """Up to `limit` bytes, and whether that was all. The rest is read and dropped, so that the child can end."""
    chunks, size = [], 0
    while chunk := await stream.read(_READ_BYTES):
        if size < limit:
            chunks.append(chunk[: limit - size])
        size += len(chunk)
    return b"".join(chunks), size <= limit


async def _reap(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _judge(argv: Sequence[str], status: int, out: str, err: str) -> str:
    if status == 0:
        return out
    said = " ".join(err.split()) or " ".join(out.split()) or f"exit status {status}"
    message = f"{argv[0]} {argv[1] if len(argv) > 1 else ''}".strip() + f": {said[:500]}"
    if status < 0 or any(text in said.lower() for text in _NO_ANSWER):
        raise SlurmUnavailable(message, hint="is slurmctld running and reachable?")
    raise SlurmError(message)
