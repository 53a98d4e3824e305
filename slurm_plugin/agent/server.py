"""The hook sockets, one for everybody and one for root alone: one line in, a few lines out, from anybody on this node.

    prolog job=12          root only
    epilog job=12 start=1700000000   root only; start where slurmd tells it
    task localid=0 ntasks=2
    bind localid=0

Answers are `out TEXT` and `err TEXT` lines, then `exit N`; or `again`, when a user has too many calls at a time: the
hook calls again until its own limit, as a node may start more tasks at once than there is room for. Values are integers
and nothing else. Who calls is the kernel's word (SO_PEERCRED), never the caller's.
"""

import asyncio
import contextlib
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from slurm_plugin.agent.peer import Peer, peer_of
from slurm_plugin.agent.runs import Runs
from slurm_plugin.agent.tasks import Refused, Tasks, task_environment

log = logging.getLogger(__name__)

LINE_BYTES = 256  # longest request
READ_S = 5.0  # longest wait for it
ANSWER_S = 5.0  # longest wait for the caller to take the answer
CALLS_PER_USER = 512  # at a time
CALLS = 4096  # of all users but root, whose prologs and epilogs nobody keeps out
BACKLOG = 64  # of everybody's socket, and as many are accepted in a row: root's calls wait for no more than these
ROOTS_BACKLOG = 1024
ROOTS = ".root"  # behind the name of everybody's socket
COMPLAINT_S = 60.0  # between two log lines on one user's calls
COMPLAINTS_MAX = 1024  # users whose last line is remembered
_REQUEST = re.compile(rb"([a-z]{1,10})((?: [a-z]{1,10}=\d{1,10}){0,4})\n")
_KEYS = {"prolog": {"job"}, "epilog": {"job", "start"}, "task": {"localid", "ntasks"}, "bind": {"localid"}}


class HookServer:
    def __init__(self, runs: Runs, tasks: Tasks, *, profile_of: Callable[[str], str]) -> None:
        self._runs = runs
        self._tasks = tasks
        self._profile_of = profile_of
        self._calls: Counter[int] = Counter()
        self._told: dict[int, float] = {}  # by user: when the log last had a line on him
        self._servers: list[asyncio.Server] = []

    async def listen(self, path: Path) -> None:
        """Serve at `path` and, for root, at `path`.root; both are replaced. Raises OSError."""
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)  # whatever the umask: users' tasks come through
        await self._listen(path.with_name(f"{path.name}{ROOTS}"), 0o600, ROOTS_BACKLOG)
        await self._listen(path, 0o666, BACKLOG)  # everybody's tasks call; who may what is decided by who they are

    async def _listen(self, path: Path, mode: int, backlog: int) -> None:
        fresh = path.with_name(f".{path.name.removesuffix(ROOTS)}.new")  # short: a socket's path has 107 bytes
        fresh.unlink(missing_ok=True)
        before = os.umask(0o177)  # nobody comes in between
        try:
            self._servers.append(await asyncio.start_unix_server(self._serve, fresh, limit=LINE_BYTES, backlog=backlog))
        finally:
            os.umask(before)
        fresh.chmod(mode)
        fresh.replace(path)  # from here on a caller finds a socket that answers

    async def close(self) -> None:
        for server in self._servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = peer_of(writer.get_extra_info("socket"))
        self._calls[peer.uid] += 1
        try:
            if peer.uid and (self._calls[peer.uid] > CALLS_PER_USER or self._calls.total() > CALLS):
                self._complain("hook.too_many", peer)
                lines = ["again"]
            else:
                lines = await self._answer(reader, peer)
            writer.write("".join(f"{line}\n" for line in lines).encode())
            async with asyncio.timeout(ANSWER_S):
                await writer.drain()
        except (OSError, TimeoutError):
            self._complain("hook.left", peer)
        finally:
            self._calls[peer.uid] -= 1
            if not self._calls[peer.uid]:
                del self._calls[peer.uid]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _complain(self, event: str, peer: Peer) -> None:
        """Once in a while: a user can call as often as he likes, and the journal is everybody's."""
        now = time.monotonic()
        if now - self._told.get(peer.uid, -COMPLAINT_S) < COMPLAINT_S:
            return
        if len(self._told) >= COMPLAINTS_MAX:
            self._told.clear()
        self._told[peer.uid] = now
        log.warning(event, extra={"uid": peer.uid, "pid": peer.pid})

    async def _answer(self, reader: asyncio.StreamReader, peer: Peer) -> list[str]:
        try:
            async with asyncio.timeout(READ_S):
                line = await reader.readuntil(b"\n")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError, TimeoutError):
            return _no("no request")
        match = _REQUEST.fullmatch(line)
        verb = match[1].decode() if match else ""
        values = {key: int(value) for key, _, value in (pair.partition("=") for pair in _pairs(match))}
        if verb not in _KEYS or not values.keys() <= _KEYS[verb]:
            return _no("not a request")
        try:
            return await self._do(verb, values, reader, peer)
        except Refused as refusal:
            return _no(str(refusal))
        except Exception:
            log.exception("hook.failed", extra={"verb": verb, "uid": peer.uid})
            return _no("the agent failed; its log says why")

    async def _do(self, verb: str, values: dict[str, int], reader: asyncio.StreamReader, peer: Peer) -> list[str]:
        if verb in ("prolog", "epilog"):
            if peer.uid != 0 or values.get("job", 0) <= 0:
                raise Refused(f"{verb} is for root, and for a job")
            if verb == "prolog":
                await self._prolog(values["job"], reader)
            else:
                await self._runs.epilog(values["job"], values.get("start", 0))
            return ["exit 0"]
        task = values.get("localid", -1)
        if verb == "task":
            view = await self._tasks.enter(peer, task=task, tasks=values.get("ntasks", -1))
            return [*(f"out {line}" for line in task_environment(view, self._profile_of)), "exit 0"]
        view = await self._tasks.view(peer)
        if not view.slices:
            raise Refused("this step has no slice")
        return [f"out {view.slices[max(task, 0) % len(view.slices)]}", "exit 0"]

    async def _prolog(self, job_id: int, reader: asyncio.StreamReader) -> None:
        """A prolog that is killed while it waits has its wait ended."""
        work = asyncio.create_task(self._runs.prolog(job_id))
        left = asyncio.create_task(reader.read(1))
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            self._runs.binding.gone(job_id)
        left.cancel()
        await work


def _pairs(match: re.Match[bytes] | None) -> list[str]:
    return match[2].decode().split() if match else []


def _no(why: str) -> list[str]:
    return [f"err {why}", "exit 1"]
