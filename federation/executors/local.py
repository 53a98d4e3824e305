"""This host's own processes as a pool: no queue, so what has no room now is not taken now.

Each job is a wrapper in a session of its own, which outlives the daemon: its service must be told to leave the jobs
alone when it stops (systemd: KillMode=process). Crash: a job that was started goes on, and is known by its claim.
"""

import asyncio
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from federation.access.acting import LEAST_UID, Account, account_of
from federation.access.names import asked
from federation.errors import FedError, NoRoom, Refused, Unavailable
from federation.executors import children, layout, processes, shares
from federation.executors.layout import Record
from federation.executors.shares import Share
from federation.executors.slurm_commands import HANDED_ON
from federation.executors.spool import Spool
from federation.model.messages import Room
from federation.model.spec import JobSpec
from federation.model.token import Key
from federation.ports import Place, Seen, Sight
from federation.tasks import ended

log = logging.getLogger(__name__)

GRACE_S = 10.0  # between asking a job's processes to end and ending them
KILLED_S = 5.0  # until processes that were killed are gone, and the wrapper has written its record
POLL_S = 0.05
CLAIM_POLL_S, CLAIM_LOOKS = 0.02, 100  # for the claim of a job that was started
_KILL, _TERM = 9, 15


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPool:
    """How much of this host jobs may have. `memory_mib`: what one job's processes may have each; 0: any.

    `changed` is told of an attempt that has begun or ended, so that it is looked at at once.
    """

    name: str
    spool: Spool
    cpus: int = field(default_factory=lambda: os.cpu_count() or 1)
    memory_mib: int = 0
    most_jobs: int = 1000
    longest_s: int = 0  # time limit of a job that asks for none or for more than it; 0: any
    price_per_hour: float = 0.0  # of a CPU
    least_uid: int = LEAST_UID
    path: str = "/usr/local/bin:/usr/bin:/bin"
    changed: Callable[[str, Key], object] | None = None


class LocalExecutor:
    """Implements `federation.ports.Executor` and `Places`."""

    def __init__(self, pool: LocalPool) -> None:
        self._pool, self._spool = pool, pool.spool
        self._taken: dict[Key, Share] | None = None  # of what was started and is not known to be over
        self._finding: asyncio.Future[dict[Key, Share]] | None = None
        self._started: dict[Key, asyncio.Task[None]] = {}  # by this daemon: a child that is not reaped yet

    async def room(self) -> Room:
        taken = await self._open()
        pool = self._pool
        free = max(0, pool.cpus - shares.cpus_of(taken.values()))
        most = max(0, min(free, pool.most_jobs - len(taken)))  # a job takes a CPU at least
        return Room(
            pool=pool.name,
            free_jobs=most,
            free_cpus=free,
            starts_in_s=shares.half_free_in_s(pool.cpus, taken.values(), time.time()),
            longest_s=pool.longest_s,
            price_per_hour=pool.price_per_hour,
            most_cpus=pool.cpus,
            most_memory_mib=pool.memory_mib,
            complete=True,
        )

    async def place(self, key: Key, user: str) -> Place:
        return await self._spool.on_thread(self._spool.place, key, await self._account(user))

    async def submit(self, key: Key, spec: JobSpec, user: str) -> str:
        pool, taken = self._pool, await self._open()
        self._refuse(spec)
        account = await self._account(user)
        record = await self._record(key)
        if record.claim is not None or key in taken:  # it is being started, by another call
            return str(record.claim.pid) if record.claim else ""
        if shares.cpus_of(taken.values()) + spec.cpus > pool.cpus or len(taken) >= pool.most_jobs:
            raise NoRoom(f"{pool.name} has no room for {spec.cpus} CPUs now")
        limit_s = spec.time_limit_s or pool.longest_s
        taken[key] = share = Share(spec.cpus, time.time() + limit_s) if limit_s else Share(spec.cpus)
        try:
            limit_mib = spec.memory_mib or pool.memory_mib
            files = layout.files(key, spec, most_memory_mib=limit_mib)
            files = files | {shares.FILE: share.render()}
            await self._spool.on_thread(self._spool.lay, key, account, files)
            child = await self._start(key, spec, account)
        except FedError:
            taken.pop(key, None)
            raise
        return str(child)

    def _refuse(self, spec: JobSpec) -> None:
        pool = self._pool
        if spec.gres:
            raise Refused(f"{pool.name} has no {spec.gres.partition(':')[0]}: it runs jobs on its host's CPUs")
        if spec.cpus > pool.cpus:
            raise Refused(f"{pool.name} has {pool.cpus} CPUs, and the job wants {spec.cpus}")
        if pool.memory_mib and spec.memory_mib > pool.memory_mib:
            raise Refused(f"a job of {pool.name} may have {pool.memory_mib} MiB, and it wants {spec.memory_mib}")
        if pool.longest_s and spec.time_limit_s > pool.longest_s:
            raise Refused(f"the longest time limit of {pool.name} is {pool.longest_s} s")

    async def _start(self, key: Key, spec: JobSpec, account: Account) -> int:
        argv = layout.argv(str(self._spool.folder(key)), spec.time_limit_s or self._pool.longest_s)
        starting = asyncio.ensure_future(self._spool.on_thread(children.start, argv, self._env(account), account))
        starting.add_done_callback(partial(self._keep, key))
        try:
            child = await asyncio.shield(starting)  # a call that is cut off loses no child
        except OSError as error:
            raise Unavailable(f"a process for the job can't be started: {error.strerror}") from None
        except subprocess.SubprocessError as error:  # between the fork and the program
            raise Unavailable(f"a process of {account.name}'s can't be started: {error}") from None
        log.info("local.started", extra={"job": str(key), "pid": child.pid, "user": account.name})
        return child.pid

    def _keep(self, key: Key, starting: "asyncio.Future[subprocess.Popen[bytes]]") -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._started[key] = asyncio.create_task(self._reap(key, starting.result()))

    async def _reap(self, key: Key, child: "subprocess.Popen[bytes]") -> None:
        ends = asyncio.create_task(children.ended(child))
        try:
            for _ in range(CLAIM_LOOKS):
                if ends.done() or await self._spool.on_thread(self._spool.has, key, layout.CLAIM):
                    break
                await asyncio.wait((ends,), timeout=CLAIM_POLL_S)
            if not ends.done():
                self._tell(key)  # it runs
            await ends
        finally:
            await ended(ends)
        self._started.pop(key, None)
        self._tell(key)

    def _tell(self, key: Key) -> None:
        if self._pool.changed is not None:
            self._pool.changed(self._pool.name, key)

    def _env(self, account: Account) -> dict[str, str]:
        who = {"USER": account.name, "LOGNAME": account.name, "HOME": account.home or "/"}
        return {"PATH": self._pool.path, "SHELL": "/bin/sh", **who}

    async def look(self, keys: Sequence[Key]) -> Mapping[Key, Seen]:
        taken = await self._open()
        waiting = frozenset(self._started)
        seen = await self._spool.on_thread(self._look, keys, waiting)
        for key, one in seen.items():
            if one.sight not in (Sight.RUNNING, Sight.PENDING):
                taken.pop(key, None)
            elif key not in taken:  # started by a call that was cut off
                taken[key] = await self._spool.on_thread(self._share, key)
        return seen

    def _look(self, keys: Sequence[Key], waiting: frozenset[Key]) -> dict[Key, Seen]:
        seen = {}
        for key in keys:
            try:
                seen[key] = self._see(key, waiting)
            except (OSError, Unavailable) as error:
                log.warning("local.not_seen", extra={"job": str(key), "why": str(error)})
        return seen

    def _see(self, key: Key, waiting: frozenset[Key]) -> Seen:
        record = self._spool.record(key)
        claim = record.claim
        if claim is None:
            return Seen(sight=Sight.PENDING if key in waiting else Sight.ABSENT)
        if claim.fence:
            return Seen(sight=Sight.FENCED)
        if record.ending is None and self._lives(key, record):
            return Seen(sight=Sight.RUNNING, handle=str(claim.pid), started_at=claim.at)
        ending = record.ending or self._spool.record(key).ending  # written before it went
        if ending is None:
            return Seen(sight=Sight.GONE, handle=str(claim.pid), started_at=claim.at)
        return Seen(sight=Sight.EXITED, handle=str(claim.pid), started_at=claim.at, outcome=ending.outcome)

    def _lives(self, key: Key, record: Record) -> bool:
        """Its wrapper, or whatever runs on without one."""
        claim = record.claim
        assert claim is not None
        return processes.alive(claim.pid, claim.start, claim.boot) or any(self._members(key, record))

    def _members(self, key: Key, record: Record) -> list[int]:
        claim = record.claim
        if record.uid is None or claim is None or claim.fence:
            return []
        if claim.boot not in ("", processes.boot_id()):  # a session's number is another's by now
            return []
        session = self._session(key)
        return list(processes.members(record.uid, session, layout.name_of(key))) if session else []

    def _session(self, key: Key) -> int:
        text = self._spool.read(key, layout.SESSION).strip()
        return int(text) if text.isdecimal() and len(text) < 10 else 0

    async def fence(self, key: Key) -> bool:
        return await self._spool.on_thread(self._spool.fence, key)

    async def stop(self, key: Key) -> None:
        if await self._ended_within(key, 0.0):
            return
        await self._deliver(key, _TERM)
        if await self._ended_within(key, GRACE_S):
            return
        await self._deliver(key, _KILL)
        if await self._ended_within(key, KILLED_S):
            return
        record = await self._record(key)  # what does not even record a death of its job is no wrapper of ours
        claim = record.claim
        if claim and record.uid is not None and processes.alive(claim.pid, claim.start, claim.boot):
            processes.send(claim.pid, record.uid, _KILL)

    async def _ended_within(self, key: Key, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while True:
            one = (await self._spool.on_thread(self._look, [key], frozenset(self._started))).get(key)
            if one is not None and one.sight is not Sight.RUNNING:
                return True
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(POLL_S)

    async def signal(self, key: Key, signal: int) -> None:
        """A plain signal of a batch job of Slurm's goes to what leads it."""
        alone = signal in HANDED_ON and await self._spool.on_thread(self._spool.has, key, layout.ALONE)
        await self._deliver(key, signal, alone=alone)

    async def _deliver(self, key: Key, number: int, *, alone: bool = False) -> None:
        record = await self._record(key)
        pids = await self._spool.on_thread(self._members, key, record)
        if alone:
            leader = await self._spool.on_thread(self._session, key)
            pids = [pid for pid in pids if pid == leader]
        assert record.uid is not None or not pids
        reached = [pid for pid in pids if record.uid is not None and processes.send(pid, record.uid, number)]
        log.info("local.signalled", extra={"job": str(key), "signal": number, "processes": len(reached)})

    async def forget(self, key: Key) -> None:
        (await self._open()).pop(key, None)
        await self._spool.on_thread(self._spool.forget, key)

    async def _open(self) -> dict[Key, Share]:
        """What runs, found once: later it is known. A call that is cut off meanwhile leaves the search to the next."""
        if self._taken is None:
            if self._finding is None or (self._finding.done() and self._finding.exception() is not None):
                self._finding = asyncio.ensure_future(self._spool.on_thread(self._find))
            found = await asyncio.shield(self._finding)
            self._taken = self._taken if self._taken is not None else found
        return self._taken

    def _find(self) -> dict[Key, Share]:
        self._spool.open()
        found = {}
        for key in self._spool.attempts():
            if self._see(key, frozenset()).sight is Sight.RUNNING:
                found[key] = self._share(key)
        return found

    def _share(self, key: Key) -> Share:
        return Share.parse(self._spool.read(key, shares.FILE))

    async def _account(self, user: str) -> Account:
        return await asked(partial(account_of, user, least_uid=self._pool.least_uid))

    async def _record(self, key: Key) -> Record:
        try:
            return await self._spool.on_thread(self._spool.record, key)
        except OSError as error:
            raise Unavailable(f"the job's folder can't be read: {error.strerror}") from None
