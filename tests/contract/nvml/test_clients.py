"""Other people's NVML clients, unchanged, and every call once under the sanitizers."""

import re
import subprocess
import sys
from pathlib import Path

import pynvml

from slurm_plugin.lab import simgpu
from slurm_plugin.model import Step
from slurm_plugin.nvml import NvmlGpus
from tests.contract.nvml import rig

TOUR = Path(__file__).with_name("tour.py")


def test_nvitop_lists_the_mig_devices(h100: Path, gpus: NvmlGpus) -> None:
    uuid = gpus.inventory()[0].uuid
    gpus.apply(Step(gpu=uuid, create=(("3g.40gb", 0), ("1g.20gb", 4), ("1g.10gb+me", 6))))
    shown = subprocess.run(
        [sys.executable, "-m", "nvitop", "--once", "--no-unicode"],
        env={"LD_LIBRARY_PATH": str(simgpu.LIBRARY_FOLDER), "VGPU_SIM_STATE": str(h100), "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    assert "ERROR" not in shown.stderr
    devices = re.findall(r"(\d+:\d+) +(\S+) @ GI/CI: *(\d+/\d+) ", shown.stdout)
    assert devices == [("0:0", "3g.40gb", "1/0"), ("0:1", "1g.20gb", "5/0"), ("0:2", "1g.10gb", "13/0")]


def test_nvitops_own_interface_finds_slices_by_uuid(h100: Path, gpus: NvmlGpus) -> None:
    gpu = gpus.inventory()[0].uuid
    (instance,) = gpus.apply(Step(gpu=gpu, create=(("2g.20gb", 2),))).instances
    code = (
        "from nvitop import MigDevice, PhysicalDevice\n"
        "(mig,) = PhysicalDevice(0).mig_devices()\n"
        f"assert MigDevice(uuid={instance.uuid!r}).index == mig.index == (0, 0)\n"
        "print(mig.uuid(), mig.gpu_instance_id(), mig.memory_total_human())\n"
    )
    assert rig.client(h100, code).split() == [instance.uuid, str(instance.gi), "20096MiB"]


def test_every_call_is_clean_under_the_sanitizers(h100: Path) -> None:
    """The tour makes each call at least once, with good and bad arguments; a finding ends the process."""
    rig.built("sanitized")
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    done = subprocess.run(
        [sys.executable, TOUR],
        env={
            "LD_LIBRARY_PATH": str(simgpu.LIBRARY_FOLDER / "sanitized"),
            "LD_PRELOAD": runtime.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
            "VGPU_SIM_STATE": str(h100),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "runtime error" not in done.stderr
    exported = set(re.findall(r"^NVML_API nvmlReturn_t (\w+)\(", sources(), re.MULTILINE))
    uncounted = {"nvmlEventSetFree"}  # it needs no node
    counted = {call for call in simgpu.snapshot(h100).calls if call != "nvmlInit"}
    assert counted | uncounted | {"nvmlInit_v2", "nvmlInitWithFlags"} == exported


def test_the_library_exports_nvml_and_nothing_else() -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", simgpu.LIBRARY], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert {name for name in names if not name.startswith("nvml")} == set()
    assert "nvmlInit_v2" in names
    assert set(re.findall(r"^NVML_API [\w ]+?\*?(nvml\w+)\(", sources(), re.MULTILINE)) == names


def test_what_old_drivers_lack_is_absent_here_too(h100: Path) -> None:
    with rig.session():
        try:
            pynvml.nvmlGpmQueryDeviceSupport(pynvml.nvmlDeviceGetHandleByIndex(0))
        except pynvml.NVMLError_FunctionNotFound:
            return
    raise AssertionError("GPM is not simulated, and must be seen to be absent")


def sources() -> str:
    return "\n".join(path.read_text() for path in sorted(rig.SOURCES.glob("*.c")))
