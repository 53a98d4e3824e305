"""Minor numbers of /dev/nvidia-caps, from the driver's own list. Computed never: the list is what counts."""

import re
from collections.abc import Collection
from pathlib import Path

NONE = (-1, -1)


class CapMinors:
    """The list under one proc root. It is the same for as long as the driver is loaded, so it is read once."""

    def __init__(self, proc_root: Path) -> None:
        self._path = proc_root / "driver/nvidia-caps/mig-minors"
        self._minors: dict[str, int] = {}

    def of(self, gpu_minor: int, gi: int, ci: int) -> tuple[int, int]:
        """Minors of the GPU instance and of its compute instance; -1 for one that is not known (or `ci` -1)."""
        if not self._minors:
            self._minors = self._read()
        instance = f"gpu{gpu_minor}/gi{gi}"
        return self._minors.get(f"{instance}/access", -1), self._minors.get(f"{instance}/ci{ci}/access", -1)

    def of_gpus(self, gpu_minors: Collection[int]) -> frozenset[int]:
        """Minors of every instance that these GPUs can have."""
        if not self._minors:
            self._minors = self._read()
        return frozenset(
            minor
            for name, minor in self._minors.items()
            if (gpu := re.match(r"gpu(\d+)/", name)) and int(gpu[1]) in gpu_minors
        )

    def _read(self) -> dict[str, int]:
        try:
            lines = self._path.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        fields = [line.split() for line in lines]
        return {pair[0]: int(pair[1]) for pair in fields if len(pair) == 2 and pair[1].isdecimal()}
