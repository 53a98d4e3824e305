"""PURE: what an admin pastes so that the Slurm here has the virtual nodes of fed.yaml, by the file it is for."""

from collections import Counter

from federation.config_overflow import OverflowConfig
from slurm_plugin.pool import GresNames
from slurm_plugin.slurm import gateway
from slurm_plugin.slurm.gateway import CloudSide, GatewayPaths, VirtualLine

PARTS = (
    "slurm.conf",
    "gres.conf",
    "plugstack.conf",
    "job_submit.lua",
    "gateway/plugstack.conf",
    "gateway/cgroup.conf",
    "gateway/prolog",
    "gateway/slurmd.conf",
    "prolog.d",
)


def side_of(config: OverflowConfig, gres: GresNames | None) -> CloudSide:
    """`gres` None: the cluster has no slices. A gateway with several virtual nodes gives each a port."""
    on_host = Counter(some.gateway for some in config.nodes.values() for _ in some.names)
    taken: Counter[str] = Counter()
    lines = []
    for some in config.nodes.values():
        first = gateway.FIRST_PORT + taken[some.gateway]
        taken[some.gateway] += some.count
        lines.append(
            VirtualLine(
                names=some.names,
                gateway=some.gateway,
                cpus=some.cpus,
                memory_mib=some.memory_mib,
                ports=tuple(range(first, first + some.count)) if on_host[some.gateway] > 1 else (),
            )
        )
    return CloudSide(partition=config.partition, lines=tuple(lines), gres=gres)


def texts(config: OverflowConfig, side: CloudSide, paths: GatewayPaths | None = None) -> dict[str, str]:
    """All of PARTS. gateway/... is for the hosts that serve virtual nodes alone."""
    there = paths or GatewayPaths(socket=str(config.socket))
    return {
        "slurm.conf": _slurm_conf(side, there),
        "gres.conf": gateway.gres_conf(side),
        "plugstack.conf": _login(there),
        "job_submit.lua": _lua(config),
        "gateway/plugstack.conf": _plugstack(side, there),
        "gateway/cgroup.conf": _cgroup(),
        "gateway/prolog": gateway.prolog(there),
        "gateway/slurmd.conf": _unit(side, there),
        "prolog.d": _guard(there),
    }


def _slurm_conf(side: CloudSide, paths: GatewayPaths) -> str:
    nodes = "\n".join(gateway.node_line(line, side.gres) for line in side.lines)
    return f"""\
# Virtual nodes. A gateway has fewer CPUs and less memory than they claim, and Slurm takes that in one of two ways:
#   SlurmdParameters=config_overrides: any numbers, but then no node of the cluster is missed for what it lost;
#   or, with gateway/slurmd.conf as it is, honest nodes: then RealMemory must be no more than the gateway's own.
# Gres is untyped and never changes; the daemon publishes what may be taken.
{nodes}
# DOWN: the daemon opens it while a pool takes jobs, and Slurm's own restarts close it. Below all others, so that room
# here comes first. Its jobs cost no fairshare: what the pool costs is counted by the daemon. For a price of your own,
# write weights such as TRESBillingWeights="CPU=1.0,GRES/vgpu=4.0": they count from Slurm's start, waits included.
{gateway.partition_line(side)}
# Add to what you have. Alloc: a job's prolog ends before anything of it starts. With slices it is there already.
PrologFlags=Alloc
# On the nodes here, what sends a job back that may be running elsewhere: with an agent this is it, nodes without one
# need prolog.d. On gateways the file of this name is gateway/prolog.
Prolog={paths.programs}/vgpu-prolog
# On gateways the file of this name is {gateway.NO_TASK}: no task starts there, even when the plugin is gone. Where
# there is an agent it is the agent's own; elsewhere your own or, where you have none, a link to /bin/true.
TaskProlog={paths.programs}/vgpu-taskprolog
"""


def _login(paths: GatewayPaths) -> str:
    return f"""\
# On login nodes: --burst, --stage-in and --stage-out of sbatch. optional: sbatch works without the file, too. Where
# Slurm hands out plugstack.conf itself (configless), every host gets this line, which does nothing on nodes.
{gateway.options_line(paths.programs)}"""


def _lua(config: OverflowConfig) -> str:
    return f"""\
-- In your job_submit.lua, after the line that loads vgpu.lua (in the pool's own job_submit.lua: CLOUD at its top):
vgpu.cloud = "{config.partition}"
"""


def _plugstack(side: CloudSide, paths: GatewayPaths) -> str:
    return f"""\
# On gateways, as {paths.plugstack}; and in their {paths.etc}/plugstack.conf:
#   include {paths.etc}/plugstack.conf.d/*.conf
# Where Slurm hands out plugstack.conf (configless), that include is in it for all hosts: only gateways have the file.
{gateway.plugstack_line(side.names, paths)}"""


def _cgroup() -> str:
    return f"# On gateways: nothing of a job's is there but a proxy.\n{gateway.cgroup_conf()}"


def _unit(side: CloudSide, paths: GatewayPaths) -> str:
    cpus = max(line.cpus for line in side.lines)
    return f"""\
# On gateways, as /etc/systemd/system/slurmd.service.d/gateway.conf. One that serves several virtual nodes runs a slurmd
# each (slurmd -N NAME; Slurm has to be built with --enable-multiple-slurmd, as Debian's is); else one host a node.
[Service]
# The CPUs that slurmd tells. Take this line out where slurm.conf has config_overrides.
Environment='{gateway.synthetic_cpus(cpus)}'
# For --get-user-env and --export=NAMES slurmd would run a login shell as the user, before any plugin is asked.
BindReadOnlyPaths={paths.programs}/{gateway.NO_SU}:/bin/su
"""


def _guard(paths: GatewayPaths) -> str:
    return f"""\
# On nodes that have no vgpu agent and are in a partition whose jobs may flow over, as a prolog: a job that may still be
# running elsewhere is sent back. With a folder of prologs:
ln -s {paths.programs}/vgpu-hook /etc/slurm/prolog.d/10-vgpu-guard
"""
