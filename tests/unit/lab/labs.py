"""Labs to describe, none of them started."""

from pathlib import Path

from slurm_plugin.lab.site import Lab, LabSpec, Ports


def lab(folder: Path = Path("/run/vgpu-lab/hpc"), version: tuple[int, int] = (22, 5), **spec: object) -> Lab:
    asked = LabSpec(**spec)  # type: ignore[arg-type]
    return Lab(
        spec=asked,
        folder=folder,
        hostname="host",
        ports=Ports(slurmctld=11001, slurmdbd=11002, controller=11003, slurmd=tuple(range(11010, 11010 + asked.nodes))),
        slurm_version=version,
    )
