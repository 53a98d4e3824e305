"""The fences: what a job has just freed is decided about before its epilog ends, for its node alone.

No job starts on the node until then. A pass over the whole pool may take a second; this takes one look at the nodes in
question, one decision about them, and one command. It knows the queue as the last pass read it: that is enough to keep
a freed slice from whoever should not have it, and the pass that follows sees to the rest.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from slurm_plugin.controller.books import Gres
from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.desk import Desk, Views
from slurm_plugin.controller.roster import Member
from slurm_plugin.controller.state import Decision, Part
from slurm_plugin.errors import SlurmError
from slurm_plugin.pool import Mode
from slurm_plugin.ports import QueuedJob
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

log = logging.getLogger(__name__)

AT_ONCE = 64  # fences decided together; the others are next
FENCES_MAX = 4_096  # that wait to be: further epilogs end at once, and the next pass sees what they freed
OF_A_KIND = 128  # waiting jobs looked at that want the same
OF_A_USER = 512  # ... that are one user's
WAITING_MAX = 2_048  # ... in all: a fence has half a second


@dataclass(slots=True, kw_only=True)
class Fence:
    """An epilog that waits for a verdict."""

    member: Member
    job_id: int
    slices: tuple[str, ...]
    answered: bool = False


class Fences:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: list[Fence] = []
        self._some = asyncio.Event()
        self._queue = _Queue((), frozenset())

    def ask(self, fence: Fence) -> None:
        if len(self._waiting) >= FENCES_MAX:
            log.error("fence.too_many", extra={"node": fence.member.name, "job": fence.job_id, "bound": FENCES_MAX})
            self._answer([fence])
            return
        self._waiting.append(fence)
        self._some.set()

    async def run(self) -> None:
        """Answer fence after fence, for ever. An epilog is never kept by an error, ours or Slurm's."""
        while True:
            await self._some.wait()
            fences, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            if not self._waiting:
                self._some.clear()
            try:
                await self._decide(fences)
            except SlurmError as error:
                self._desk.problems["slurm"] = str(error)
                log.warning("fence.slurm", extra={"error": str(error)})
                self._desk.books.read_all_next()
            except Exception:
                log.exception("fence.failed")
                self._desk.books.read_all_next()
            finally:
                self._answer(fences)
                self._desk.look_at(fence.member.name for fence in fences)

    async def _decide(self, fences: list[Fence]) -> None:
        desk = self._desk
        async with desk.apart:
            names = {f.member.name for f in fences if desk.roster.get(f.member.name) is f.member}
            if desk.decision is None or desk.config.mode is Mode.OBSERVE or not names:
                return
            if desk.decided_for is not desk.config:
                return  # a pool.yaml was just applied: what has to go is not known before a pass has looked
            jobs, views = self._jobs(names, fences), desk.views(names)
            await desk.books.look(names)
            part = Part(
                freed=frozenset(slice_ for fence in fences for slice_ in fence.slices), waiting=desk.decision.waiting
            )
            decision = self._on_part(views, jobs, part)
            desk.overtaken |= names
            desk.decision = desk.decision.with_part(decision)
            desk.tell(decision.offers)

            async def again() -> Gres:
                return self._on_part(views, jobs, part).gres

            written = await desk.books.write(decision.gres)
            self._answer(fences)
            await desk.books.verify(written, again)

    def _on_part(self, views: Views, jobs: tuple[QueuedJob, ...], part: Part) -> Decision:
        return decide(self._desk.state(views, self._desk.config, jobs=jobs, part=part))

    def _answer(self, fences: list[Fence]) -> None:
        """Let these epilogs end, those that have not yet."""
        for fence in fences:
            if not fence.answered:
                fence.answered = True
                fence.member.say(pb.ToAgent(verdict=pb.Verdict(job_id=fence.job_id)))

    def _jobs(self, names: Iterable[str], fences: Iterable[Fence]) -> tuple[QueuedJob, ...]:
        """What the queue, as it was read, says of these nodes, but for what has been heard since: who is over."""
        jobs, waiting = self._desk.books.jobs, self._desk.decision.waiting if self._desk.decision else frozenset()
        if self._queue.jobs is not jobs or self._queue.unserved is not waiting:
            self._queue = _Queue(jobs, waiting)
        over = {fence.job_id for fence in fences}
        here = {job.job_id: job for name in names for job in self._queue.at.get(name, ())}
        ended = (replace(job, state="COMPLETING") if job.job_id in over else job for job in here.values())
        return (*ended, *self._queue.waiting)


class _Queue:
    """The queue by what a fence asks of it: who has a node, and who waits for what is freed there."""

    def __init__(self, jobs: tuple[QueuedJob, ...], unserved: frozenset[int]) -> None:
        self.jobs = jobs
        self.unserved = unserved
        self.at: dict[str, list[QueuedJob]] = {}
        waiting = []
        for job in jobs:
            if job.job_id in unserved:
                waiting.append(job)
            for name in job.on_nodes:
                self.at.setdefault(name, []).append(job)
        self.waiting = first(waiting)


def first(waiting: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Of waiting jobs those that a fence looks at, first first.

    Of jobs that want the very same these are only so many as a node may have slices for. Jobs that a user sends to
    other nodes each want something else each: so there is a bound for a user, too, and one for all.
    """
    kinds: Counter[object] = Counter()
    users: Counter[int] = Counter()
    found: list[QueuedJob] = []
    for job in sorted(waiting, key=lambda job: (-job.priority, job.job_id)):
        if len(found) == WAITING_MAX:
            break
        if users[job.uid] == OF_A_USER:
            continue
        where = (job.partitions, job.wanted_nodes, job.excluded_nodes, job.features, job.reserved)
        kind = (job.uid, job.gres, job.nodes, job.cpus, *where)
        kinds[kind] += 1
        if kinds[kind] <= OF_A_KIND:
            users[job.uid] += 1
            found.append(job)
    return found
