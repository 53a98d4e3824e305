"""One site of a benchmark as a process of its own: the real daemon, whose pools take every job and run none.

    python -c "import gc; gc.disable(); from benchmarks.federation_site import run; run()" fed.yaml RAN

It starts as `fed daemon` does, which looks for no rubbish until it serves.
Questions come as JSON lines on stdin, answers go as JSON lines to stdout. A start is a line in the file RAN, as the
claim of an attempt is a file elsewhere: it outlives this process, and who finds it there starts nothing.
"""

import asyncio
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from federation import daemon
from federation.backends import Backends
from federation.config_pools import PoolRules
from federation.daemon import Daemon
from federation.model.messages import Changes, Message, Room, Told
from federation.model.spec import JobSpec
from federation.model.states import Origin
from federation.model.token import RANDOM_BYTES, Key, mint
from federation.ports import Place, Seen, Sight
from federation.stage.pull import Pull
from federation.store.store import Store

USER = "nobody"
SCRIPT = b"#!/bin/sh\n" + b"# two KiB of a script\n" * 92 + b"true\n"
SPEC = JobSpec(user=USER, script=SCRIPT, env=((b"LANG", b"C.UTF-8"),), pin="hpc")
MANY = 1 << 20
TOGETHER = 1000  # submits that wait for the journal at once
FLOWS = 16  # users who submit one job after the other
SETTLED_S = 300.0
FOLLOW_AGAIN_S = 0.5
FOLLOWED_S = 240.0  # longest wait for what a job writes
SENT = (Origin.QUEUED, Origin.SENDING, Origin.UNKNOWN)


class Pool:
    """A backend that answers at once. Its jobs run for as long as the site lives."""

    def __init__(self, ran: Path) -> None:
        self._started = {_named(line.split()[0]) for line in ran.read_text().splitlines()} if ran.exists() else set()
        self._ran = os.open(ran, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._outputs = ran.parent.parent / "outputs"
        self.die_in = 0  # starts until this process kills itself, before its journal hears of the last; 0: never

    async def room(self) -> Room:
        return Room(pool="batch", free_jobs=MANY, free_cpus=MANY)

    async def submit(self, key: Key, spec: JobSpec, user: str) -> str:
        name = str(key)
        if _short(key) not in self._started:
            self._started.add(_short(key))
            os.write(self._ran, f"{name} {time.time()}\n".encode())
            self.die_in -= 1
            if self.die_in == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return name[:8]

    async def look(self, keys: Sequence[Key]) -> Mapping[Key, Seen]:
        pending, absent = Seen(sight=Sight.PENDING), Seen(sight=Sight.ABSENT)
        return {key: pending if _short(key) in self._started else absent for key in keys}

    async def fence(self, key: Key) -> bool:
        return _short(key) not in self._started

    async def stop(self, key: Key) -> None:
        """Nothing runs."""

    async def signal(self, key: Key, signal: int) -> None:
        """Nothing runs."""

    async def forget(self, key: Key) -> None:
        """Nothing was written."""

    async def place(self, key: Key, user: str) -> Place:
        folder = self._outputs
        return Place(folder=folder, stdout=folder / f"{key.token}.out", stderr=folder / f"{key.token}.err")


def _short(key: Key) -> bytes:
    return key.token.bytes + key.attempt.to_bytes(4, "big")


def _named(name: str) -> bytes:
    token, _, attempt = name.partition("/")
    return _short(Key(UUID(token), int(attempt)))


class Asked:
    """What the benchmark asks of this site."""

    def __init__(self, site: Daemon) -> None:
        self._site, self._runner = site, site.runner
        self._begun: dict[UUID, float] = {}
        self._acked: dict[UUID, float] = {}
        self._wanted = 0
        self.pools: list[Pool] = []
        self._all = asyncio.Event()
        self._receive = site.runner.messages
        # There is no other place that knows when an answer is durable.
        site.runner.messages = self._messages  # type: ignore[method-assign]

    async def _messages(self, sender: str, messages: Sequence[Message]) -> None:
        """The far site's word on a job counts once it is durable here."""
        await self._receive(sender, messages)
        now = time.perf_counter()
        for message in messages:
            records = message.records if isinstance(message, Changes) else ()
            for record in (message.record,) if isinstance(message, Told) else records:
                if record.key.token in self._begun:
                    self._acked.setdefault(record.key.token, now)
        if len(self._acked) >= self._wanted:
            self._all.set()

    async def forward(self, jobs: int, rate: float) -> dict[str, Any]:
        """Submit so many, at this rate a second (0: all at once), and wait until the far site has each."""
        self._begun, self._acked, self._wanted = {}, {}, jobs
        self._all.clear()
        gc.collect()
        start, used = time.perf_counter(), time.process_time()
        for first in range(0, jobs, TOGETHER):
            some = range(first, min(jobs, first + TOGETHER))
            await asyncio.gather(*(self._submit(start + nth / rate if rate else 0.0) for nth in some))
        accepted = time.perf_counter() - start
        async with asyncio.timeout(120):
            await self._all.wait()
        took, cpu = max(self._acked.values()) - start, time.process_time() - used
        waits = [self._acked[token] - at for token, at in self._begun.items()]
        wall = time.time() - time.perf_counter()
        submitted = {str(token): wall + at for token, at in self._begun.items()}
        return {"s": took, "cpu_s": cpu, "accepted_s": accepted, "waits": waits, "submitted": submitted}

    async def _submit(self, at: float) -> None:
        if (wait_s := at - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        token = mint(int(time.time() * 1000), os.urandom(RANDOM_BYTES))
        self._begun[token] = at or time.perf_counter()
        await self._runner.accept(token, SPEC)

    async def used(self) -> dict[str, Any]:
        gc.collect()
        return _used()

    async def die(self, starts: int) -> dict[str, Any]:
        """Later: at this start of a job from now on."""
        self.pools[0].die_in = starts
        return {}

    async def flow(self, jobs: int, accepted: str) -> dict[str, Any]:
        """Begin to submit so many, and write down each that was accepted."""
        handle = os.open(accepted, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

        async def submit() -> None:
            for _ in range(jobs):
                token = mint(int(time.time() * 1000), os.urandom(RANDOM_BYTES))
                await self._runner.accept(token, SPEC)
                os.write(handle, f"{token}\n".encode())

        self._flow = asyncio.gather(*(submit() for _ in range(FLOWS)))
        return {}

    async def fill(self, jobs: int) -> dict[str, Any]:
        """Submit so many, and keep nothing about them."""
        for first in range(0, jobs, TOGETHER):
            now = int(time.time() * 1000)
            tokens = [mint(now, os.urandom(RANDOM_BYTES)) for _ in range(min(TOGETHER, jobs - first))]
            await asyncio.gather(*(self._runner.accept(token, SPEC) for token in tokens))
        return {}

    async def settled(self) -> dict[str, Any]:
        """Once the far site has every job that is not done."""
        async with asyncio.timeout(SETTLED_S):
            while await self._runner.read(_unsent):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return {"open": await self._runner.read(lambda store: sum(store.jobs().values()))}

    async def follow(self, token: str, size: int) -> dict[str, Any]:
        """Until so many bytes of what that job writes are here."""
        start, used = time.perf_counter(), time.process_time()
        async for pull in self._pulled(token):
            if pull.streams["stdout"].written >= size:
                break
        return {
            "s": time.perf_counter() - start,
            "cpu_s": time.process_time() - used,
            "file": str(pull.folder / "stdout"),
        }

    async def _pulled(self, token: str) -> AsyncIterator[Pull]:
        """Whenever more has come. A cut ends a transfer, and to want it is to begin it anew."""
        until = time.monotonic() + FOLLOWED_S
        while time.monotonic() < until:
            pull = self._site._mover.follow("hpc", Key(UUID(token), 1))
            pull.changed.clear()
            yield pull
            with suppress(TimeoutError):
                async with asyncio.timeout(FOLLOW_AGAIN_S):
                    await pull.changed.wait()
        raise TimeoutError(f"the output of {token} did not come")

    async def lags(self, tokens: list[str], lines: int) -> dict[str, Any]:
        """How old each line is that comes: it begins with the time when it was written. Until each wrote so many."""
        found: list[float] = []
        await asyncio.gather(*(self._lags(token, lines, found) for token in tokens))
        return {"lags": found}

    async def _lags(self, token: str, lines: int, found: list[float]) -> None:
        at, count = 0, 0
        async for pull in self._pulled(token):
            written = pull.streams["stdout"].written
            if written > at:
                data = _read(pull.folder / "stdout", at, written)
                now, whole = time.time(), data[: data.rfind(b"\n") + 1]
                found += [now - float(line.split(b" ", 1)[0]) for line in whole.splitlines()]
                at, count = at + len(whole), count + whole.count(b"\n")
            if count >= lines:
                return

    async def linked(self, site: str) -> dict[str, Any]:
        """Once that site has told its pools."""
        async with asyncio.timeout(60):
            while not self._runner.engine.sites[site].rooms:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return {}

    def answer(self, told: dict[str, Any]) -> Awaitable[dict[str, Any]]:
        calls: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "forward": self.forward,
            "used": self.used,
            "linked": self.linked,
            "die": self.die,
            "flow": self.flow,
            "fill": self.fill,
            "settled": self.settled,
            "follow": self.follow,
            "lags": self.lags,
        }
        return calls[told.pop("do")](**told)


def _read(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), stop - start, start)


def _unsent(store: Store) -> int:
    return sum(count for (state, _, _), count in store.jobs().items() if state in SENT)


def _used() -> dict[str, Any]:
    resident = Path("/proc/self/statm").read_text().split()[1]
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": spent.ru_utime + spent.ru_stime, "resident": int(resident) * os.sysconf("SC_PAGE_SIZE")}


def _backends(ran: Path, made: list[Pool]) -> Callable[..., Backends]:
    def make(pools: Mapping[str, PoolRules], changed: object) -> Backends:
        made.extend(Pool(ran) for _ in pools)
        return Backends(pools=dict(zip(pools, made, strict=True)))

    return make


async def main(config: Path, ran: Path) -> None:
    pools: list[Pool] = []
    vars(daemon)["backends"] = _backends(ran, pools)
    site = Daemon(config)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with site.running() as serving:
        asked = Asked(site)
        asked.pools = pools
        await site.runner.read(lambda store: store.newest_jobs(USER, 1))
        print(json.dumps({}), flush=True)
        while line := await reader.readline():
            print(json.dumps(await asked.answer(json.loads(line))), flush=True)
            if serving.done():
                serving.result()


def run() -> None:
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
