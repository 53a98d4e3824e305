"""A Slurm in a dictionary and agents with GPUs in a list, on the controller's real link."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.link.client import Session, open_link
from slurm_plugin.link.munge import Munge
from slurm_plugin.link.server import Caller
from slurm_plugin.model import Gpu, Grant, Instance, RunKey
from slurm_plugin.ports import GresItem, JobIds, JobRun, Notes, QueuedJob, SlurmNode
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.slurm.gres import parse_gres
from slurm_plugin.wire import gpu_to_wire, grant_to_wire
from tests.unit.controller import pools

WAIT_S = 10.0
ROOT = Caller(uid=0, peer="", trusted=True)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Poll a condition, bounded."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"did not come true within {WAIT_S:g} s: {what or condition}") from None


async def at_once() -> None:
    """Slurm answers without delay."""


@dataclass
class DictSlurm:
    """Counts as slurmctld does: typed use by job, whole strings replaced, a restart back to the untyped base."""

    node_list: dict[str, SlurmNode]
    jobs: dict[int, QueuedJob] = field(default_factory=dict)
    written: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # what must never happen
    untyped: set[int] = field(default_factory=set)  # jobs that ran over a restart
    fault: SlurmError | None = None
    before_write: Callable[[], object] = lambda: None
    after_write: Callable[[], None] = lambda: None  # an error it raises comes when Slurm has done what it was told
    reading: Callable[[], Awaitable[None]] = at_once  # how long the queue takes
    parts: dict[str, dict[str, str]] = field(
        default_factory=lambda: {"gpu": {"State": "UP"}, "vgpu-wait": {"State": "DOWN"}}
    )
    asked_for: tuple[str, ...] = ()  # partitions whose jobs were read last
    takes_back: bool = True  # every job is a batch job that may be requeued
    sent_back: list[tuple[int, str]] = field(default_factory=list)
    booted_at: int = 0
    asked_boot: int = 0  # times
    resumed: list[str] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    put: list[tuple[int, int, int]] = field(default_factory=list)  # first: job, priority, element
    noted: Notes = field(default_factory=lambda: Notes(by_job={}))  # what stands on the jobs when all is read
    notes_written: list[tuple[int, str]] = field(default_factory=list)
    refuses_note: SlurmError | None = None

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]:
        self._answer()
        return tuple(self.node_list[name] for name in names or self.node_list)

    async def vgpu_jobs(self, partitions: Sequence[str] = ()) -> tuple[QueuedJob, ...]:
        self.asked_for = tuple(partitions)
        await self.reading()
        self._answer()
        return tuple(self.jobs.values())

    async def partitions(self) -> dict[str, dict[str, str]]:
        self._answer()
        return self.parts

    async def set_gres(self, nodes: Sequence[str], gres: str) -> None:
        self._answer()
        self.before_write()
        self.before_write = lambda: None
        self.written.append((tuple(nodes), gres))
        for name in nodes:
            node = replace(self.node_list[name], gres=parse_gres(gres))
            self.node_list[name] = node
            if (total := sum(i.count for i in node.gres if i.name == "vgpu")) != pools.TOTAL:
                self.wrong.append(f"{name}: total {total}")
            if "vgpu_mem:32" not in gres:
                self.wrong.append(f"{name}: vgpu_mem lost in {gres}")
        after, self.after_write = self.after_write, lambda: None
        after()

    def _answer(self) -> None:
        if self.fault:
            raise self.fault

    def free(self, node: str, gres_class: str) -> int:
        has = {i.type: i.count for i in self.node_list[node].gres if i.name == "vgpu"}
        used = {i.type: i.count for i in self.node_list[node].gres_used if i.name == "vgpu"}
        return has.get(gres_class, 0) - used.get(gres_class, 0)

    def start(self, job_id: int, node: str, *, started_at: int = 0) -> int:
        """Now, if not said when; returns it. A job that began long ago and holds nothing yet is taken for lost."""
        started_at = started_at or int(time.time())
        self.jobs[job_id] = replace(
            self.jobs[job_id], state="RUNNING", on_nodes=(node,), started_at=started_at, eligible=False
        )
        self._count(node)
        return started_at

    def end(self, job_id: int) -> None:
        (node,) = self.jobs.pop(job_id).on_nodes
        self._count(node)

    def restart(self) -> None:
        self.untyped |= {job.job_id for job in self.jobs.values() if job.on_nodes}
        base = (GresItem(name="vgpu", count=pools.TOTAL), GresItem(name="vgpu_mem", count=32))
        for name, node in self.node_list.items():
            self.node_list[name] = replace(node, gres=base)
            self._count(name)

    def _count(self, node: str) -> None:
        used: dict[str, int] = {}
        for job in self.jobs.values():
            if node in job.on_nodes:
                gres_class = "" if job.job_id in self.untyped else job.gres[0].type
                used[gres_class] = used.get(gres_class, 0) + job.gres[0].count
        self.node_list[node] = replace(
            self.node_list[node], gres_used=tuple(pools.vgpu(name, count) for name, count in used.items())
        )

    async def run_of(self, job_id: int) -> JobRun | None:
        self._answer()
        if (job := self.jobs.get(job_id)) is None:
            return None
        return JobRun(
            key=RunKey(job_id=job_id, started_at=job.started_at, uid=job.uid),
            state=job.state,
            gres=job.gres,
            batch=self.takes_back,
            requeue=self.takes_back,
        )

    async def runs_on(self, node: str) -> tuple[JobRun, ...]:
        raise SlurmUnavailable("the controller never asks")

    async def step_gres(self, job_id: int) -> dict[str, tuple[GresItem, ...]]:
        raise SlurmUnavailable("the controller never asks")

    async def started_at(self) -> int:
        self.asked_boot += 1
        return self.booted_at

    async def job_ids(self) -> JobIds:
        raise SlurmUnavailable("only where pool.yaml has controller.job_ids")

    async def private_jobs(self) -> bool:
        self._answer()
        return self.noted.private

    async def resume(self, node: str) -> None:
        self.resumed.append(node)
        self.node_list[node] = replace(self.node_list[node], state="IDLE", reason="")

    async def put_first(self, run: RunKey, priority: int, task: int = -1) -> None:
        self.put.append((run.job_id, priority, task))
        self.jobs[run.job_id] = replace(self.jobs[run.job_id], priority=priority)

    async def release(self, run: RunKey, reason: str = "") -> None:
        if reason not in ("", self.jobs[run.job_id].reason):
            return
        self.released.append(run.job_id)
        self.jobs[run.job_id] = replace(self.jobs[run.job_id], reason="None", priority=1, eligible=True)

    async def notes(self, partitions: Sequence[str]) -> Notes:
        return self.noted

    async def note(self, run: RunKey, note: str) -> None:
        self.notes_written.append((run.job_id, note))
        if self.refuses_note:
            raise self.refuses_note

    async def requeue(self, run: RunKey, *, lift: bool = False) -> None:
        self.sent_back.append((run.job_id, "requeue"))
        self.end(run.job_id)

    async def cancel(self, run: RunKey, why: str) -> None:
        self.sent_back.append((run.job_id, why))
        self.end(run.job_id)


@dataclass
class ListAgent:
    """An agent whose GPUs are a list: binds what is offered, makes steps, fences what it is asked to."""

    node: str
    gpus: dict[str, Gpu]
    session: Session
    grants: dict[int, Grant] = field(default_factory=dict)
    offers: dict[str, pb.Offer] = field(default_factory=dict)
    steps: list[pb.Step] = field(default_factory=list)
    refuse: str = ""  # what the next steps fail with
    fault: str = ""  # why it can bind nothing
    started_at: float = 0.0
    verdicts: set[int] = field(default_factory=set)
    observe: bool = False  # as last told
    reset_gpus: bool = False  # likewise
    retries: int = 0
    revision: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def tell(self) -> None:
        inventory = pb.Inventory(
            node=self.node,
            revision=next(self.revision),
            gpus=[gpu_to_wire(gpu) for gpu in self.gpus.values()],
            grants=[grant_to_wire(grant) for grant in self.grants.values()],
            fault=self.fault,
            started_at=self.started_at,
        )
        await self.session.send(pb.FromAgent(inventory=inventory))

    async def listen(self) -> None:
        async for message in self.session:
            if message.HasField("offers"):
                self.offers = {offer.slice: offer for offer in message.offers.offers}
                self.observe, self.reset_gpus = message.offers.observe, message.offers.reset_gpus
            elif message.HasField("verdict"):
                self.verdicts.add(message.verdict.job_id)
            elif message.HasField("retry"):
                self.retries += 1
            else:
                await self._make(message.step)

    async def bind(self, job_id: int, gres_class: str, *, started_at: int) -> str:
        taken = {uuid for grant in self.grants.values() for uuid in grant.slices}
        uuid = next(o.slice for o in self.offers.values() if o.gres_class == gres_class and o.slice not in taken)
        self.grants[job_id] = pools.grant(job_id, gres_class, uuid, started_at=started_at)
        await self.tell()
        return uuid

    async def release(self, job_id: int) -> None:
        """What the epilog does; returns when it would."""
        slices = self.grants.pop(job_id).slices
        await self.tell()
        if any(self.offers[uuid].ask for uuid in slices):
            await self.session.send(pb.FromAgent(released=pb.Released(job_id=job_id, slices=slices)))
            await until(lambda: job_id in self.verdicts, f"verdict for {job_id}")

    def as_offered(self) -> dict[str, int]:
        """Idle slices by class."""
        taken = {uuid for grant in self.grants.values() for uuid in grant.slices}
        counts: dict[str, int] = {}
        for offer in self.offers.values():
            if offer.slice not in taken:
                counts[offer.gres_class] = counts.get(offer.gres_class, 0) + 1
        return counts

    def layout(self, gpu: str) -> list[tuple[str, int]]:
        return sorted((i.profile, i.start) for i in self.gpus[gpu].instances)

    async def _make(self, step: pb.Step) -> None:
        self.steps.append(step)
        if not self.refuse:
            gpu = self.gpus[step.gpu]
            gone = {(shape.profile, shape.start) for shape in step.destroy}
            kept = [i for i in gpu.instances if (i.profile, i.start) not in gone]
            sizes = {p.name: p.size for p in gpu.profiles}
            made = [
                Instance(
                    profile=s.profile,
                    start=s.start,
                    size=sizes[s.profile],
                    gi=90 + s.start,
                    ci=0,
                    uuid=f"MIG-{step.id}-{s.start}",
                )
                for s in step.create
            ]
            self.gpus[step.gpu] = replace(gpu, instances=(*kept, *made))
            await self.tell()
        await self.session.send(pb.FromAgent(result=pb.StepResult(id=step.id, error=self.refuse)))


@asynccontextmanager
async def agent(
    address: str, socket: Path, node: str, gpus: Sequence[Gpu], *, started_at: float = 0.0
) -> AsyncIterator[ListAgent]:
    async with await open_link(address, munge=Munge(socket)) as link, link.session() as session:
        one = ListAgent(node, {gpu.uuid: gpu for gpu in gpus}, session, started_at=started_at)
        await one.tell()
        listening = asyncio.create_task(one.listen())
        try:
            yield one
        finally:
            listening.cancel()
            ended = (await asyncio.gather(listening, return_exceptions=True))[0]
            assert isinstance(ended, asyncio.CancelledError) or "ended the session" in str(ended), ended
