"""PURE: what a node's GPUs hold and who has it, as agent, controller and command line speak of it."""

from dataclasses import dataclass
from enum import StrEnum


class MigMode(StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"
    PENDING = "pending"  # current and pending mode differ: a reset or reboot is due
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """A GPU-instance profile as one GPU itself offers it."""

    name: str  # "1g.10gb+me", without NVML's "MIG " prefix
    gi_profile_id: int  # the driver's id, not the NVML constant
    compute_slices: int
    memory_mib: int
    starts: tuple[int, ...]  # every possible placement, in memory slices
    size: int  # memory slices
    engines: tuple[int, ...] = ()  # copy, decoder, encoder, JPEG, OFA; (): not asked, and no media limit is applied


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A GPU instance that exists. With one compute instance over the whole of it, it is a slice of the pool."""

    profile: str
    start: int  # memory slices
    size: int
    gi: int
    ci: int = -1  # -1: no compute instance (half made)
    uuid: str = ""  # MIG-...; empty while there is no compute instance
    caps: tuple[int, int] = (-1, -1)  # minors of nvidia-cap for the GPU instance and the compute instance
    foreign: bool = False  # not of the pool's shape, or not ours: never touched, never offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    uuid: str  # GPU-...
    index: int  # NVML's
    minor: int  # the N of /dev/nvidiaN; may change with the MIG mode
    name: str
    mig: MigMode
    memory_mib: int
    profiles: tuple[GpuProfile, ...] = ()
    instances: tuple[Instance, ...] = ()
    fault: str = ""  # why this GPU is not used now; empty when it is fine


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change to one GPU: destroy first, then create, all at explicit placements (profile name, start)."""

    gpu: str
    destroy: tuple[tuple[str, int], ...] = ()
    create: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """One run of one job on a node. A JobId alone is no identity: Slurm hands it out again after a crash."""

    job_id: int
    started_at: int  # Unix seconds, Slurm's StartTime of this run
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one run holds on this node. `gres_class` is empty and `slices` is () for a job without vgpu."""

    run: RunKey
    gres_class: str = ""
    count: int = 0  # what was asked on this node
    slices: tuple[str, ...] = ()  # MIG UUIDs
    made_at: float = 0.0  # Unix seconds
    ends_at: int = 0  # Unix seconds, at the run's time limit as it was at the start; 0: none, or not known
