"""A node under test: real hardware when VGPU_TEST_REAL_GPU names an empty GPU by UUID, a simulated one else."""

import ctypes
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml

from slurm_plugin.lab import simgpu
from slurm_plugin.model import Gpu
from slurm_plugin.nvml import NvmlGpus

REAL_GPU = os.environ.get("VGPU_TEST_REAL_GPU", "")
SOURCES = Path(simgpu.__file__).parent / "nvml"


def built(target: str = "all") -> None:
    """Make the library, one process at a time."""
    with (SOURCES / "Makefile").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", SOURCES, target], check=True)


def preload() -> None:
    """Let pynvml of this process find the simulated library: the loader knows it by its soname from now on."""
    built()
    ctypes.CDLL(str(simgpu.LIBRARY))


@contextmanager
def session() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def client(state: Path, code: str, *, uid: int = 0, library: Path = simgpu.LIBRARY_FOLDER, **env: str) -> str:
    """Another process's NVML session: what it printed. `code` finds `pynvml` imported and initialised as user `uid`."""
    start = f"import os, ctypes, pynvml\nctypes.CDLL('libnvidia-ml.so.1')\nos.setuid({uid})\npynvml.nvmlInit()\n"
    done = subprocess.run(
        [sys.executable, "-c", start + code],
        env={"LD_LIBRARY_PATH": str(library), "VGPU_SIM_STATE": str(state), "PYTHONPATH": str(Path.cwd()), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def holder(device: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a device file open, as a monitoring daemon has it."""
    code = f"f = open({str(device)!r}); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, its first GPU empty and in MIG mode."""

    gpus: NvmlGpus
    uuid: str  # the GPU that tests may cut

    def gpu(self) -> Gpu:
        return next(gpu for gpu in self.gpus.inventory() if gpu.uuid == self.uuid)

    def layout(self) -> set[tuple[str, int]]:
        return {(instance.profile, instance.start) for instance in self.gpu().instances}
