"""The origin's mover: sends inputs, follows outputs, fetches results. One transfer an attempt and kind at a time.

Told to go on any number of times; a transfer that was cut ends, and goes on where it was when it is told again.
"""

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from federation.access.acting import Account
from federation.access.names import asked
from federation.drops import Drops
from federation.errors import FedError, Refused, Unavailable
from federation.model.spec import JobSpec
from federation.model.states import Origin, Outcome
from federation.model.token import Key
from federation.stage.far import Far
from federation.stage.fetch import MORE, Goal, fetch, too_much
from federation.stage.holdings import Journal
from federation.stage.pull import Pull
from federation.stage.push import push
from federation.stage.spool import Spool
from federation.tasks import ended

log = logging.getLogger(__name__)

MOST_AT_ONCE = 32  # transfers from or to one site; more wait
MOST_TO_HOME = 8  # of these, those whose files go to folders of one user: their server may hang
MOST_TOLD = 10  # patterns that meant no file
TIDY_PAGE = 100  # jobs asked about at once
MOST_WAITING = 10_000  # transfers that run or wait; more are dropped, and wanted again


class Engine(Journal, Protocol):
    """What a runner is to the mover."""

    async def results_here(self, key: Key, remark: str = "") -> None: ...

    async def moved(self, site: str, size: int, seconds: float) -> None: ...


@dataclass(slots=True)
class Progress:
    """Of one job's transfers, in memory only."""

    what: str
    total: int = 0  # bytes; 0: not known
    moved: int = 0
    why: str = ""  # it does not go on

    def sized(self, total: int) -> None:
        self.total = total


class _Home:
    """What of one site's transfers a user's folders may hold up."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(MOST_TO_HOME)
        self.threads = ThreadPoolExecutor(MOST_TO_HOME, thread_name_prefix="home")
        self.fetches = 0  # that have it


class Mover:
    """`far` tells a site's other end, or None when there is no link. `account` is a user of this host.

    `most`: bytes of one job that are taken from a site.
    """

    def __init__(
        self,
        spool: Spool,
        engine: Callable[[], Engine],
        far: Callable[[str], Far | None],
        account: Callable[[str], Account],
        most: Callable[[str], int] = lambda _: 1 << 62,
    ) -> None:
        self.spool = spool
        self._engine, self._far, self._account, self._most = engine, far, account, most
        self._tasks: dict[tuple[str, Key], asyncio.Task[None]] = {}
        self._pulls: WeakValueDictionary[Key, Pull] = WeakValueDictionary()  # those that somebody has in hand
        self._gates = defaultdict[tuple[str, str], asyncio.Semaphore](lambda: asyncio.Semaphore(MOST_AT_ONCE))
        self._homes: dict[tuple[str, str], _Home] = {}  # of site and user, while something is fetched
        self._drops = Drops(log, "transfer.dropped")
        self.progress: dict[Key, Progress] = {}  # of those that run, or stopped and are wanted again

    def push_inputs(self, site: str, key: Key, spec: JobSpec) -> None:
        progress = Progress(what="inputs", total=spec.input_bytes)
        self._begin("push", key, progress, lambda: self._push(site, key, progress))

    def fetch_results(self, site: str, key: Key, outcome: Outcome) -> None:
        progress = Progress(what="results")
        self._begin("fetch", key, progress, lambda: self._fetch(site, key, outcome, progress))

    def follow(self, site: str, key: Key) -> Pull:
        """Take what the job writes until it has ended or is cut. Who wants to see the end says so again and again."""
        pull = self.pull(key)
        if not pull.ended and ("fetch", key) not in self._tasks:
            self._begin("follow", key, None, lambda: self._follow(site, pull))
        return pull

    def reaches(self, site: str) -> bool:
        return self._far(site) is not None

    async def unfollow(self, key: Key) -> None:
        if (task := self._tasks.get(("follow", key))) is not None:
            await ended(task)

    async def close(self) -> None:
        await ended(*self._tasks.values())

    # -- what runs

    async def _push(self, site: str, key: Key, progress: Progress) -> None:
        async with self._gates["push", site]:
            began = time.monotonic()
            size = await push(self._linked(site), self.spool, key, _counter(progress))
        await self._engine().moved(site, size, time.monotonic() - began)

    async def _fetch(self, site: str, key: Key, outcome: Outcome, progress: Progress) -> None:
        spec = await self._engine().read(lambda store: store.spec(key.token))
        user, patterns = (spec.user, spec.outputs) if spec is not None and outcome.started_at is not None else ("", ())
        del spec  # it has a script, and this may wait for long
        with self._home(site, user) as home:
            async with home.gate if patterns else nullcontext(), self._gates["fetch", site]:
                far, most = self._linked(site), self._most(site)
                written = await self._pulled(far, key, outcome, most)
                remark = ""
                if patterns:
                    place = await asyncio.to_thread(self.spool.home, key.token)
                    account = await asked(self._account, place.user)
                    goal = Goal(folder=Path(place.folder), account=account, patterns=patterns, threads=home.threads)
                    goal = replace(goal, most_bytes=max(0, most - written), sized=progress.sized)
                    remark = _no_file(await fetch(far, key, goal, _counter(progress)))
        await self._engine().results_here(key, remark)
        await asyncio.to_thread(self.spool.drop_inputs, key.token)

    @contextmanager
    def _home(self, site: str, user: str) -> Iterator[_Home]:
        home = self._homes.setdefault((site, user), _Home())
        home.fetches += 1
        try:
            yield home
        finally:
            home.fetches -= 1
            if not home.fetches:
                del self._homes[site, user]
                home.threads.shutdown(wait=False)

    async def _pulled(self, far: Far, key: Key, outcome: Outcome, most: int) -> int:
        """Bytes of its output that came, whatever was claimed."""
        claimed = outcome.stdout_size + outcome.stderr_size
        if claimed > most:
            raise Refused(too_much(claimed, most), hint=MORE)
        pull = self.pull(key)
        if outcome.wrote:
            await self.unfollow(key)
            await pull.run(far, most)
        return sum(one.written for one in pull.streams.values())

    async def _follow(self, site: str, pull: Pull) -> None:
        await pull.run(self._linked(site), self._most(site))

    def pull(self, key: Key) -> Pull:
        """What has come of its output."""
        if (known := self._pulls.get(key)) is None:
            known = self._pulls[key] = Pull(key, self.spool.attempt(key))
        return known

    def _linked(self, site: str) -> Far:
        if (far := self._far(site)) is None:
            raise Unavailable(f"no link to {site} now")
        return far

    async def tidy(self) -> None:
        """Forget the progress of attempts that are over: one that stopped may not be wanted again. Raises FedError."""
        keys = list(self.progress.keys() - {key for _, key in self._tasks})
        for start in range(0, len(keys), TIDY_PAGE):
            for key in await self._over(keys[start : start + TIDY_PAGE]):
                self.progress.pop(key, None)

    async def _over(self, keys: Sequence[Key]) -> list[Key]:
        jobs = await self._engine().read(lambda store: {key: store.job(key.token) for key in keys})
        return [key for key, job in jobs.items() if job is None or job.key != key or job.state is Origin.DONE]

    # -- tasks

    def _begin(
        self, kind: str, key: Key, progress: Progress | None, call: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        if (kind, key) in self._tasks:
            return
        if len(self._tasks) >= MOST_WAITING:
            self._drops.add(what=kind, key=str(key))
            return
        if progress is not None:
            self.progress[key] = progress
        task = asyncio.create_task(self._run(kind, key, progress, call))
        self._tasks[kind, key] = task
        task.add_done_callback(lambda _: self._ended(kind, key))

    async def _run(
        self, kind: str, key: Key, progress: Progress | None, call: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        try:
            await call()
        except (FedError, OSError) as error:
            log.info("transfer.stopped", extra={"what": kind, "key": str(key), "why": str(error)})
            why = f"{error}. {getattr(error, 'hint', '')}".strip(". ")
        except Exception:  # a fault of ours, with one transfer: it is wanted again
            log.exception("transfer.failed", extra={"what": kind, "key": str(key)})
            why = "a fault of the daemon's: its log says which"
        else:
            why = ""
            if progress is not None and self.progress.get(key) is progress:
                del self.progress[key]
        if progress is not None:
            progress.why = why

    def _ended(self, kind: str, key: Key) -> None:
        self._tasks.pop((kind, key), None)
        if not any(one == key for _, one in self._tasks):
            self._pulls.pop(key, None)


def _no_file(patterns: Sequence[bytes]) -> str:
    shown = ", ".join(os.fsdecode(one).encode("unicode_escape").decode("ascii") for one in patterns[:MOST_TOLD])
    return f"no file to bring back was meant by {shown}" if patterns else ""


def _counter(progress: Progress) -> Callable[[int], None]:
    def seen(count: int) -> None:
        moved = progress.moved + count  # a file's last chunk counts as a whole one where it was here before
        progress.moved = min(moved, progress.total) if progress.total else moved

    return seen
