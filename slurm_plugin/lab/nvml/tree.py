"""The files of a node that has no instance yet; those of instances are the library's."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_plugin.lab.nvml import layout

CAPABILITIES = "proc/driver/nvidia/capabilities"
CAPABILITY_MAJOR = 120  # the kernel keeps it for local use: no driver answers there
MINOR_GPUS = 32  # the driver numbers capabilities of so many GPUs, of 15 GPU instances and 8 compute instances each


def make(folder: Path, minors: Sequence[int]) -> None:
    """What is there before any instance is. Files that exist are left alone."""
    caps = folder / "proc/driver/nvidia-caps/mig-minors"
    caps.parent.mkdir(parents=True, exist_ok=True)
    if not caps.exists():
        caps.write_text("".join(f"{name} {minor}\n" for name, minor in _minors()))
    (folder / "proc/devices").write_text(f"Character devices:\n195 nvidia\n{CAPABILITY_MAJOR} nvidia-caps\n")
    for minor in minors:
        (folder / CAPABILITIES / f"gpu{minor}" / "mig").mkdir(parents=True, exist_ok=True)
    (folder / CAPABILITIES / "mig").mkdir(parents=True, exist_ok=True)
    (folder / "dev/nvidia-caps").mkdir(parents=True, exist_ok=True)
    for name, minor, mode in (("config", 1, 0o400), ("monitor", 2, 0o444)):
        entry = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
        (folder / CAPABILITIES / "mig" / name).write_text(entry)
        _device(folder / "dev/nvidia-caps" / f"nvidia-cap{minor}", mode)
    for name in ("nvidiactl", *(f"nvidia{minor}" for minor in minors)):
        _device(folder / "dev" / name, 0o666)


def _device(path: Path, mode: int) -> None:
    path.touch()
    path.chmod(mode)


def _minors() -> Iterator[tuple[str, int]]:
    yield "config", 1
    yield "monitor", 2
    for gpu in range(MINOR_GPUS):
        for gi in range(layout.GIS):
            first = 3 + 135 * gpu + 9 * gi
            yield f"gpu{gpu}/gi{gi}/access", first
            for ci in range(layout.CIS):
                yield f"gpu{gpu}/gi{gi}/ci{ci}/access", first + 1 + ci
