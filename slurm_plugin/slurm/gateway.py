"""What Slurm must be told of virtual nodes, which slurmd serves on a gateway and whose jobs run elsewhere. Pure.

The partition is DOWN in slurm.conf and the nodes' GRES have no types, so that nothing starts there after a restart of
slurmctld until somebody says that the pool behind them can be reached.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurm_plugin.pool import GresNames
from slurm_plugin.slurm.hostlist import compress

TOTAL = 100_000  # of each count-only GRES on a virtual node: more than its jobs could have, and no multiple of 1024
FIRST_PORT = 6831  # of a gateway that serves several virtual nodes
PLUGIN = "vgpu_gateway.so"
OPTIONS_PLUGIN = "vgpu_burst.so"
PROXY = "vgpu-proxy"
NO_TASK = "vgpu-no-task"  # a gateway's TaskProlog: no task starts, should the plugin be gone
NO_SU = "vgpu-no-su"  # what its slurmd has for su
PLUGSTACK = "vgpu.conf"  # in the folder that plugstack.conf includes


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualLine:
    """Virtual nodes with the same line in slurm.conf. `ports`: one a node; empty: slurmd's usual one."""

    names: tuple[str, ...]
    gateway: str  # host of the slurmd that serves them
    cpus: int  # of each
    memory_mib: int  # of each
    ports: tuple[int, ...] = ()
    address: str = ""  # of the gateway, where its name does not lead there


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPaths:
    """Where things are on a gateway."""

    programs: str = "/usr/libexec/vgpu"  # the plugins, the proxy and the hooks
    socket: str = "/run/fed/gateway.sock"  # the daemon's, for proxies
    marks: str = "/run/vgpu-gateway"  # where the plugin tells the prolog that it is there
    etc: str = "/etc/slurm"  # of slurmd: slurm.conf, plugstack.conf

    @property
    def plugin(self) -> str:
        return f"{self.programs}/{PLUGIN}"

    @property
    def proxy(self) -> str:
        return f"{self.programs}/{PROXY}"

    @property
    def plugstack(self) -> str:
        return f"{self.etc}/plugstack.conf.d/{PLUGSTACK}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSide:
    """All virtual nodes of a cluster. `gres` None: the cluster has no slices."""

    partition: str
    lines: tuple[VirtualLine, ...]
    gres: GresNames | None = field(default_factory=GresNames)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for line in self.lines for name in line.names)


def node_line(line: VirtualLine, gres: GresNames | None) -> str:
    """One line. The weight lets a job that could start here and on a node of the site's start there."""
    ports = f"Port={_ports(line.ports)} " if line.ports else ""
    count = f" Gres={gres.name}:{TOTAL},{gres.memory}:{TOTAL}" if gres else ""
    return (
        f"NodeName={compress(line.names)} NodeHostname={line.gateway} NodeAddr={line.address or line.gateway} {ports}"
        f"CPUs={line.cpus} RealMemory={line.memory_mib}{count} Weight=65000"
    )


def _ports(ports: Sequence[int]) -> str:
    if len(ports) == 1:
        return str(ports[0])
    spans: list[list[int]] = []
    for port in sorted(ports):
        if spans and port == spans[-1][-1] + 1:
            spans[-1][1:] = [port]
        else:
            spans.append([port])
    return f"[{','.join('-'.join(map(str, span)) for span in spans)}]"


def partition_line(side: CloudSide) -> str:
    """Below all others, closed until the daemon opens it, and free of charge: a job's remote wait counts as running."""
    return (
        f"PartitionName={side.partition} Nodes={compress(side.names)} State=DOWN PriorityTier=0 MaxTime=UNLIMITED "
        "LLN=YES TRESBillingWeights=CPU=0.0"
    )


def gres_conf(side: CloudSide) -> str:
    """Counts only, as for the nodes that have GPUs."""
    hosts = compress(side.names)
    kinds = (side.gres.name, side.gres.memory) if side.gres else ()
    return "".join(f"NodeName={hosts} Name={name} Count={TOTAL}\n" for name in kinds)


def plugstack_line(names: Iterable[str], paths: GatewayPaths) -> str:
    """For the gateway alone: with a plugin that is required, slurmd does not start where it is missing."""
    nodes = ",".join(dict.fromkeys(f"{name.rpartition('-')[0]}-" for name in names))
    where = f"proxy={paths.proxy} socket={paths.socket} marks={paths.marks}"
    return f"required {paths.plugin} nodes={nodes} {where}\n"


def options_line(programs: str) -> str:
    """For login nodes."""
    return f"optional {programs}/{OPTIONS_PLUGIN}\n"


def cgroup_conf() -> str:
    """For the gateway alone: a virtual node's CPUs and memory are elsewhere, so nothing here can be held to them."""
    return "ConstrainCores=no\nConstrainRAMSpace=no\nConstrainSwapSpace=no\nConstrainDevices=no\n"


def synthetic_cpus(cpus: int) -> str:
    """The variable that lets slurmd see so many CPUs, in the place of what the host has."""
    return f'HWLOC_SYNTHETIC="pack:1 core:{cpus} pu:1"'


SETTINGS = "GetEnvTimeout=0\n"  # no login shell of a user's is run for --get-user-env and --export=NAMES
EPILOG = "#!/bin/sh\n# Nothing of a job's is on its virtual node.\nexit 0\n"


def prolog(paths: GatewayPaths) -> str:
    """What the gateway has where slurm.conf's Prolog points: a job whose plugin could not keep it off goes back.

    The plugin leaves a mark before each prolog. This one never fails, since that drains the node, and does not end
    before Slurm has taken the job back: a slurmctld that does not answer keeps the job in its prolog. Whether the
    daemon is there is no question here: its socket goes with it, and a proxy waits for both.
    """
    marks, hook = (shlex.quote(one) for one in (paths.marks, f"{paths.programs}/vgpu-hook"))
    return f"""\
#!/bin/sh
# A job on a virtual node runs the proxy, never its own script: only where the plugin is there and says so.
mark={marks}/$SLURM_JOB_ID
said="vgpu_gateway.so has left no mark: it is not in the plugstack.conf of this host"
[ ! -r "$mark" ] || read -r said < "$mark"
/bin/rm -f "$mark"
[ "$said" != ok ] || exit 0
/usr/bin/logger -t fed "job $SLURM_JOB_ID does not start on $SLURMD_NODENAME: $said" || :
exec {hook} away
"""
