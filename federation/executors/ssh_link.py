"""One connection to a login node: found trustworthy before anything is said, shared by few channels, noticed when dead.

Only keys that an admin pinned are accepted for a host. A call has a deadline; beside that, a small command is run now
and then, as only an answer tells that the other side lives: a link that does not answer is closed, and its calls end.
Everything of paramiko's is done on threads of this link's own.
"""

import asyncio
import contextlib
import logging
import os
import select
import shlex
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import paramiko

from federation.errors import OutcomeUnknown, Unavailable
from federation.tasks import ended

log = logging.getLogger(__name__)
T = TypeVar("T")

CHANNELS = 5  # at once; sshd allows 10 by default, and those that it has not cleared away yet are among them
OPENS, AGAIN_S = 10, 0.3  # to open one, when it has too many
MAX_WAITING = 256  # calls for their turn; one more is refused at once
MAX_OUTPUT = 64 << 20  # bytes of one stream of a command
CONNECT_S = 20.0
ANSWER_S = 60.0  # longest command
PING_S = 20.0  # between pings
PING_ANSWER_S = 10.0
MAX_JUMPS = 4
_READ = 1 << 16
_BROKEN = (paramiko.SSHException, OSError, EOFError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Where to log in, as whom, and what proves both sides. Without `key` and `agent` nothing can prove us."""

    host: str
    user: str
    known_hosts: Path  # as ssh-keyscan and OpenSSH write it
    port: int = 22
    key: Path | None = None
    agent: bool = False
    jump: "Login | None" = None  # the host to go through


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """How a command ended, and what it wrote."""

    status: int
    out: bytes
    err: bytes


class SshLink:
    """Connects when it is first used, and again when it has to be.

    Calls raise Unavailable (nothing was asked) or OutcomeUnknown (asked, and no answer came).
    """

    def __init__(self, login: Login, *, ping_s: float = PING_S, ping_answer_s: float = PING_ANSWER_S) -> None:
        logging.getLogger("paramiko").setLevel(
            logging.CRITICAL
        )  # a traceback for each lost connection; we tell it in a line
        self._login = login
        self._ping_s, self._ping_answer_s = ping_s, ping_answer_s
        self._threads = ThreadPoolExecutor(CHANNELS, thread_name_prefix="ssh")
        self._pinger = ThreadPoolExecutor(1, thread_name_prefix="ssh-ping")
        self._lock = threading.Lock()
        self._clients: list[paramiko.SSHClient] = []  # the last is the login node's; the others lead there
        self._waiting = 0
        self._watch: asyncio.Task[None] | None = None

    async def run(self, script: str, *, timeout_s: float = ANSWER_S) -> Said:
        """A text for sh(1) there, with names as `os.fsdecode` has them. What it runs finds nothing on its input."""
        return await self._call(lambda: self._run(self._transport(), script, timeout_s))

    async def files(self, use: Callable[[paramiko.SFTPClient], T]) -> T:
        """Files there, on a thread. Each answer has to come within ANSWER_S."""
        return await self._call(lambda: self._with_files(use))

    async def close(self) -> None:
        if self._watch is not None:
            await ended(self._watch)
        await asyncio.to_thread(self._drop)
        for threads in (self._threads, self._pinger):
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)

    async def _call(self, work: Callable[[], T]) -> T:
        if self._waiting >= MAX_WAITING:
            raise Unavailable(f"{self._waiting} calls wait for {self._login.host}")
        if self._watch is None:
            self._watch = asyncio.create_task(self._keep_watch())
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1

    async def _keep_watch(self) -> None:
        while True:
            await asyncio.sleep(self._ping_s)
            if self._clients:
                await asyncio.get_running_loop().run_in_executor(self._pinger, self._ping)

    def _ping(self) -> None:
        clients = self._clients
        transport = clients[-1].get_transport() if clients else None
        if transport is None:
            return
        try:
            self._run(transport, ":", self._ping_answer_s)
        except (OutcomeUnknown, Unavailable) as error:
            log.warning("ssh.dead", extra={"host": self._login.host, "why": str(error)})
            self._drop()

    # -- on threads

    def _transport(self) -> paramiko.Transport:
        """Raises Unavailable."""
        with self._lock:
            transport = self._clients[-1].get_transport() if self._clients else None
            if transport is not None and transport.is_active():
                return transport
            self._close_all()
            try:
                self._connect(self._login, 0)
            except paramiko.BadHostKeyException as error:
                self._close_all()
                raise self._no(f"{error.hostname} shows another key than the one that is pinned") from None
            except _BROKEN as error:
                self._close_all()
                raise self._no(f"can't log in at {self._login.host}: {error}") from None
            transport = self._clients[-1].get_transport()
            assert transport is not None
            return transport

    def _no(self, message: str) -> Unavailable:
        hint = f"{self._login.known_hosts} must hold the host's key, and the host must know ours"
        return Unavailable(message, hint=hint)

    def _connect(self, login: Login, depth: int) -> None:
        """Through its jump host, if it has one."""
        if depth > MAX_JUMPS:
            raise Unavailable(f"more than {MAX_JUMPS} jump hosts before {self._login.host}")
        way: paramiko.Channel | None = None
        if login.jump is not None:
            self._connect(login.jump, depth + 1)
            before = self._clients[-1].get_transport()
            assert before is not None
            way = before.open_channel("direct-tcpip", (login.host, login.port), ("127.0.0.1", 0), timeout=CONNECT_S)
        client = paramiko.SSHClient()  # it rejects hosts that it does not know
        client.load_host_keys(str(login.known_hosts))
        self._clients.append(client)
        client.connect(
            login.host,
            login.port,
            login.user,
            key_filename=str(login.key) if login.key else None,
            allow_agent=login.agent,
            look_for_keys=False,
            timeout=CONNECT_S,
            banner_timeout=CONNECT_S,
            auth_timeout=CONNECT_S,
            channel_timeout=CONNECT_S,
            sock=way,
        )
        if (
            way is None
            and (transport := client.get_transport()) is not None
            and isinstance(transport.sock, socket.socket)
        ):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(ANSWER_S * 1000))

    def _drop(self) -> None:
        with self._lock:
            self._close_all()

    def _close_all(self) -> None:
        for client in reversed(self._clients):
            _close(client)
        self._clients = []

    def _run(self, transport: paramiko.Transport, script: str, limit_s: float) -> Said:
        deadline = time.monotonic() + limit_s
        channel = self._channel(transport, min(limit_s, CONNECT_S))
        try:
            channel.settimeout(limit_s)
            channel.exec_command("/bin/sh -s")
            channel.sendall(os.fsencode(f"{{\n{script}\n}} < /dev/null\n"))
            channel.shutdown_write()
            return _drain(channel, deadline)
        except (TimeoutError, *_BROKEN) as error:
            raise OutcomeUnknown(f"{self._login.host} did not answer: {error or type(error).__name__}") from None
        finally:
            _close(channel)

    def _channel(self, transport: paramiko.Transport, limit_s: float) -> paramiko.Channel:
        tries = 0
        while True:
            try:
                return transport.open_session(timeout=limit_s)
            except _BROKEN as error:
                tries += 1
                if tries == OPENS or not isinstance(error, paramiko.ChannelException):
                    raise Unavailable(f"{self._login.host} opens no channel: {error}") from None
            time.sleep(AGAIN_S)

    def _with_files(self, use: Callable[[paramiko.SFTPClient], T]) -> T:
        transport = self._transport()
        channel = self._channel(transport, CONNECT_S)
        try:
            channel.settimeout(ANSWER_S)
            channel.invoke_subsystem("sftp")
            with paramiko.SFTPClient(channel) as client:
                return use(client)
        except (TimeoutError, *_BROKEN) as error:
            raise OutcomeUnknown(f"moving files failed at {self._login.host}: {error}") from None
        finally:
            _close(channel)


def _close(one: paramiko.Channel | paramiko.SSHClient) -> None:
    """Of a link that is gone there is nothing to close, and what was asked over it has its answer already."""
    with contextlib.suppress(*_BROKEN):
        one.close()


def _drain(channel: paramiko.Channel, deadline: float) -> Said:
    """Both streams together: one alone would fill the other's window, and nothing would move any more."""
    streams = {False: bytearray(), True: bytearray()}
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    open_streams = {False, True}
    while open_streams:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("its time is over")
        poll.poll(min(left_s, 1.0) * 1000)
        _take(channel, streams, open_streams)
        if any(len(one) > MAX_OUTPUT for one in streams.values()):
            raise OSError(f"a command wrote more than {MAX_OUTPUT} bytes")
    told = channel.status_event.wait(max(0.0, deadline - time.monotonic()))
    if not told or channel.exit_status < 0:  # the link broke, or the command was killed
        raise EOFError("how a command ended was not told")
    return Said(status=channel.exit_status, out=bytes(streams[False]), err=bytes(streams[True]))


def _take(channel: paramiko.Channel, streams: dict[bool, bytearray], open_streams: set[bool]) -> None:
    ended = channel.closed or channel.eof_received  # asked first: what came before is still to be taken
    for is_error, ready, receive in (
        (False, channel.recv_ready, channel.recv),
        (True, channel.recv_stderr_ready, channel.recv_stderr),
    ):
        while ready():
            streams[is_error] += receive(_READ)
        if ended:
            open_streams.discard(is_error)


def words(argv: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, argv))
