"""No two live grants share a slice, whatever comes in whatever order, and whenever the agent dies."""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from slurm_plugin.agent import binding, layout
from slurm_plugin.agent.binding import Outcome, Rules
from slurm_plugin.agent.journal import Journal
from slurm_plugin.agent.terms import Offer
from slurm_plugin.errors import NvmlError
from slurm_plugin.model import Gpu, Instance, RunKey
from tests.integration.agent.bench import Bench, Owners
from tests.unit.agent.world import FakeGpus, FakeSlurm, gpu, run, terms

JOBS = st.integers(1, 5)
SHAPES = st.lists(
    st.sampled_from([("1g.10gb", 0), ("1g.10gb", 1), ("1g.20gb", 0), ("3g.40gb", 4), ("2g.20gb", 2)]), max_size=3
)
CLASSES = st.sampled_from(["1g.10gb", "m20", "m40", "3g.40gb", ""])


class Died(BaseException):
    """The agent was killed here."""


class Fuse:
    """Kills the agent at the n-th place where something of it becomes lasting; 0 never."""

    def __init__(self) -> None:
        self.left = 0

    def burn(self, _place: str = "") -> None:
        self.left -= 1
        if self.left == 0:
            raise Died


class MortalOwners(Owners):
    fuse: Fuse

    def give(self, gpu: Gpu, instance: Instance, uid: int) -> bool:
        self.fuse.burn()
        return super().give(gpu, instance, uid)


@pytest.fixture(autouse=True, scope="module")
def takes_what_is_there() -> Iterator[None]:
    """A run that waits a moment for a better slice would make hours of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding, "CHOOSY_S", 0.0)
        yield


class Node(RuleBasedStateMachine):
    @initialize()
    def power_on(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.fuse = Fuse()
        self.time = 100
        self.started: dict[int, RunKey] = {}  # runs whose prolog has returned and whose epilog has not been called
        rules = Rules(node="n1", wait_s=600.0, ask_pause_s=0.0)
        devices = MortalOwners()
        devices.fuse = self.fuse
        there = (gpu("A", ("1g.20gb", 0), ("3g.40gb", 4)), gpu("B", ("1g.10gb", 0), ("1g.10gb", 1), index=1))
        self.bench = Bench(
            folder=self.folder / "state",
            gpus=FakeGpus(*there),
            slurm=FakeSlurm(),
            rules=rules,
            terms=terms("A", "B"),
            devices=devices,
            at=self.fuse.burn,
        )
        self.stack = AsyncExitStack()
        self.up()

    def up(self) -> None:
        self.fuse.left = 0
        self.loop.run_until_complete(self.stack.enter_async_context(self.bench.running()))

    def do(self, what: Coroutine[Any, Any, None]) -> None:
        """Do it; if the agent dies of it, start the next one."""
        try:
            self.loop.run_until_complete(self.alive(what))
        except Died:
            self.restart()

    async def alive(self, what: Coroutine[Any, Any, None]) -> None:
        """Until it is done and nothing moves any more. What still waits then has waited long enough."""
        work = asyncio.create_task(what)
        waits = self.bench.runs.binding.waiting
        await self.bench.until(lambda: self.dead() or work.done() or (self.rests() and bool(waits)))
        for waiting in tuple(waits):
            waiting.end(Outcome.NONE_LEFT)
        await self.bench.until(lambda: self.dead() or (work.done() and self.rests()))
        if self.dead():
            work.cancel()
            raise Died
        await work

    def dead(self) -> bool:
        return self.bench.serving.done()

    def rests(self) -> bool:
        return self.bench.moves.rests and not self.bench.moves.is_set()

    @rule()
    def restart(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.up()

    @rule(job_id=JOBS, gres_class=CLASSES, count=st.integers(1, 3), dies_at=st.integers(0, 6))
    def start(self, job_id: int, gres_class: str, count: int, dies_at: int) -> None:
        """A new run of this id: the old one's epilog may never have come."""
        self.time += 1
        self.started.pop(job_id, None)
        self.bench.slurm.runs[job_id] = run(job_id, gres_class, count, started_at=self.time, uid=1000 + job_id)
        self.prolog(job_id, dies_at)

    @rule(job_id=JOBS, dies_at=st.integers(0, 6))
    def prolog(self, job_id: int, dies_at: int) -> None:
        self.fuse.left = dies_at
        self.do(self.bench.runs.prolog(job_id))
        self.fuse.left = 0
        held = self.bench.book.grants.get(job_id)
        if held is not None and held.run == self.bench.slurm.runs[job_id].key:
            self.started[job_id] = held.run

    @rule(job_id=JOBS, dies_at=st.integers(0, 4))
    def epilog(self, job_id: int, dies_at: int) -> None:
        self.started.pop(job_id, None)
        self.fuse.left = dies_at
        self.do(self.bench.end(job_id))
        self.fuse.left = 0

    @rule(job_id=JOBS)
    def forget(self, job_id: int) -> None:
        """Slurm loses the job; the agent finds out."""
        self.bench.slurm.runs.pop(job_id, None)
        self.started.pop(job_id, None)
        self.do(self.bench.runs.reconcile())
        assert job_id not in self.bench.held()

    @rule(name=st.sampled_from("AB"), gone=SHAPES, made=SHAPES, dies_at=st.integers(0, 8))
    def recut(self, name: str, gone: list[tuple[str, int]], made: list[tuple[str, int]], dies_at: int) -> None:
        """What a controller asks for that is no better than chance. It is done, refused, or gone on with later."""
        before = {slice_ for slices in self.bench.held().values() for slice_ in slices}
        there = self.bench.gpus.now[name]
        step = layout.rest(there, self.record(there, gone, made), ())
        self.fuse.left = dies_at

        async def make() -> None:
            with suppress(NvmlError):
                await self.bench.slices.make(step)

        self.do(make())
        self.fuse.left = 0
        after = self.bench.gpus.inventory()
        assert before <= {one.uuid for each in after for one in each.instances}

    def record(self, there: Gpu, gone: list[tuple[str, int]], made: list[tuple[str, int]]) -> layout.Record:
        had = frozenset(layout.shape(one) for one in there.instances)
        return layout.Record(gpu=there.uuid, had=had, wanted=had - set(gone) | set(made))

    @rule(gres_class=CLASSES)
    def offer(self, gres_class: str) -> None:
        slices = [one.uuid for each in self.bench.gpus.inventory() for one in each.instances]
        self.bench.terms = terms("A", "B", offers={slices[0]: Offer(gres_class=gres_class)} if slices else {})
        self.loop.run_until_complete(self.bench.runs.agree(self.bench.terms))

    @invariant()
    def no_slice_is_shared(self) -> None:
        held = [slice_ for slices in self.bench.held().values() for slice_ in slices]
        assert len(held) == len(set(held))

    @invariant()
    def every_layout_is_the_one_in_the_journal(self) -> None:
        journal = Journal(self.bench.folder / "gpus")
        journal.open()
        assert set(journal) == {"A", "B"}
        assert all(
            layout.is_reached(each, record)
            for each in self.bench.gpus.inventory()
            if (record := journal.get(each.uuid))
        )

    @invariant()
    def nothing_is_foreign_or_out_of_use(self) -> None:
        assert not any(each.fault or one.foreign for each in self.bench.book.gpus for one in each.instances)

    @invariant()
    def every_started_run_has_what_it_was_given(self) -> None:
        for job_id, key in self.started.items():
            grant = self.bench.book.grants[job_id]
            assert grant.run == key
            assert len(grant.slices) == grant.count

    @invariant()
    def only_who_has_a_slice_can_open_it(self) -> None:
        owners = {slice_: grant.run.uid for grant in self.bench.book.grants.values() for slice_ in grant.slices}
        there = {one.uuid for each in self.bench.gpus.inventory() for one in each.instances}
        assert {slice_: self.bench.devices.now.get(slice_) for slice_ in there} == {
            slice_: owners.get(slice_, 0) for slice_ in there
        }

    def teardown(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.close()
        shutil.rmtree(self.folder)


class LongNode(Node):
    """The same for longer."""


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestLongNode = pytest.mark.soak(pytest.mark.timeout(3600)(LongNode.TestCase))
TestLongNode.settings = settings(max_examples=400, stateful_step_count=50, deadline=None)
