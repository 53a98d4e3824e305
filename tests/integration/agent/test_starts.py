"""Thousands of job starts through one agent leave nothing behind: no descriptor, file, task, grant or byte."""

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from slurm_plugin.agent import device_cgroup
from slurm_plugin.agent.config import AgentConfig
from slurm_plugin.agent.daemon import Adapters, Agent
from slurm_plugin.agent.peer import StepProcess
from slurm_plugin.agent.session import Stream
from slurm_plugin.agent.terms import Offer
from slurm_plugin.lab import simgpu
from slurm_plugin.model import Step
from slurm_plugin.nvml import NvmlGpus
from slurm_plugin.ports import GresItem
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from tests.cases import device_program
from tests.contract.nvml import rig
from tests.unit.agent.world import FakeSlurm, run, terms

PATIENCE_S = 10.0
ASKS = (("1g.10gb", 1), ("m20", 1), ("", 0), ("1g.10gb", 2), ("3g.40gb", 1))
LAYOUT = (("1g.10gb", 0), ("1g.10gb", 1), ("1g.20gb", 2), ("3g.40gb", 4))
CLASSES = {"1g.10gb": "1g.10gb", "1g.20gb": "m20", "3g.40gb": "3g.40gb"}
USER = 61234  # nobody else's
STEPS = 19  # of so many jobs one has a step of its user's, whose task is confined
CGROUP = f"vgpu-starts-{os.getpid()}"
HOOK = Path(__file__).parents[3] / "slurm_plugin/hooks/client"
CANCELLED = 1000
BYTES_A_START = 16  # what Python may hold more of, on average, for each: less than the smallest object
ONCE_BYTES = 1 << 14  # ... and all in all, that came to be after the first quarter
TABLE_BYTES = 1 << 16
RESIDENT_BYTES = 4 << 20  # what the process may grow by in the last three quarters; a table that doubles is 2 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What there is of each when nobody has anything."""

    descriptors: int
    files: tuple[str, ...]
    tasks: int
    held: int
    cgroups: int
    bytes: int
    resident: int


def traced() -> int:
    """Without the few tables that grow by doubling, the interpreter's of names above all; what is in them is."""
    return sum(trace.size for trace in tracemalloc.take_snapshot().traces if trace.size < TABLE_BYTES)


def clear_names() -> None:
    """The interpreter keeps up to 4,096 names of attributes, found by address: one more for many a file opened."""
    clear = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
    clear()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Controller:
    """It takes what it is told, and lets every epilog go on."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[pool_pb2.ToAgent] = asyncio.Queue()
        self.verdicts = 0

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Stream]:
        yield self

    async def send(self, message: pool_pb2.FromAgent) -> None:
        if message.WhichOneof("message") == "released":
            self.verdicts += 1
            self.says.put_nowait(pool_pb2.ToAgent(verdict=pool_pb2.Verdict(job_id=message.released.job_id)))

    async def __aiter__(self) -> AsyncIterator[pool_pb2.ToAgent]:
        while True:
            yield await self.says.get()


class Node:
    def __init__(self, agent: Agent, slurm: FakeSlurm, folder: Path) -> None:
        self.agent, self.slurm, self.folder = agent, slurm, folder
        self.job_id = 0
        self.shell = 0

    async def say(self, request: str) -> list[str]:
        reader, writer = await asyncio.open_unix_connection(str(self.folder / "agent.sock"))
        try:
            writer.write(f"{request}\n".encode())
            async with asyncio.timeout(PATIENCE_S):
                return (await reader.read()).decode().splitlines()
        finally:
            writer.close()
            await writer.wait_closed()

    async def job(self) -> None:
        """A job from its prolog to its epilog, as slurmd and slurmstepd call."""
        self.job_id += 1
        gres_class, count = ASKS[self.job_id % len(ASKS)]
        steps = self.job_id % STEPS == 0
        uid = USER if steps else 0
        self.slurm.runs[self.job_id] = run(self.job_id, gres_class, count, started_at=self.job_id, uid=uid)
        self.slurm.steps = {f"{self.job_id}.0": (GresItem(name="vgpu", type=gres_class, count=count),) * bool(count)}
        assert await self.say(f"prolog job={self.job_id}") == ["exit 0"]
        lines = await (self.task() if steps else self.say("task localid=0 ntasks=1"))
        slices = [one for line in lines if "VGPU_SLICES" in line for one in line.rpartition("=")[2].split(",")]
        assert len(slices) == count, lines
        self.slurm.runs[self.job_id] = replace(self.slurm.runs[self.job_id], state="COMPLETING")
        assert await self.say(f"epilog job={self.job_id}") == ["exit 0"]
        del self.slurm.runs[self.job_id]

    async def task(self) -> list[str]:
        """What the prolog of a step's task prints: a user's process, below a shell that stands for slurmstepd."""
        argv = ("read _; $0 --socket $1 task; echo $?", str(self.folder / "vgpu-hook"), str(self.folder / "agent.sock"))
        pipe = subprocess.PIPE
        shell = await asyncio.create_subprocess_exec("sh", "-c", *argv, user=USER, env={}, stdin=pipe, stdout=pipe)
        self.shell = shell.pid
        out, _ = await asyncio.wait_for(shell.communicate(b"\n"), PATIENCE_S)
        lines = out.decode().splitlines()
        assert lines[-1] == "0", lines
        return lines

    def step(self, pid: int) -> StepProcess | None:
        """This process is a batch script's prolog and its slurmstepd in one, and no task that could be confined."""
        batch = pid == os.getpid()
        stepd, name = (pid, "batch") if batch else (self.shell, "0")
        return StepProcess(job_id=self.job_id, step=name, pid=stepd, started=self.job_id)

    def is_busy(self) -> bool:
        book = self.agent.book
        return bool(book.unseen or book.grants or self.agent.tasks._watched or self.agent.session.owes)

    def cgroups(self) -> int:
        return sum(entry.is_dir() for home in self.agent.cgroup._homes for entry in home.iterdir())

    async def left(self) -> Left:
        loop = asyncio.get_running_loop()
        assert bool(self.cgroups()) is not bool(device_program.why_not())
        await self.agent.tasks.tend()
        async with asyncio.timeout(PATIENCE_S):
            while self.is_busy():  # noqa: ASYNC110 - slices are looked at on a thread
                await asyncio.sleep(0.001)
        for timer in [loop.call_later(PATIENCE_S, gc.collect) for _ in range(CANCELLED)]:
            timer.cancel()  # so many at a time that the loop forgets those before them, too
        await asyncio.sleep(0)
        gc.collect()
        clear_names()
        book, runs = self.agent.book, self.agent.runs
        return Left(
            descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - no handle of its own
            files=tuple(sorted(str(one) for one in self.folder.rglob("*") if "node" not in one.parts)),
            tasks=len(asyncio.all_tasks()),
            held=len(book.grants)
            + len(book.without)
            + len(book.haunted)
            + len(self.agent.tasks._shares)
            + len(self.agent.tasks._watched)
            + self.agent.session.owes
            + len(runs.binding.waiting)
            + len(runs._locks),
            cgroups=self.cgroups(),
            bytes=traced(),
            resident=resident(),
        )


@asynccontextmanager
async def serving(folder: Path, hook: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    rig.preload()
    state = folder / "node/nvml.state"
    monkeypatch.setenv("VGPU_SIM_STATE", str(state))
    simgpu.create(state, product="h100-80gb", count=2, seed=1)
    shutil.copy(hook, folder)
    config = AgentConfig(
        node="n1",
        controller="nowhere:1",
        socket=folder / "agent.sock",
        state_dir=folder / "state",
        proc_root=state.parent / "proc",
        dev_root=state.parent / "dev",
        cgroup=CGROUP,
    )
    slurm, controller = FakeSlurm(), Controller()
    driver = NvmlGpus(proc_root=config.proc_root, dev_root=config.dev_root)
    agent = Agent(config, Adapters(slurm=slurm, gpus=driver, dial=controller.dial))
    node = Node(agent, slurm, folder)
    monkeypatch.setattr("slurm_plugin.agent.tasks.step_of", lambda pid, _proc: node.step(pid))
    async with agent.running():
        gpus = simgpu.snapshot(state).gpus
        await agent.runs.agree(terms(*gpus))
        for uuid in gpus:
            await agent.slices.make(Step(gpu=uuid, create=LAYOUT))
        there = [one for gpu in agent.book.gpus for one in gpu.instances]
        offers = {one.uuid: Offer(gres_class=CLASSES[one.profile], ask=True) for one in there}
        await agent.runs.agree(terms(*gpus, offers=offers))
        yield node
        assert controller.verdicts > node.job_id // 2
    driver.close()


@pytest.fixture(scope="module")
def hook() -> Path:
    subprocess.run(("flock", HOOK, "make", "-s", "-C", HOOK), check=True)
    return HOOK / "build/vgpu-hook"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Users come in: pytest's own is closed again by each run of it."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder
    device_cgroup.remove(CGROUP)


@pytest.mark.parametrize("starts", [500, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
async def test_job_starts_leave_nothing_behind(
    starts: int, folder: Path, hook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracemalloc.start()  # before the agent: what it holds and has anew now and then would look like more
    try:
        async with serving(folder, hook, monkeypatch) as node:
            for _ in range(starts // 4):  # what is made once, is
                await node.job()
            before = await node.left()
            for _ in range(starts - starts // 4):
                await node.job()
            after = await node.left()
    finally:
        tracemalloc.stop()
    print(f"bytes: {before.bytes} and then {after.bytes}")
    assert node.job_id == starts
    assert (after.descriptors, after.files, after.tasks) == (before.descriptors, before.files, before.tasks)
    assert (after.held, after.cgroups) == (0, 0)
    assert after.bytes - before.bytes < ONCE_BYTES + BYTES_A_START * (starts * 3 // 4), "bytes"
    assert after.resident - before.resident < RESIDENT_BYTES
