"""Thousands of job starts through one agent leave nothing behind: no descriptor, file, task, grant or byte."""

import asyncio
import gc
import os
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from slurm_plugin.agent.config import AgentConfig
from slurm_plugin.agent.daemon import Adapters, Agent
from slurm_plugin.agent.peer import StepProcess
from slurm_plugin.agent.session import Stream
from slurm_plugin.errors import LinkError
from slurm_plugin.lab import simgpu
from slurm_plugin.model import Step
from slurm_plugin.nvml import NvmlGpus
from tests.contract.nvml import rig
from tests.unit.agent.world import FakeSlurm, run, terms

PATIENCE_S = 10.0
ASKS = (("1g.10gb", 1), ("m20", 1), ("", 0), ("1g.10gb", 2), ("3g.40gb", 1))
LAYOUT = (("1g.10gb", 0), ("1g.10gb", 1), ("1g.20gb", 2), ("3g.40gb", 4))
CANCELLED = 1000
BYTES_A_START = 16  # what Python may hold more of, on average, for each: less than the smallest object
TABLE_BYTES = 1 << 16
RESIDENT_BYTES = 4 << 20  # what the process may grow by in the last three quarters; a table that doubles is 2 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What there is of each when nobody has anything."""

    descriptors: int
    files: tuple[str, ...]
    tasks: int
    held: int
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


class Node:
    def __init__(self, agent: Agent, slurm: FakeSlurm, folder: Path) -> None:
        self.agent, self.slurm, self.folder = agent, slurm, folder
        self.job_id = 0

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
        self.slurm.runs[self.job_id] = run(self.job_id, gres_class, count, started_at=self.job_id, uid=0)
        assert await self.say(f"prolog job={self.job_id}") == ["exit 0"]
        lines = await self.say("task localid=0 ntasks=1")
        assert lines[-1] == "exit 0", lines
        slices = [one for line in lines if "VGPU_SLICES" in line for one in line.rpartition("=")[2].split(",")]
        assert len(slices) == count
        self.slurm.runs[self.job_id] = replace(self.slurm.runs[self.job_id], state="COMPLETING")
        assert await self.say(f"epilog job={self.job_id}") == ["exit 0"]
        del self.slurm.runs[self.job_id]

    async def left(self) -> Left:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while self.agent.book.unseen or self.agent.book.grants:  # noqa: ASYNC110 - looked at on a thread
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
            + len(runs.binding.waiting)
            + len(runs._locks),
            bytes=traced(),
            resident=resident(),
        )


@asynccontextmanager
async def serving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    rig.preload()
    state = folder / "node/nvml.state"
    monkeypatch.setenv("VGPU_SIM_STATE", str(state))
    simgpu.create(state, product="h100-80gb", count=2, seed=1)
    (state.parent / "proc/devices").unlink(missing_ok=True)  # this process plays the task: it is not to be confined
    config = AgentConfig(
        node="n1",
        controller="nowhere:1",
        socket=folder / "agent.sock",
        state_dir=folder / "state",
        proc_root=state.parent / "proc",
        dev_root=state.parent / "dev",
    )
    slurm, driver = FakeSlurm(), NvmlGpus(proc_root=config.proc_root, dev_root=config.dev_root)
    agent = Agent(config, Adapters(slurm=slurm, gpus=driver, dial=nobody))
    node = Node(agent, slurm, folder)
    monkeypatch.setattr("slurm_plugin.agent.tasks.step_of", lambda pid, _proc: step(node, pid))
    async with agent.running():
        gpus = simgpu.snapshot(state).gpus
        await agent.runs.agree(terms(*gpus))
        for uuid in gpus:
            await agent.slices.make(Step(gpu=uuid, create=LAYOUT))
        yield node
    driver.close()


def step(node: Node, pid: int) -> StepProcess:
    return StepProcess(job_id=node.job_id, step="batch", pid=pid, started=node.job_id)


@asynccontextmanager
async def nobody() -> AsyncIterator[Stream]:
    raise LinkError("nobody is there")
    yield


@pytest.mark.parametrize("starts", [500, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
async def test_job_starts_leave_nothing_behind(starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracemalloc.start()  # before the agent: what it holds and has anew now and then would look like more
    try:
        async with serving(tmp_path, monkeypatch) as node:
            for _ in range(starts // 4):  # what is made once, is
                await node.job()
            before = await node.left()
            for _ in range(starts - starts // 4):
                await node.job()
            after = await node.left()
    finally:
        tracemalloc.stop()
    assert node.job_id == starts
    assert (after.descriptors, after.files, after.tasks, after.held) == (
        before.descriptors,
        before.files,
        before.tasks,
        0,
    )
    assert after.bytes - before.bytes < BYTES_A_START * (starts * 3 // 4), "bytes"
    assert after.resident - before.resident < RESIDENT_BYTES
