"""What a proxy that says hello is given: the job between sites that is its Slurm job, begun now or a while ago.

Crash: what was written down is found by the next hello, and gone on with.
"""

import asyncio
import hashlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from federation.access.acting import Account
from federation.access.names import asked
from federation.config_overflow import OverflowConfig, VirtualNodes
from federation.errors import Refused, StoreFull, Unavailable
from federation.model.job import Job
from federation.model.spec import JobSpec
from federation.overflow.arrivals import MOST_OTHERS, Arrival, began_at
from federation.overflow.burst import Burst, Claim, Heard, SlurmJob
from federation.overflow.bursts import burst_of, bursts_of
from federation.overflow.facts import Rule
from federation.overflow.frames import Hello, Remark, to_proxy
from federation.overflow.holding import HELD_S, Held
from federation.overflow.questions import Wants
from federation.overflow.request import Rules, files_of, spec_of
from federation.overflow.slurm_side import SlurmSide
from federation.overflow.slurm_site import SlurmSite
from federation.overflow.staging import MOST_BYTES, Source, take
from federation.overflow.visit import Visit
from federation.overflow.widened import widened_as
from federation.runner import Runner
from federation.stage.spool import Spool
from federation.store.store import Store
from federation.tasks import heed
from federation.wire.crossing import check_crosses

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # between tries while Slurm, the journal or the disk does not let it go on
WAITS_S, LONGEST_WAIT_S = 0.3, 5.0  # between looks at whether the attempt before is over: longer each time
MOST_TOLD = 10_000  # runs of which it is known that their output says what they wait for
AT_ONCE = 32  # jobs that are being begun: of each Slurm is told something
TAKEN_AT_ONCE = 2  # jobs whose inputs are being copied: each has a thread for all that time
_RESTARTS, _DIGITS = b"SLURM_RESTART_COUNT", 9
PATIENCE_S = 3.0  # until a job's output says what it waits for


class Slurm(SlurmSite, Wants, Protocol):
    """What is asked of Slurm here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What arrivals are dealt with by. `environment`: variables that cross without being asked for; `rules`: of now."""

    config: OverflowConfig
    rules: Callable[[], Mapping[str, Rule]]
    runner: Runner
    slurm: Slurm
    side: SlurmSide
    spool: Spool
    account: Callable[[str], Account]
    environment: Callable[[], tuple[str, ...]]
    settled: Callable[[], None] = lambda: None


def counted(hello: Hello, job: SlurmJob) -> Hello:
    """With the number of its run. No release of Slurm's tells it to a plugin: that is 0 always, and the script's
    environment has it from the second run on. In the first a submitter's own variable of that name may be there.
    """
    said = next((value for name, value in hello.env if name == _RESTARTS), b"")
    counts = {hello.restarts, int(said) if said.isdigit() and len(said) <= _DIGITS else 0}
    return replace(hello, restarts=job.restarts) if job.restarts in counts else hello


class Stale(Exception):
    """This proxy's run is over in Slurm: what it says, and would write, is nobody's any more."""


class Attaching:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._told: dict[tuple[int, int], None] = {}
        self.reading: set[UUID] = set()  # jobs whose inputs are being copied
        self._homes = ThreadPoolExecutor(thread_name_prefix="homes")  # users' folders, whose server may hang
        self._gate, self._taking = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(TAKEN_AT_ONCE)

    async def attached(self, visit: Visit) -> tuple[Burst, Job]:
        """The job that it is, durable. Waits while Slurm does not answer, or an attempt before it is not over.

        Raises Refused, with what the user is told; Stale; Unavailable: it is to come again.
        """
        nodes = self._desk.config.serving(visit.hello.node)
        if nodes is None:
            if await self._desk.runner.read(lambda store: burst_of(store, visit.hello.job_id)) is not None:
                raise Unavailable(f"fed.yaml has no virtual node {visit.hello.node} any more")
            raise Refused(f"{visit.hello.node} is no virtual node of this site", hint="see overflow.nodes in fed.yaml")
        if visit.caller.uid == 0:
            raise Refused("root's jobs do not run elsewhere")
        since, again_s = asyncio.get_running_loop().time(), WAITS_S
        while True:
            why, wait_s = "", AGAIN_S
            try:
                job = await self._desk.slurm.job(visit.hello.job_id)
                found = await self._admitted(visit, job, nodes)
                if found is not None:
                    return found
                why, wait_s = "its attempt before is not over yet", again_s
                again_s = min(2 * again_s, LONGEST_WAIT_S)
            except Held as error:
                heed()
                log.info("proxy.held", extra={"job": visit.hello.job_id, "why": str(error)})
                wait_s = HELD_S
            except (Unavailable, StoreFull) as error:
                heed()
                log.info("proxy.waits", extra={"job": visit.hello.job_id, "code": error.code, "why": str(error)})
                why = str(error)
            told = (visit.hello.job_id, visit.hello.restarts) in self._told
            if told and visit.burst is None:
                raise ConnectionResetError  # it comes again in a few seconds, and others have a turn meanwhile
            if why and not told and asyncio.get_running_loop().time() - since > PATIENCE_S:
                await self._tell(visit, f"waits: {why}")
            await asyncio.sleep(wait_s)

    async def _tell(self, visit: Visit, text: str) -> None:
        """Once of each run, in its output. Raises ConnectionResetError: what its files are now, a new hello tells."""
        run = visit.hello.job_id, visit.hello.restarts
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told[run] = None
        await visit.say(to_proxy(Remark(text=text)))
        raise ConnectionResetError

    async def _admitted(self, visit: Visit, job: SlurmJob | None, nodes: VirtualNodes) -> tuple[Burst, Job] | None:
        """None: not yet. Raises Refused, Held, Unavailable, StoreFull."""
        if job is None:
            raise Held("Slurm does not know it")
        desk, hello = self._desk, counted(visit.hello, job)
        visit.hello = hello
        if job.uid != visit.caller.uid and not job.over and await self._had(visit):
            raise Held("its id is another user's job's now")
        _check(visit, job, desk.config.partition)
        arrival = Arrival(
            job=job,
            restarts=hello.restarts,
            node=hello.node,
            pool=nodes.pool,
            user=visit.caller.user,
            stdout_size=hello.stdout_size,
            stderr_size=hello.stderr_size,
            stdout_own=hello.own * hello.joined,
            stderr_own=hello.own,
            welcomed=hello.stdout_next >= 0,
            began_at=began_at(hello.env),
            script=hashlib.sha256(b"\0".join((hello.script, *hello.args))).digest(),
        )
        async with self._gate:
            try:
                what, burst = await desk.side.arrived(arrival)
            except Refused as error:  # of a note or a limit, which is no word on the job
                raise Unavailable(str(error)) from None
        if what is Claim.ENDED:
            raise Refused("it was ended before it began")
        if what is Claim.STALE:
            raise _not_now(visit, job, "this run of the job is over in Slurm")
        if what is Claim.WAIT or burst is None:
            desk.settled()
            return None
        await visit.welcome(burst)
        if job.state == "COMPLETING":
            await visit.hears(Heard(signal=signal.SIGTERM, from_stepd=True, restarts=hello.restarts))
        known = await desk.runner.read(lambda store: store.job(burst.token))
        found = known or await self._accepted(visit, job, burst, nodes)
        visit.hello = replace(visit.hello, script=b"", args=(), env=())  # up to 12 MiB that nobody wants any more
        return burst, found

    async def _had(self, visit: Visit) -> bool:
        """Whether a job of this user's had the id, and ran elsewhere."""
        uid, job_id = visit.caller.uid, visit.hello.job_id
        known = await self._desk.runner.read(lambda store: bursts_of(store, job_id)[:MOST_OTHERS])
        return any(one.uid == uid for one in known)

    async def _accepted(self, visit: Visit, job: SlurmJob, burst: Burst, nodes: VirtualNodes) -> Job:
        desk, hello = self._desk, visit.hello
        wants, warning = await asyncio.gather(desk.slurm.asked(job.job_id), desk.slurm.signal_request(job.job_id))
        if wants is None:
            raise Unavailable("Slurm does not know the job now")
        wants = replace(wants, warning=warning)
        rules = Rules(environment=desk.environment(), pool=burst.pool, shared_files=nodes.shared_files)
        own = replace(job, limit_s=burst.limit_s)  # not what Slurm has been told since
        spec = spec_of(hello, own, wants, burst.user, rules)
        if nodes.shared_files or spec.outputs or files_of(hello).inputs:
            await self._check_folder(hello)
        spec = await self._staged(spec, hello, burst)
        check_crosses(spec)
        return await desk.side.accept(burst.token, spec)

    async def _check_folder(self, hello: Hello) -> None:
        """slurmstepd goes on in /tmp, anybody's, where it can't enter a job's folder. Raises Unavailable."""
        if hello.folder and not _is_tmp(hello.folder):
            return
        wanted = os.fsencode(await self._desk.slurm.folder(hello.job_id))
        loop = asyncio.get_running_loop()
        if not hello.folder or not await loop.run_in_executor(self._homes, _leads_to_tmp, wanted):
            raise Unavailable("its folder is not on this gateway: requeue it once it is")

    async def _staged(self, spec: JobSpec, hello: Hello, burst: Burst) -> JobSpec:
        """With its files, and where those it leaves are brought. Nothing where both sites share them."""
        shared = spec.batch is not None and bool(spec.batch.folder)
        patterns, stdin = ((), b"") if shared else (files_of(hello).inputs, hello.stdin)
        if not patterns and not stdin and not spec.outputs:
            return spec
        account = await asked(self._desk.account, burst.user)
        most = await self._desk.runner.read(lambda store: self._most_input(store, burst))
        source = Source(
            account=account,
            folder=hello.folder,
            patterns=patterns,
            stdin=stdin,
            most_bytes=most,
            threads=self._homes,
        )
        async with self._taking:
            if burst.token in self.reading:
                raise Unavailable("its inputs are still being copied for its run before")
            self.reading.add(burst.token)
            try:
                return replace(spec, inputs=await take(self._desk.spool, burst.token, source))
            finally:
                self.reading.discard(burst.token)

    def _most_input(self, store: Store, burst: Burst) -> int:
        """By the rule that it was widened by. Files may have grown since, and what sbatch counted is a user's word."""
        row = widened_as(store, burst.array_id or burst.job_id)
        rule = self._desk.rules().get(row.rule) if row is not None and row.uid == burst.uid else None
        return MOST_BYTES if rule is None else min(MOST_BYTES, rule.most_input_bytes)


def _is_tmp(folder: bytes) -> bool:
    """The folder that getcwd(3) names in it."""
    return folder == os.path.realpath(b"/tmp")


def _leads_to_tmp(folder: bytes) -> bool:
    return _is_tmp(os.path.realpath(folder))


def _not_now(visit: Visit, job: SlurmJob, why: str) -> Stale | Held:
    """Its run is over: may its slurmstepd say so?"""
    elsewhere = bool(job.nodes) and visit.hello.node not in job.nodes
    return Stale(why) if job.over or elsewhere else Held(why)


def _check(visit: Visit, job: SlurmJob, partition: str) -> None:
    """Raises Refused, Stale, Held for what Slurm does not confirm."""
    hello, caller = visit.hello, visit.caller
    if job.uid != caller.uid:
        raise Refused(f"job {hello.job_id} is not {caller.user}'s")
    if not job.batch:
        raise Refused("only batch jobs run on virtual nodes", hint="sbatch")
    if hello.node not in job.nodes:
        raise _not_now(visit, job, f"job {hello.job_id} does not run on {hello.node} now")
    if partition not in job.partitions:
        raise Refused(f"job {hello.job_id} did not come through partition {partition}")
