"""One Slurm command as a child process: an environment of our own, a time limit, bounded output, errors told apart."""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slurm_plugin.errors import SlurmError, SlurmUnavailable

log = logging.getLogger(__name__)

TIMEOUT_S = 20.0  # a busy slurmctld answers late; its own MessageTimeout is 10 s
MAX_OUTPUT_BYTES = 128 * 1024 * 1024  # a queue of 100,000 jobs is about 30 MiB
MAX_ERROR_BYTES = 64 * 1024
MAX_WAITING = 256  # calls that wait for their turn; one more is refused at once
MAX_AT_ONCE = 8  # commands in flight from one daemon; slurmctld has few threads for everybody
_READ_BYTES = 1 << 16

# This host has no room for one more child now; it may have in a moment.
_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})

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
    "unexpected message received",  # of scontrol, when nothing was
    "message send failure",
    "insane message length",
    "unexpected missing socket error",
    "header lengths are longer than data received",
    "failed to send entire message",
    "received zero length message",
    "received message length < 0",
    "unable to process incoming",
    "unable to process outgoing",
    "rate limit exceeded",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a command runs as, when that is not who runs us."""

    uid: int
    gid: int
    groups: tuple[int, ...]


class Runs(Protocol):
    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str: ...


class Runner:
    """Runs commands of one site: at most MAX_AT_ONCE at a time, and MAX_WAITING more that wait for their turn."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._env = site.environment()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._waiting = 0
        self.refused = 0  # calls that did not get their turn, since start

    async def run(
        self, argv: Sequence[str], *, timeout_s: float | None = None, identity: Identity | None = None
    ) -> str:
        """stdout of the command. A child that outlives the limit, or us, is killed and reaped.

        Raises SlurmError (it said no) or SlurmUnavailable (no answer: the outcome is unknown). Bound: twice the limit,
        once for the turn and once for the answer.
        """
        limit_s = timeout_s or self._site.timeout_s
        async with self._turn(argv, limit_s):
            process = await self._start(argv, identity)
            try:
                async with asyncio.timeout(limit_s):
                    out, err = await _communicate(process)
            except TimeoutError:
                raise SlurmUnavailable(
                    f"{argv[0]} gave no answer in {limit_s:g} s", hint="is slurmctld running and reachable?"
                ) from None
            finally:
                await _reap(process)
        return judge(argv, process.returncode or 0, out, err)

    @contextlib.asynccontextmanager
    async def _turn(self, argv: Sequence[str], limit_s: float) -> AsyncIterator[None]:
        if self._waiting >= MAX_WAITING:
            raise self._refusal(argv, f"{self._waiting} other commands are waiting")
        self._waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                await self._slots.acquire()
        except TimeoutError:
            raise self._refusal(argv, f"{MAX_AT_ONCE} other commands took all of {limit_s:g} s") from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()

    def _refusal(self, argv: Sequence[str], why: str) -> SlurmUnavailable:
        self.refused += 1
        log.warning("slurm.no_turn", extra={"command": argv[0], "why": why, "refused": self.refused})
        return SlurmUnavailable(f"{argv[0]} was not run: {why}", hint="is slurmctld slow to answer?")

    async def _start(self, argv: Sequence[str], who: Identity | None) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        if who is not None and who.uid == os.geteuid():
            who = None
        try:
            return await asyncio.create_subprocess_exec(
                self._site.program(argv[0]),
                *argv[1:],
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                cwd=None if who is None else "/",
                user=None if who is None else who.uid,
                group=None if who is None else who.gid,
                extra_groups=None if who is None else who.groups,
            )
        except OSError as error:
            said = f"{argv[0]} could not be started: {error.strerror or error}"
            if error.errno in _NO_ROOM:
                raise SlurmUnavailable(said, hint="this host is short of memory, processes or open files") from error
            hint = "is Slurm's client package installed, and is its folder on PATH?"
            raise SlurmError(said, hint=hint) from error


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


def judge(argv: Sequence[str], status: int, out: str, err: str) -> str:
    """What a command that ended like this printed. Raises SlurmError or SlurmUnavailable: see `Runner.run`."""
    if status == 0:
        return out
    said = " ".join(err.split()) or " ".join(out.split()) or f"exit status {status}"
    message = f"{argv[0]} {argv[1] if len(argv) > 1 else ''}".strip() + f": {said[:500]}"
    failure = SlurmError(message)
    if status < 0 or no_answer(said):
        failure = SlurmUnavailable(message, hint="is slurmctld running and reachable?")
    failure.said = err
    raise failure


def no_answer(said: str) -> bool:
    """Do these words of a command's mean that nobody knows what slurmctld did?"""
    return any(text in said.lower() for text in _NO_ANSWER)
