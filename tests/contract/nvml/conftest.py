from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.lab import simgpu
from slurm_plugin.nvml import NvmlGpus
from tests.contract.nvml import rig

if rig.REAL_GPU:
    collect_ignore = [
        *("test_faults.py", "test_library.py", "test_mode.py"),
        *("test_processes.py", "test_oracles.py", "test_clients.py"),
    ]


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    if not rig.REAL_GPU:
        rig.preload()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's simulated node goes; the test makes it."""
    path = tmp_path / "node" / "nvml.state"
    monkeypatch.setenv("VGPU_SIM_STATE", str(path))
    return path


@pytest.fixture
def gpus(state: Path) -> Iterator[NvmlGpus]:
    """The adapter on `state`."""
    adapter = NvmlGpus(proc_root=state.parent / "proc", dev_root=state.parent / "dev")
    yield adapter
    adapter.close()


@pytest.fixture
def h100(state: Path) -> Path:
    """A node of one H100."""
    simgpu.create(state, product="h100-80gb", seed=1)
    return state
