"""Who is at the other end of the local socket: the kernel says it, nothing that he sends does."""

import asyncio
import os
import pwd
import socket
import stat
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from federation.access.names import asked
from federation.errors import ConfigError, Refused
from federation.pki.files import check_place
from federation.tasks import ended

BACKLOG = 128
LINE_BYTES = 1 << 16  # of one connection that wait here to be read, about
_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    pid: int
    uid: int
    gid: int
    user: str
    admin: bool  # root, the daemon's own user, and those that fed.yaml names

    def may_see(self, owner: str) -> bool:
        """His own jobs; an admin all."""
        return self.admin or (bool(owner) and self.user == owner)


class Connection(Protocol):
    """A socket, or what asyncio gives for one."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...


def uid_of(connection: Connection) -> int:
    """As it was when he connected."""
    return _credentials(connection)[1]


async def caller_of(connection: Connection, admins: Collection[str] = ()) -> Caller:
    """Likewise. Raises Refused for a user that this host does not know."""
    pid, uid, gid = _credentials(connection)
    own = uid in (0, os.geteuid())
    try:
        user = (await asked(pwd.getpwuid, uid)).pw_name
    except KeyError:
        if not own:
            raise Refused(f"uid {uid} is nobody on this host") from None
        user = ""
    return Caller(pid=pid, uid=uid, gid=gid, user=user, admin=own or user in admins)


def _credentials(connection: Connection) -> tuple[int, int, int]:
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid


def listening(path: Path) -> socket.socket:
    """A socket that everybody may connect to, in a folder where nobody else can put another in its place.

    Raises ConfigError when a daemon listens there, or when something is there that is no socket.
    """
    check_place(path.parent)
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"can't listen on {path}: {error.strerror or error}") from None
    return listener


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(path: Path, serve: Serve) -> AsyncIterator[None]:
    """Whoever connects to that socket is served. Raises ConfigError. At the end who is there is cut off."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(asyncio.CancelledError):  # or asyncio of Python 3.11 logs it as a fault
                await serve(reader, writer)
        finally:
            tasks.discard(task)

    server = await asyncio.start_unix_server(one, sock=listening(path), limit=LINE_BYTES)
    try:
        yield
    finally:
        server.close()
        await ended(*tasks)
        await asyncio.to_thread(path.unlink, missing_ok=True)


def _clear(path: Path) -> None:
    """Remove the socket of a daemon that was killed."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} is there, and is no socket", hint="move it away, or name another in fed.yaml")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except BlockingIOError:
            raise ConfigError(f"a daemon listens on {path}, and is busy") from None
        else:
            raise ConfigError(f"a daemon listens on {path}", hint="there is one daemon a site and socket")


@contextmanager
def counted(counts: Counter[int], uid: int, more: int) -> Iterator[None]:
    """A user has so many more meanwhile. Who has none is not kept."""
    counts[uid] += more
    try:
        yield
    finally:
        counts[uid] -= more
        if not counts[uid]:
            del counts[uid]
