"""A gateway in service over a real journal, mover and backend of this host's processes, and a proxy in Python."""

import asyncio
import ctypes
import os
import platform
import pwd
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from federation.config_overflow import OverflowConfig, VirtualNodes
from federation.daemon import local_account
from federation.engine.origin import OriginRules
from federation.engine.site import SiteEngine, SiteRules
from federation.errors import Refused
from federation.executors.local import LocalExecutor, LocalPool
from federation.executors.spool import Spool as PoolSpool
from federation.model.job import Job
from federation.model.messages import Message
from federation.model.token import Key
from federation.overflow.burst import Burst, SlurmJob
from federation.overflow.facts import Rule
from federation.overflow.frames import (
    HEAD,
    Acknowledged,
    Data,
    Ended,
    FromDaemon,
    FromProxy,
    Hello,
    Ping,
    Refusal,
    Remark,
    Signalled,
    Stream,
    Welcome,
)
from federation.overflow.request import Asked
from federation.overflow.service import House as OverflowHouse
from federation.overflow.service import Overflow
from federation.policy.admit import Guest, House
from federation.ports import now
from federation.runner import Adapters, Runner
from federation.server.service import Bulk
from federation.stage.far import Near
from federation.stage.holdings import Holdings
from federation.stage.inputs import Inputs
from federation.stage.mover import Mover
from federation.stage.outputs import Outputs
from federation.stage.results import Results
from federation.stage.spool import Spool
from federation.store.room import Room as DiskRoom
from federation.store.writer import Writer
from slurm_plugin.slurm.process import Site as SlurmSite
from tests.integration.federation.overflow.stand import FakeSlurm as Records
from tests.unit.federation.overflow.wire import from_daemon, to_daemon

PATIENCE_S = 60.0
USER, OTHER = "alice", "bob"
NODE = "cloud-hpc-1"
_SETRESUID = {"x86_64": 117, "aarch64": 147, "ppc64le": 164}
_libc = ctypes.CDLL(None, use_errno=True)


class FakeSlurm(Records):
    """And what jobs have asked for."""

    wants = Asked()
    refusals = 0  # of what it is told next
    work_dir = "/tmp"  # of all jobs

    async def note(self, burst: Burst, json_text: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Refused("scontrol update: busy")
        await super().note(burst, json_text)

    async def asked(self, job_id: int) -> Asked | None:
        self._answer()
        return self.wants if job_id in self.records else None

    async def folder(self, job_id: int) -> str:
        self._answer()
        return self.work_dir


class _Nobody:
    """There are no other sites."""

    def send(self, site: str, message: Message) -> bool:
        raise AssertionError((site, message))


@dataclass
class Gate:
    """`up` is one life of the daemon: leaving it is a crash as far as anything in memory goes."""

    folder: Path  # that users may pass
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    shared_files: bool = False
    cpus: int = 64
    longest_s: int = 0
    rules: dict[str, Rule] = field(default_factory=dict)
    pool: LocalExecutor = field(init=False)
    runner: Runner = field(init=False)
    mover: Mover = field(init=False)
    overflow: Overflow = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.folder / "home"
        self.home.mkdir()
        os.chown(self.home, uid_of(USER), uid_of(USER))
        self.state = self.folder / "state"
        self.state.mkdir(mode=0o700)
        self.socket = self.folder / "gateway.sock"
        self.jobs = PoolSpool(self.folder / "spool")

    def config(self) -> OverflowConfig:
        nodes = VirtualNodes(
            prefix="cloud-hpc",
            count=2,
            pool="hpc/batch",
            gateway="gw1",
            cpus=64,
            memory_mib=1000,
            most_jobs=500,
            shared_files=self.shared_files,
        )
        return OverflowConfig(
            cluster="lab",
            slurm=SlurmSite(),
            socket=self.socket,
            partition="cloud",
            wait_partition="wait",
            longest_wait_s=3600,
            nodes={"cloud-hpc": nodes},
            rules=self.rules,
            pool_yaml=None,
        )

    @asynccontextmanager
    async def up(self) -> AsyncIterator["Gate"]:
        room = DiskRoom(self.state / "fed.db", reserve_bytes=0, ballast_bytes=1 << 16)
        writer = Writer(self.state / "fed.db", journal=uuid4(), room=room)
        rules_of_pool = LocalPool(
            name="batch", spool=self.jobs, cpus=self.cpus, longest_s=self.longest_s, changed=self._changed
        )
        self.pool = LocalExecutor(rules_of_pool)
        guest = Guest(pools=("batch",), users={USER: USER, OTHER: OTHER}, most_jobs=100_000)
        house = House(pools={"batch": 1000}, guests={"hpc": guest})
        rules = SiteRules(name="hpc", peers=(), origin=OriginRules(), house=house)
        spool = Spool(self.state / "jobs")
        near: list[Near] = []
        mover = self.mover = Mover(spool, lambda: self.runner, lambda _: near[0], local_account)
        adapters = Adapters(executors={"batch": self.pool}, peers=_Nobody(), mover=mover)
        self.runner = Runner(SiteEngine(rules, now()), writer, adapters)
        holdings = Holdings(self.runner, {"batch": self.pool}, least_uid=1000)
        inputs = Inputs(self.state / "staging", holdings, self.runner.inputs_here)
        bulk = Bulk(inputs=inputs, results=Results(holdings), outputs=Outputs(holdings, self.runner.watching_attempt))
        near.append(Near("hpc", bulk.inputs, bulk.results, bulk.outputs))
        self.overflow = Overflow(
            self.config(),
            OverflowHouse(
                runner=self.runner,
                mover=mover,
                spool=spool,
                account=local_account,
                environment=lambda: ("LANG", "DATA"),
            ),
            self.slurm,
        )
        running = asyncio.create_task(self.runner.run())
        async with self.overflow.open():
            loops = asyncio.create_task(self.overflow.run())
            await self.runner.tell_rooms()
            try:
                yield self
            finally:
                await _ended(loops)
        await mover.close()
        await _ended(running)
        await writer.close()

    def _changed(self, pool: str, key: Key) -> None:
        self.runner.look(pool, (key,))

    def job(self, job_id: int = 42, user: str = USER, **more: Any) -> SlurmJob:
        """A job that Slurm has just started on a virtual node."""
        job = SlurmJob(
            job_id=job_id,
            uid=uid_of(user),
            state="RUNNING",
            partitions=("cloud",),
            nodes=(NODE,),
            submitted_at=100,
            started_at=110,
        )
        return self.slurm.put(replace(job, **more))

    def proxy(self, script: bytes, job: SlurmJob | None = None, **more: Any) -> "Proxy":
        """Of a run of this job, or of a new one."""
        job = job or self.job()
        hello = Hello(job_id=job.job_id, restarts=job.restarts, node=NODE, folder=os.fsencode(self.home))
        hello = replace(hello, script=b"#!/bin/sh\n" + script, **more)
        return Proxy(self.socket, hello, user=USER)

    def again(self, first: "Proxy", job: SlurmJob) -> "Proxy":
        """Of another run of its job: Slurm has the same script for it."""
        hello = replace(first.hello, job_id=job.job_id, restarts=job.restarts, stdout_next=-1, stderr_next=-1)
        return Proxy(self.socket, hello, user=USER)

    async def sees(self, token: UUID, what: Callable[[Job], bool]) -> None:
        """Until the origin's record of this job is so."""
        seen = asyncio.Event()
        with self.runner.watching(token, lambda job: seen.set() if what(job) else None):
            job = await self.runner.read(lambda store: store.job(token))
            if job is None or not what(job):
                async with asyncio.timeout(PATIENCE_S):
                    await seen.wait()

    async def key(self) -> Key:
        """Of the only attempt, once there is one."""
        await until(lambda: any(self.jobs.attempts()))
        return next(iter(self.jobs.attempts()))

    async def waits_for(self, path: Path) -> None:
        await until(path.exists)


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until(ready: Callable[[], bool]) -> None:
    """What it waits for is in a file or in another task, so it looks again and again."""
    async with asyncio.timeout(PATIENCE_S):
        while not ready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def uid_of(user: str) -> int:
    return pwd.getpwnam(user).pw_uid


def connected(path: Path, user: str) -> socket.socket:
    """As that user: of this thread alone the kernel is told that it is his."""
    call, uid, keep = _SETRESUID[platform.machine()], uid_of(user), ctypes.c_long(-1)
    found = socket.socket(socket.AF_UNIX)
    assert _libc.syscall(ctypes.c_long(call), keep, ctypes.c_long(uid), keep) == 0
    try:
        found.connect(str(path))
    except OSError:
        found.close()
        raise
    finally:
        assert _libc.syscall(ctypes.c_long(call), keep, ctypes.c_long(0), keep) == 0
    found.setblocking(False)
    return found


class Proxy:
    """What the one in C does, with files of the test's own. `output` and `errors` are the job's files."""

    def __init__(self, path: Path, hello: Hello, user: str) -> None:
        self._path, self.hello, self._user = path, hello, user
        self.files = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
        self.at = {Stream.STDOUT: -1, Stream.STDERR: -1}
        self.remarks: list[str] = []
        self.own = 0
        self.acknowledges = True
        self.takes, self.is_full = asyncio.Event(), asyncio.Event()  # output; some came that it does not take
        self.takes.set()
        self.welcomed = asyncio.Event()
        self.ended: Ended | Refusal | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def output(self) -> bytes:
        return bytes(self.files[Stream.STDOUT])

    @property
    def errors(self) -> bytes:
        return bytes(self.files[Stream.STDERR])

    async def say(self, message: FromProxy) -> None:
        assert self._writer is not None
        self._writer.write(to_daemon(message))
        await self._writer.drain()

    async def signal(self, number: int) -> None:
        """Of slurmstepd's, and wait until the daemon has it."""
        await self.welcomed.wait()
        await self.say(Signalled(number=number, from_stepd=True))

    async def run(self) -> Ended | Refusal:
        """Until it is told its end, through however many lives of the daemon."""
        async with asyncio.timeout(PATIENCE_S):
            while self.ended is None:
                with suppress(ConnectionError, FileNotFoundError, asyncio.IncompleteReadError):
                    await self.visit()
                await asyncio.sleep(0.02)
        return self.ended

    async def visit(self) -> None:
        """One connection. Raises ConnectionError, IncompleteReadError at its end."""
        reader, self._writer = await asyncio.open_unix_connection(sock=connected(self._path, self._user))
        try:
            await self.say(self._hello())
            while self.ended is None:
                kind, size = HEAD.unpack(await reader.readexactly(HEAD.size))
                message = from_daemon(kind, await reader.readexactly(size))
                assert message is not None
                await self._take(message)
        finally:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    def _hello(self) -> Hello:
        return replace(
            self.hello,
            stdout_size=len(self.output),
            stderr_size=len(self.errors),
            stdout_next=self.at[Stream.STDOUT],
            stderr_next=self.at[Stream.STDERR],
            own=self.own,
        )

    async def _take(self, message: FromDaemon) -> None:
        match message:
            case Welcome():
                fresh = self.at[Stream.STDOUT] < 0
                assert fresh or (message.stdout, message.stderr) == tuple(self.at.values())
                self.at = {Stream.STDOUT: message.stdout, Stream.STDERR: message.stderr}
                self.welcomed.set()
            case Data():
                self.is_full.set()
                await self.takes.wait()
                assert message.offset == self.at[message.stream]
                self.files[message.stream] += message.data
                self.at[message.stream] += len(message.data)
                if self.acknowledges:
                    await self.acknowledge()
            case Remark():
                self.remarks.append(message.text)
                file = Stream.STDOUT if self.hello.joined else Stream.STDERR
                line = f"fed: {message.text}\n".encode()
                self.files[file] += line
                self.own += len(line)
            case Ended() | Refusal():
                self.ended = message
            case Ping():
                pass

    async def acknowledge(self) -> None:
        await self.say(Acknowledged(stdout=self.at[Stream.STDOUT], stderr=self.at[Stream.STDERR]))
