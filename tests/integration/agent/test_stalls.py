"""An agent whose driver hangs, as it does when a GPU has died: it serves, and says so."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugin.agent import daemon, stalls
from slurm_plugin.agent.config import AgentConfig
from slurm_plugin.agent.daemon import Adapters, Agent
from slurm_plugin.model import Gpu
from tests.integration.agent.bench import FIRST, PATIENCE_S
from tests.unit.agent.world import FakeGpus, FakeSlurm, gpu, nobody


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def test_a_driver_that_hangs_is_told_and_so_is_a_slice_that_nobody_can_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((daemon, "STALLS_S"), (stalls, "CALL_S"), (stalls, "LOOK_S")):
        monkeypatch.setattr(module, name, 0.01)
    gpus, returns = FakeGpus(gpu("A", ("1g.20gb", 0))), threading.Event()
    read = gpus.inventory

    def hangs() -> tuple[Gpu, ...]:
        returns.wait()
        return read()

    monkeypatch.setattr(gpus, "inventory", hangs)
    (tmp_path / "proc").mkdir()
    config = AgentConfig(
        node="n1",
        controller="nowhere:1",
        socket=tmp_path / "agent.sock",
        state_dir=tmp_path / "state",
        proc_root=tmp_path / "proc",
        dev_root=tmp_path / "dev",
    )
    agent = Agent(config, Adapters(slurm=FakeSlurm(), gpus=gpus, dial=nobody))
    try:
        async with agent.running():
            await until(lambda: agent.inventory(1).fault == stalls.DRIVER)
            returns.set()
            await until(lambda: bool(agent.inventory(1).gpus) and not agent.inventory(1).fault)
            agent.book.unseen.add(FIRST)
            await until(lambda: agent.inventory(1).gpus[0].instances[0].held_by == stalls.UNSEEN)
    finally:
        returns.set()
