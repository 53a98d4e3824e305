"""A GPU that somebody holds, with the real adapter: the simulated driver says IN_USE and shows no process."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_plugin.agent import quarantine
from slurm_plugin.errors import GpuBusy
from slurm_plugin.lab import simgpu
from slurm_plugin.model import Step
from slurm_plugin.wire import gpu_to_wire
from tests.contract.nvml.rig import preload
from tests.integration.agent.mortal import Life, prepared

PATIENCE_S = 20.0
HOLD = "import sys, time; held = open(sys.argv[1]); print('held', flush=True); time.sleep(600)"


async def test_a_stuck_instance_puts_its_gpu_in_quarantine_and_names_who_has_the_device_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preload()
    monkeypatch.setenv("VGPU_SIM_STATE", "")
    monkeypatch.setattr("slurm_plugin.agent.changes.FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(quarantine, "FIRST_RETRY_S", 0.0)
    life = Life(prepared(tmp_path / "site"), lambda _place: None)
    async with asyncio.timeout(PATIENCE_S), life.agent.running():
        await life.restored.wait()
        for chapter in ("agree", "cut", "prolog 1"):
            await life.story[chapter]()
            await life.looked()
        gpu = life.agent.book.gpu(life.gpu)
        assert gpu is not None
        big = next(one for one in gpu.instances if one.profile == "3g.40gb")
        simgpu.stick(life.state, big.uuid)
        node = life.folder / f"node/dev/nvidia{gpu.minor}"
        node.touch()
        holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLD, node, stdout=subprocess.PIPE)
        try:
            assert holder.stdout is not None
            await holder.stdout.readline()
            for _ in range(quarantine.FAILURES_MAX):
                with pytest.raises(GpuBusy):
                    await life.agent.slices.make(Step(gpu=life.gpu, destroy=(("3g.40gb", 4),)))
            assert f"held by pid {holder.pid} (python" in life.agent.inventory(1).gpus[0].fault
            await life.agent.slices.tend()
            assert life.agent.inventory(1).gpus[0].fault, "tried again, and still stuck"
        finally:
            holder.kill()
            await holder.wait()
        assert set(life.agent.book.grants) == {1}
        simgpu.clear(life.state)
        await life.agent.slices.tend()
        gpu = life.agent.book.gpu(life.gpu)
        assert gpu is not None
        assert gpu_to_wire(gpu).fault == ""
        assert [(one.profile, one.start) for one in gpu.instances] == [("1g.20gb", 0)]
    life.driver.close()
