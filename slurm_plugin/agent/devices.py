"""Who may open a slice: the two `nvidia-cap` device nodes of its GPU instance and compute instance.

A job's user gets them while the job has the slice (owner, mode 0400); otherwise they are root's. The driver's setuid
nvidia-modprobe would put 0444 back for anybody who asks, so root first tells the driver to leave the mode alone.

Source: NVIDIA MIG user guide, "Device nodes and capabilities"; NVIDIA/open-gpu-kernel-modules nv-caps.c.
"""

import logging
import os
import stat
from pathlib import Path

from slurm_plugin.agent.device_cgroup import major_of
from slurm_plugin.model import Gpu, Instance

log = logging.getLogger(__name__)

MODE = 0o400
_MODIFY = "DeviceFileModify:"


class Devices:
    """A handful of small file operations. A failure is logged, and told by the answer: False."""

    def __init__(self, *, proc_root: Path, dev_root: Path) -> None:
        self._capabilities = proc_root / "driver/nvidia/capabilities"
        self._majors = proc_root / "devices"
        self._nodes = dev_root / "nvidia-caps"

    def give(self, gpu: Gpu, instance: Instance, uid: int) -> bool:
        """From here on this user can open the slice, and nobody else but root. What is open already stays open."""
        base = self._capabilities / f"gpu{gpu.minor}/mig/gi{instance.gi}"
        access = (base / "access", base / f"ci{instance.ci}/access")
        try:
            for minor, path in zip(instance.caps, access, strict=True):
                _pin_mode(path)
                self._chown(minor, uid)
        except OSError as error:
            log.warning("device.not_owned", extra={"slice": instance.uuid, "uid": uid, "error": str(error)})
            return False
        return True

    def owner(self, instance: Instance) -> int:
        """The user who could open a device of this slice; 0: root alone. Raises OSError."""
        return max((path.lstat().st_uid for path in self.nodes(instance) if path.exists()), default=0)

    def nodes(self, instance: Instance) -> tuple[Path, ...]:
        """Where a slice's two device nodes are."""
        return tuple(self._nodes / f"nvidia-cap{minor}" for minor in instance.caps if minor >= 0)

    def _chown(self, minor: int, uid: int) -> None:
        path = self._nodes / f"nvidia-cap{minor}"
        if not path.exists():
            self._make(path, minor)
        node = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            here = f"/proc/self/fd/{node}"
            now = os.fstat(node)
            owner = (now.st_uid, now.st_gid)
            if stat.S_IMODE(now.st_mode) != MODE:
                if owner != (0, 0):
                    os.chown(here, 0, 0)  # a user may change the mode of what is his; root's own needs no capability
                    owner = (0, 0)
                os.chmod(here, MODE)  # noqa: PTH101 - by descriptor
            if owner != (uid, 0):
                os.chown(here, uid, 0)
        finally:
            os.close(node)

    def _make(self, path: Path, minor: int) -> None:
        """An instance made through NVML alone has no node until somebody asks the driver's tools for one."""
        major = major_of(self._majors)
        if major is None or minor < 0:
            raise FileNotFoundError(f"no {path}, and no major number to make it with")
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o755)
        os.mknod(path, stat.S_IFCHR | MODE, os.makedev(major, minor))


def _pin_mode(path: Path) -> None:
    """Appending reaches the driver as a plain write, and needs no truncation of anything else that may stand there."""
    said = [line for line in path.read_text().splitlines() if line.startswith(_MODIFY)]
    if not said or said[-1].split()[-1] != "0":
        with path.open("a") as file:
            file.write(f"{_MODIFY} 0\n")
