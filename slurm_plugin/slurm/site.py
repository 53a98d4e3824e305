"""What Slurm must be told for one pool: the facts that `render` writes and `checks` compares. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_plugin.pool import GresNames, PoolConfig
from slurm_plugin.slurm.hostlist import compress

WEIGHTS_A_GPU = 8  # a slice weighs its eighths of a GPU's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPaths:
    """Where the pool's files lie on the hosts that need them."""

    programs: str = "/usr/libexec/vgpu"  # vgpu-prolog, vgpu-epilog, vgpu-taskprolog, vgpu-bind
    lua: str = "/etc/slurm"  # vgpu.lua, beside job_submit.lua and cli_filter.lua
    slurm_etc: str = "/etc/slurm"
    venv: str = "/opt/vgpu"  # the Python environment of the daemons

    @property
    def prolog(self) -> str:
        return f"{self.programs}/vgpu-prolog"

    @property
    def epilog(self) -> str:
        return f"{self.programs}/vgpu-epilog"

    @property
    def task_prolog(self) -> str:
        return f"{self.programs}/vgpu-taskprolog"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """Nodes with the same line in slurm.conf."""

    hosts: tuple[str, ...]
    gpus: int  # of each node, in the pool or not: choosing others later must not change a total
    attributes: str = ""  # the rest of the line, such as `CPUs=64 RealMemory=512000`
    other_gres: str = ""  # the node's other GRES, kept as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSide:
    """One pool as Slurm's configuration sees it."""

    partitions: tuple[str, ...]
    wait_partition: str
    nodes: tuple[NodeLine, ...]
    gres: GresNames = field(default_factory=GresNames)
    paths: HookPaths = field(default_factory=HookPaths)
    catalogue: str = "/var/lib/vgpu/catalogue"  # written by the controller, read by Lua
    state_dir: str = "/var/lib/vgpu"  # the controller's
    job_ids: str = ""  # written by the controller, included by slurm.conf; empty: neither
    user: str = "root"  # whom the controller runs as
    accounting: bool = (
        False  # slurmdbd is there; without it a GRES in AccountingStorageTRES ends slurmctld at its start
    )

    @property
    def hosts(self) -> str:
        return compress(host for line in self.nodes for host in line.hosts)

    def node_gres(self, line: NodeLine) -> str:
        """The value of Gres= for these nodes: untyped and constant, so that a registration changes nothing."""
        own = f"{self.gres.name}:{self.gres.total},{self.gres.memory}:{WEIGHTS_A_GPU * line.gpus}"
        return f"{line.other_gres},{own}" if line.other_gres else own


def side_of(
    pool: PoolConfig, gpus: Mapping[str, int], *, accounting: bool, paths: HookPaths | None = None
) -> SlurmSide:
    """The pool as pool.yaml has it.

    A node's weight is that of all its GPUs, in the pool or not, so that it never changes: pool.yaml's `count`, and
    where it does not say, what `gpus` says by node. Of a node that neither knows no weight is compared.
    """
    lines: dict[int, list[str]] = {}
    for group in pool.groups:
        for host in group.hosts:
            lines.setdefault(group.count or gpus.get(host, 0), []).append(host)
    return SlurmSide(
        partitions=pool.partitions,
        wait_partition=pool.wait_partition,
        nodes=tuple(NodeLine(hosts=tuple(hosts), gpus=count) for count, hosts in sorted(lines.items())),
        gres=pool.gres,
        paths=paths or HookPaths(),
        catalogue=str(pool.controller.catalogue),
        state_dir=str(pool.controller.state_dir),
        job_ids=str(pool.controller.job_ids or ""),
        user=pool.controller.user,
        accounting=accounting,
    )
