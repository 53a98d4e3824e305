"""What a node that boots does before it takes jobs: the agent alone, with the real parts and a simulated driver."""

import asyncio
import socket
from pathlib import Path

import pytest

from slurm_plugin.lab import simgpu
from slurm_plugin.model import Step
from tests.contract.nvml.rig import preload
from tests.integration.agent.mortal import Life, prepared

PATIENCE_S = 10.0
LAYOUT = (("1g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 4))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    preload()
    monkeypatch.setenv("VGPU_SIM_STATE", "")  # a life sets it, the test's end takes it back
    return prepared(tmp_path / "site")


async def test_systemd_is_told_when_the_last_layout_is_back_and_not_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(folder, lambda _place: None)
    async with life.agent.running():
        await life.restored.wait()
        await life.story["agree"]()
        await life.agent.slices.make(Step(gpu=life.gpu, create=LAYOUT))
    life.driver.close()
    simgpu.reboot(life.state)
    assert simgpu.snapshot(life.state).mig == ((False, False),) * 2
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(folder / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        life = Life(folder, lambda _place: None)
        async with asyncio.timeout(PATIENCE_S), life.agent.running():
            assert await asyncio.get_running_loop().sock_recv(systemd, 100) == b"READY=1"
            there = simgpu.snapshot(life.state).instances
        life.driver.close()
    assert sorted((one.profile, one.start) for one in there if one.compute) == sorted(LAYOUT)
