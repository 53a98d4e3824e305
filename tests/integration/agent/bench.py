"""An agent's parts on a real folder and real threads, with GPUs, Slurm, devices and controller of the test's own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from slurm_plugin.agent import durable
from slurm_plugin.agent.binding import Rules
from slurm_plugin.agent.book import Book
from slurm_plugin.agent.devices import Devices
from slurm_plugin.agent.journal import Journal
from slurm_plugin.agent.losses import Losses
from slurm_plugin.agent.runs import Runs
from slurm_plugin.agent.slices import Slices
from slurm_plugin.agent.store import Store
from slurm_plugin.agent.terms import Terms
from slurm_plugin.agent.threads import Threads
from slurm_plugin.agent.vacancy import Watch
from slurm_plugin.agent.visitors import Visitors
from slurm_plugin.errors import GpuBusy, NvmlError
from slurm_plugin.model import Gpu, Instance, Step
from tests.unit.agent.world import FakeGpus, FakeSlurm, instance, run, uuid

PATIENCE_S = 10.0  # longest wait for what should be soon
# What is on GPU A at first, where a test says nothing else.
FIRST, SECOND, BIG = uuid("A", "1g.20gb", 0), uuid("A", "1g.20gb", 2), uuid("A", "3g.40gb", 4)
HALF = instance("A", "1g.20gb", 2, ci=-1, uuid="")
RECUT = Step(gpu="A", destroy=(("3g.40gb", 4),), create=(("1g.20gb", 4), ("1g.20gb", 6)))
HELD = GpuBusy("in use", hint="held by pid 812 (nv-hostengine, nvidia-dcgm.service); stop it")


class Owners(Devices):
    """Devices that are only written down: who may open which slice."""

    def __init__(self) -> None:
        super().__init__(proc_root=Path("/nowhere"), dev_root=Path("/nowhere"))
        self.now: dict[str, int] = {}

    def give(self, gpu: Gpu, instance: Instance, uid: int) -> bool:
        self.now[instance.uuid] = uid
        return True


class Moves(asyncio.Event):
    """What wakes the runs that wait; knows when they have all been looked at."""

    rests = False

    async def wait(self) -> Literal[True]:
        self.rests = True
        await super().wait()
        self.rests = False
        return True


@dataclass(kw_only=True)
class Bench:
    folder: Path
    gpus: FakeGpus
    slurm: FakeSlurm
    rules: Rules
    terms: Terms
    devices: Owners = field(default_factory=Owners)
    at: durable.At = durable.nowhere
    watch: Watch = field(default_factory=Watch)
    book: Book = field(init=False)
    slices: Slices = field(init=False)
    runs: Runs = field(init=False)
    losses: Losses = field(init=False)
    moves: Moves = field(init=False)
    serving: "asyncio.Task[None]" = field(init=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Bench"]:
        threads = Threads()
        self.book = Book()
        journal = Journal(self.folder / "gpus", at=self.at)
        self.slices = Slices(
            self.book,
            gpus=self.gpus,
            devices=self.devices,
            threads=threads,
            journal=journal,
            visitors=Visitors(self.folder / "visitors.json", at=self.at),
            at=self.at,
        )
        store = Store(self.folder, at=self.at)
        self.losses = Losses(self.book, slurm=self.slurm, store=store, threads=threads, node=self.rules.node)
        self.runs = Runs(self.rules, self.book, slurm=self.slurm, store=store, slices=self.slices, threads=threads)
        self.moves = self.runs.binding._wake = Moves()
        self.slices.moved = self.runs.binding.stir
        self.slices.lost = self.losses.note
        self.slices.watch = self.watch
        await self.slices.open()
        await self.runs.start()
        await self.losses.start()
        await self.slices.repair()
        await self.runs.reconcile()
        await self.runs.agree(self.terms)
        await self.until(lambda: not self.book.unseen)
        serving = self.serving = asyncio.create_task(self.runs.binding.serve())
        try:
            yield self
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            self.losses.close()
            self.slices.close()
            threads.close()

    async def start(self, job_id: int, gres_class: str = "m20", count: int = 1, **more: Any) -> None:
        """Slurm has this run, and its prolog comes."""
        self.slurm.runs[job_id] = run(job_id, gres_class, count, **more)
        await self.runs.prolog(job_id)

    async def end(self, job_id: int) -> None:
        """The job's run is over for Slurm, and its epilog comes."""
        if run := self.slurm.runs.get(job_id):
            self.slurm.runs[job_id] = replace(run, state="COMPLETING")
        await self.runs.epilog(job_id)

    def put(self, *instances: Instance, **more: Any) -> None:
        """Somebody else's doing: these are on GPU A."""
        self.gpus.now["A"] = replace(self.gpus.now["A"], instances=instances, **more)

    def refuse(self, error: NvmlError, times: int = 1 << 30) -> None:
        """The driver says no to so many steps."""
        left = [times]

        def before(_step: Step) -> None:
            left[0] -= 1
            if left[0] >= 0:
                raise error

        self.gpus.before = before

    def starts(self) -> list[tuple[str, int]]:
        """What is on GPU A."""
        return sorted((one.profile, one.start) for one in self.gpus.now["A"].instances)

    def seen(self) -> Gpu:
        """GPU A as the agent has it."""
        found = self.book.gpu("A")
        assert found is not None
        return found

    def held(self) -> dict[int, tuple[str, ...]]:
        return {job_id: grant.slices for job_id, grant in self.book.grants.items()}

    def profile_of(self, slice_uuid: str) -> str:
        found = self.book.instance(slice_uuid)
        assert found is not None
        return found[1].profile

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what is waited for may have no event
                await asyncio.sleep(0.001)
