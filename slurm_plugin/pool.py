"""PURE: what an admin says of a pool, as `slurm_plugin.config` reads it from pool.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from slurm_plugin.catalogue import Exclusive
from slurm_plugin.classes import NamedClass
from slurm_plugin.planning import Follow, Planning


class Mode(StrEnum):
    MANAGE = "manage"
    OBSERVE = "observe"  # report, change nothing


class StuckProlog(StrEnum):
    """What becomes of a job whose prolog was lost."""

    REQUEUE = "requeue"  # cancelled, when it can't be
    REPORT = "report"


class DuplicateJobid(StrEnum):
    """What becomes of a node that Slurm drained because it had used a job's id twice."""

    RESUME = "resume"
    REPORT = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class GresNames:
    name: str = "vgpu"
    total: int = 1000  # of each node, for ever: Slurm drains a node whose total changes under a job
    pad: str = "pad"  # the type that holds what is not offered
    memory: str = "vgpu_mem"  # weight in eighths of a GPU's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One layout of a group, and its share of the group's GPUs."""

    layout: Mapping[str, int]  # profile -> count
    share: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that are treated alike."""

    hosts: tuple[str, ...]
    gpus: tuple[int, ...] | None = None  # NVML indices in the pool; None: all of a node's
    shares: tuple[Share, ...] = ()  # empty: the slices stay as they are found
    product: str = ""  # what its GPUs are, for a catalogue before an agent was ever there
    count: int = 0  # GPUs a node has, in the pool or not; 0: not said
    follow: Follow | None = None  # None: as the pool's planning says

    def takes(self, index: int) -> bool:
        return self.gpus is None or index in self.gpus

    @property
    def in_pool(self) -> int:
        """GPUs of each node in the pool, as far as it is said."""
        return self.count if self.gpus is None else len(self.gpus)


class QueueReader(StrEnum):
    """What Slurm's queue is read with."""

    SQUEUE = "squeue"
    PYSLURM = "pyslurm"  # where it is installed and of the running Slurm's release; else squeue all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerPlace:
    """Where the controller lives and what it touches on its host."""

    listen: str = "0.0.0.0:6820"
    address: str = ""  # what clients dial; empty: the port of `listen` on this host
    user: str = "root"
    state_dir: Path = Path("/var/lib/vgpu")
    catalogue: Path = Path("/var/lib/vgpu/catalogue")
    job_ids: Path | None = None  # a file that slurm.conf includes, so that no job's id is used twice
    slurm_conf: Path | None = None
    slurm_bin: Path | None = None
    munge_socket: Path | None = None
    queue_reader: QueueReader = QueueReader.SQUEUE

    @property
    def dial(self) -> str:
        """host:port for a client on this host, or wherever `address` says."""
        host, _, port = self.listen.rpartition(":")
        here = "127.0.0.1" if host in ("", "0.0.0.0", "*") else "[::1]" if host == "[::]" else host  # noqa: S104
        return self.address or f"{here}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    pool: str
    partitions: tuple[str, ...]
    wait_partition: str = "vgpu-wait"
    gres: GresNames = field(default_factory=GresNames)
    default_class: str = ""  # empty: the smallest profile of the pool
    classes: Mapping[str, NamedClass] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[NodeGroup, ...] = ()
    exclusive: Exclusive = Exclusive.REFUSE
    mode: Mode = Mode.MANAGE
    stuck_prolog: StuckProlog = StuckProlog.REQUEUE
    duplicate_jobid: DuplicateJobid = DuplicateJobid.RESUME
    notices: bool = True  # why a job waits is written into its AdminComment
    planning: Planning = field(default_factory=Planning)
    controller: ControllerPlace = field(default_factory=ControllerPlace)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host for group in self.groups for host in group.hosts)

    def follow(self, group: NodeGroup) -> Follow:
        """What the layouts of these nodes follow."""
        return group.follow or self.planning.follow
