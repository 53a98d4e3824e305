"""What an admin pastes into Slurm's configuration for a pool. Pure: texts from a SlurmSide."""

from collections.abc import Mapping

from slurm_plugin.slurm.hostlist import compress
from slurm_plugin.slurm.site import NodeLine, SlurmSide

# The prolog waits for a slice (30 s) and for an agent that is being restarted; its own limit is 100 s.
PROLOG_LIMIT_S = 120
# What a job may not exceed in its partition must hold in the wait partition too: Slurm takes a job that fits either,
# and one that fits the wait partition only would wait for ever.
MIRRORED_LIMITS = {
    "MaxTime": "UNLIMITED",
    "DefaultTime": "NONE",
    "MaxNodes": "UNLIMITED",
    "AllowGroups": "ALL",
    "AllowAccounts": "ALL",
    "AllowQos": "ALL",
    "DenyAccounts": "",
    "DenyQos": "",
    "QoS": "N/A",
    "MinNodes": "0",
    "MaxCPUsPerNode": "UNLIMITED",
    "MaxMemPerNode": "UNLIMITED",
    "MaxMemPerCPU": "UNLIMITED",
}
# Where partitions differ, job_submit holds a job to the first two of its own; the third is no limit.
HELD_AT_SUBMIT = ("MaxTime", "MaxNodes", "DefaultTime")


def gres_types(side: SlurmSide) -> tuple[str, ...]:
    return side.gres.name, side.gres.memory


def settings(side: SlurmSide) -> dict[str, str]:
    """The cluster-wide lines of slurm.conf, by name. A list holds only what must be among its values.

    CliFilterPlugins is comfort: `chain.cli_filter_lua` says what has to be there first.
    """
    names = ",".join(gres_types(side))
    lines = {
        "GresTypes": names,
        "PrologFlags": "Alloc",
        "Prolog": side.paths.prolog,
        "Epilog": side.paths.epilog,
        "TaskProlog": side.paths.task_prolog,
        "BatchStartTimeout": str(PROLOG_LIMIT_S),
        "JobSubmitPlugins": "lua",
        "CliFilterPlugins": "lua",
        "EnforcePartLimits": "ANY",
    }
    if side.accounting:
        lines["AccountingStorageTRES"] = ",".join(f"gres/{name}" for name in gres_types(side))
    return lines


def node_line(side: SlurmSide, line: NodeLine) -> str:
    attributes = f"{line.attributes} " if line.attributes else ""
    return f"NodeName={compress(line.hosts)} {attributes}Gres={side.node_gres(line)}"


def wait_partition_line(side: SlurmSide, live: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """The hidden partition that is always DOWN and keeps every class requestable.

    `live` is `scontrol show partition`: the limits that all of the pool's partitions share are mirrored.
    """
    fields = {"Nodes": side.hosts, "State": "DOWN", "Hidden": "YES", "PriorityTier": "0"}
    fields |= mirrored_limits(side, live or {})
    return f"PartitionName={side.wait_partition} " + " ".join(f"{key}={value}" for key, value in fields.items())


def mirrored_limits(side: SlurmSide, live: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Limits of the pool's partitions that the wait partition must have: those on which all of them agree."""
    partitions = [live[name] for name in side.partitions if name in live]
    limits = {}
    for name, unlimited in MIRRORED_LIMITS.items():
        values = {partition.get(name, unlimited) for partition in partitions}
        if len(values) == 1 and values != {unlimited}:
            limits[name] = values.pop()
    return limits


def gres_conf(side: SlurmSide) -> str:
    """gres.conf: counts only. A `File=` or `Type=` of the pool's GRES would end every change of counts at run time."""
    lines = []
    for line in side.nodes:
        hosts = compress(line.hosts)
        for item in side.node_gres(NodeLine(hosts=line.hosts, gpus=line.gpus)).split(","):
            name, _, count = item.partition(":")
            lines.append(f"NodeName={hosts} Name={name} Count={count}")
    return "".join(line + "\n" for line in lines)


def slurm_conf(side: SlurmSide, live: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """The part of slurm.conf that is the pool's, with what an admin must know beside each line."""
    values = settings(side)
    blocks = [
        ("Add to the values you have, do not replace them.",
         _pick(values, "GresTypes", "JobSubmitPlugins")),
        ("Slices are bound before anything of a job runs; a prolog that waits for one is not taken for a dead node.",
         _pick(values, "PrologFlags", "BatchStartTimeout")),
        ("Have you scripts of your own here already? `vgpu render chain` shows how both run.\n"
         "# Slurm runs these on all nodes, the pool's or not, and drains one that lacks the file: copy the programs\n"
         "# to every node with a slurmd. Without /etc/vgpu there, they end at once and do nothing.",
         _pick(values, "Prolog", "Epilog", "TaskProlog")),
        ("A job over its partition's limits is refused; it would else wait in the partition below for ever.",
         _pick(values, "EnforcePartLimits")),
    ]  # fmt: skip
    if side.accounting:
        blocks.append(
            ("Limits and accounting by slices, and by eighths of a GPU.", _pick(values, "AccountingStorageTRES"))
        )
    blocks.append(
        (
            "With memory as a resource and no default, a job takes all of a node's memory: the value is yours.",
            ["DefMemPerCPU=4000"],
        )
    )
    blocks.append(
        ("Only the Gres part is the pool's. The numbers never change, whatever the layout.",
         [node_line(side, line) for line in side.nodes])
    )  # fmt: skip
    blocks.append(
        (
            "Always DOWN: jobs whose class is not offered now wait here and are never held.",
            [wait_partition_line(side, live)],
        )
    )
    if side.job_ids:
        blocks.append(
            (
                "The ids of jobs that a killed slurmctld forgot are not used again. First, where this file is read:\n"
                f"# echo FirstJobId=1 > {side.job_ids}",
                [f"Include {side.job_ids}"],
            )
        )
    return "\n".join("\n".join([f"# {comment}", *lines, ""]) for comment, lines in blocks)


def _pick(values: Mapping[str, str], *names: str) -> list[str]:
    return [f"{name}={values[name]}" for name in names]
