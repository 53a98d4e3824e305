"""A pool of two kinds of nodes, and a Slurm that is as it should be for it."""

from slurm_plugin.ports import SlurmNode
from slurm_plugin.slurm.facts import Live
from slurm_plugin.slurm.gres import parse_gres
from slurm_plugin.slurm.site import NodeLine, SlurmSide

SIDE = SlurmSide(
    partitions=("gpu",),
    wait_partition="vgpu-wait",
    nodes=(NodeLine(hosts=("n1", "n2"), gpus=4), NodeLine(hosts=("n3",), gpus=8)),
    accounting=True,
)
CONFIG = {
    "GresTypes": "gpu,vgpu,vgpu_mem",
    "PrologFlags": "Alloc,Contain",
    "Prolog": "/etc/slurm/prolog.d/*",
    "Epilog": "/usr/libexec/vgpu/vgpu-epilog",
    "TaskProlog": "/usr/libexec/vgpu/vgpu-taskprolog",
    "PrologEpilogTimeout": "65534",
    "BatchStartTimeout": "120 sec",
    "EnforcePartLimits": "ANY",
    "JobSubmitPlugins": "lua",
    "CliFilterPlugins": "cli_filter/lua",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "DefMemPerCPU": "4000",
    "AccountingStorageTRES": "cpu,mem,gres/vgpu,gres/vgpu_mem",
}
PARTITIONS = {
    "gpu": {
        "Nodes": "n[1-3]",
        "State": "UP",
        "Hidden": "NO",
        "MaxTime": "1-00:00:00",
        "OverSubscribe": "NO",
        "PriorityTier": "1",
    },
    "vgpu-wait": {
        "Nodes": "n[1-3]",
        "State": "DOWN",
        "Hidden": "YES",
        "MaxTime": "1-00:00:00",
        "PriorityTier": "0",
    },
}


def node(name: str, gres: str, used: str = "") -> SlurmNode:
    return SlurmNode(
        name=name,
        state="IDLE",
        reason="",
        gres=parse_gres(gres),
        gres_used=parse_gres(used),
        cpus=64,
        cpus_used=0,
        memory_mib=512000,
        partitions=("gpu",),
        slurmd_started_at=0,
    )


NODES = (
    node("n1", "gpu:h100:4,vgpu:1000,vgpu_mem:32"),
    node("n2", "vgpu:m20:3,vgpu:pad:997,vgpu_mem:32"),
    node("n3", "vgpu:m20:0,vgpu:pad:0,vgpu_mem:64"),
)
GOOD = Live(
    config=CONFIG,
    partitions=PARTITIONS,
    nodes=NODES,
    gres_conf="NodeName=n[1-3] Name=vgpu Count=1000\n# Name=vgpu File=/dev/null\n",
    hooks={"Prolog": "/etc/slurm/prolog.d/90-vgpu\n/usr/libexec/vgpu/vgpu-prolog"},
)
