"""One node and several processes: users without privilege, clients side by side, clients killed, forks."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pynvml
import pytest

from slurm_plugin.errors import LabError
from slurm_plugin.lab import simgpu
from tests.contract.nvml import rig
from tests.contract.nvml.rig import holder
from tests.contract.nvml.test_faults import expected_files, files_of
from tests.contract.nvml.test_oracles import place

NOBODY = 65534

CHURN = """
import random, sys
from ctypes import byref
import pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
chance, rounds = random.Random(int(sys.argv[1])), int(sys.argv[2])
for turn in range(rounds):
    try:
        profile, compute = chance.choice([(19, 0), (14, 1), (9, 2)])
        instance = pynvml.nvmlDeviceCreateGpuInstance(device, profile)
        part = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, compute)
        if chance.random() < 0.8:
            pynvml.nvmlComputeInstanceDestroy(part)
            pynvml.nvmlGpuInstanceDestroy(instance)
    except pynvml.NVMLError_InsufficientResources:
        pass
    print(turn, flush=True)
"""


def churn(state: Path, seed: int, rounds: int) -> subprocess.Popen[str]:
    env = {"LD_LIBRARY_PATH": str(simgpu.LIBRARY_FOLDER), "VGPU_SIM_STATE": str(state)}
    return subprocess.Popen([sys.executable, "-c", CHURN, str(seed), str(rounds)], env=env, stdout=-1, text=True)


def check_whole(state: Path) -> None:
    """No two instances overlap, each is where its profile may be, and the files are those of the instances."""
    instances = sorted(simgpu.snapshot(state).instances, key=lambda instance: instance.start)
    assert all(one.start + one.size <= next_.start for one, next_ in pairwise(instances))
    assert all(len(instance.compute) <= 1 for instance in instances)
    with rig.session():
        pynvml.nvmlDeviceGetCount()  # any call of root's repairs what a dead client left
    assert files_of(state) == expected_files(state)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 150))])
def test_a_client_killed_at_a_random_moment_leaves_a_whole_state(h100: Path, seed: int) -> None:
    with churn(h100, seed, 100_000) as client:
        assert client.stdout is not None
        for _ in range(20 + seed):
            client.stdout.readline()
        client.kill()
    assert client.returncode == -signal.SIGKILL
    check_whole(h100)


def test_clients_side_by_side_never_get_the_same_place(h100: Path) -> None:
    clients = [churn(h100, seed, 150) for seed in range(3)]
    assert [client.communicate(timeout=60) and client.returncode for client in clients] == [0, 0, 0]
    check_whole(h100)


@pytest.fixture
def open_h100(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node of one H100 where every user can get to it, as on a real machine."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        state = Path(folder) / "nvml.state"
        simgpu.create(state, seed=1)
        monkeypatch.setenv("VGPU_SIM_STATE", str(state))
        yield state


def test_a_user_sees_slices_and_manages_nothing(open_h100: Path) -> None:
    h100 = open_h100
    with rig.session():
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(place(pynvml.nvmlDeviceGetHandleByIndex(0), 19, 0), 0)
        assert compute
    (uuid,) = simgpu.snapshot(h100).slices()
    simgpu.add_process(h100, uuid, os.getpid(), memory_mib=100)
    out = rig.client(
        h100,
        f"""
d = pynvml.nvmlDeviceGetHandleByIndex(0)
mig = pynvml.nvmlDeviceGetHandleByUUID({uuid!r})
print(pynvml.nvmlDeviceGetName(mig), [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(mig)])
def refused(call):
    try:
        call()
    except pynvml.NVMLError_NoPermission:
        print('refused')
refused(lambda: pynvml.nvmlDeviceCreateGpuInstance(d, 19))
refused(lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(d, 19))
refused(lambda: pynvml.nvmlDeviceGetGpuInstanceById(d, 7))
refused(lambda: pynvml.nvmlDeviceSetMigMode(d, 0))
refused(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(d))
""",
        uid=NOBODY,
    )
    assert out.splitlines() == [f"NVIDIA H100 80GB HBM3 MIG 1g.10gb [{os.getpid()}]", *["refused"] * 5]


def test_processes_are_told_with_their_instance_and_go_when_they_die(h100: Path) -> None:
    with rig.session(), holder(h100) as process:
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlGpuInstanceCreateComputeInstance(place(device, 19, 0), 0)
        (uuid,) = simgpu.snapshot(h100).slices()
        mig = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        simgpu.add_process(h100, uuid, process.pid, memory_mib=64)
        for seen_on in (device, mig):
            (seen,) = pynvml.nvmlDeviceGetComputeRunningProcesses(seen_on)
            assert (seen.pid, seen.usedGpuMemory >> 20) == (process.pid, 64)
            assert (seen.gpuInstanceId, seen.computeInstanceId) == (7, 0)
        assert "python" in pynvml.nvmlSystemGetProcessName(process.pid)
        assert pynvml.nvmlDeviceGetMemoryInfo(mig).used >> 20 == 15 + 64
        process.kill()
        process.wait()
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(mig) == []
        assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(mig) == []


def test_a_process_without_mig_has_no_instance(state: Path) -> None:
    simgpu.create(state, product="l40s-48gb")
    (uuid,) = simgpu.snapshot(state).gpus
    simgpu.add_process(state, uuid, os.getpid())
    with rig.session():
        (seen,) = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert (seen.gpuInstanceId, seen.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)


def test_dead_processes_make_room_in_a_full_table(h100: Path) -> None:
    (uuid,) = simgpu.snapshot(h100).gpus
    for _ in range(128):
        simgpu.add_process(h100, uuid, os.getpid())
    with pytest.raises(LabError, match="128 processes"):
        simgpu.add_process(h100, uuid, os.getpid())
    simgpu.remove_process(h100, os.getpid())
    simgpu.add_process(h100, uuid, os.getpid())


def test_a_forked_child_locks_on_its_own(h100: Path) -> None:
    """While the parent holds the node's lock, the child's call waits: sharing the parent's lock, it would walk in."""
    out = rig.client(
        h100,
        """
import fcntl, select
(shared,) = [int(fd) for fd in os.listdir('/proc/self/fd') if os.path.realpath(f'/proc/self/fd/{fd}') == STATE]
fcntl.flock(shared, fcntl.LOCK_EX)
reader, writer = os.pipe()
child = os.fork()
if not child:
    os.write(writer, b'%d' % pynvml.nvmlDeviceGetCount())
    os._exit(0)
print(select.select([reader], [], [], 0.2)[0])
fcntl.flock(shared, fcntl.LOCK_UN)
print(os.read(reader, 1), os.waitpid(child, 0)[1])
""".replace("STATE", repr(str(h100.resolve()))),
    )
    assert out == "[]\nb'1' 0\n"
