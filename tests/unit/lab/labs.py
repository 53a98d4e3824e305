"""Labs to describe, none of them started."""

from pathlib import Path
from typing import Any

from slurm_plugin.lab.site import Lab, LabSpec, Ports


def lab(folder: Path = Path("/run/vgpu-lab/hpc"), version: tuple[int, int] = (22, 5), **spec: Any) -> Lab:
    asked = LabSpec(**spec)
    return Lab(
        spec=asked,
        folder=folder,
        hostname="host",
        ports=Ports(slurmctld=11001, slurmdbd=11002, controller=11003, slurmd=tuple(range(11010, 11010 + asked.nodes))),
        slurm_version=version,
    )
