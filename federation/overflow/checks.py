"""PURE: what of a running Slurm is not as the virtual nodes need it, with the line that mends it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from federation.config_overflow import OverflowConfig
from slurm_plugin.ports import SlurmNode
from slurm_plugin.slurm import gateway
from slurm_plugin.slurm.conf_files import values
from slurm_plugin.slurm.facts import Live
from slurm_plugin.slurm.gateway import CloudSide
from slurm_plugin.slurm.hostlist import compress, expand

LEAST_KILL_WAIT_S = 5  # a proxy hands a cancel to the daemon in that time
_BAD = ("DOWN", "DRAIN", "FAIL", "INVAL", "NOT_RESPONDING", "UNKNOWN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    what: str
    paste: str  # line or command that mends it


def check(config: OverflowConfig, side: CloudSide, live: Live) -> tuple[Problem, ...]:
    """Cluster-wide ones first. Raises ConfigError when a host list of Slurm's can't be read."""
    checks = (_cluster, _settings, _limits, _partition, _memory, _other_partitions, _nodes, _lua)
    return tuple(problem for one in checks for problem in one(config, side, live))


def _cluster(config: OverflowConfig, _: CloudSide, live: Live) -> Iterator[Problem]:
    name = live.config.get("ClusterName", "")
    if name != config.cluster:
        yield Problem(
            what=f"this Slurm is cluster {name}, and fed.yaml says {config.cluster}", paste=f"cluster: {name}"
        )


def _settings(_: OverflowConfig, __: CloudSide, live: Live) -> Iterator[Problem]:
    flags = values(live.config, "PrologFlags")
    if not {"Alloc", "Contain"} & set(flags):
        yield Problem(
            what="PrologFlags lacks Alloc: a job may start before its prolog has sent it back",
            paste=f"PrologFlags={','.join([*flags, 'Alloc'])}",
        )
    if "Prolog" not in live.config:
        yield Problem(
            what="there is no Prolog: a job that may be running elsewhere is not sent back",
            paste="Prolog=/usr/libexec/vgpu/vgpu-prolog",
        )
    if "TaskProlog" not in live.config:
        yield Problem(
            what=f"there is no TaskProlog ({gateway.NO_TASK} on gateways): without the plugin users' code runs there",
            paste="TaskProlog=/usr/libexec/vgpu/vgpu-taskprolog",
        )


def _limits(_: OverflowConfig, __: CloudSide, live: Live) -> Iterator[Problem]:
    if live.config.get("OverTimeLimit", "").upper() in ("UNLIMITED", "65535", "INFINITE"):
        yield Problem(
            what="OverTimeLimit is UNLIMITED: a job that times out elsewhere is no TIMEOUT", paste="OverTimeLimit=0"
        )
    wait = live.config.get("KillWait", "30").split()[0]
    if wait.isdecimal() and int(wait) < LEAST_KILL_WAIT_S:
        yield Problem(
            what=f"KillWait is {wait} s: a proxy may be killed before its cancel is told", paste="KillWait=30"
        )
    if live.config.get("JobRequeue", "1") == "0":
        yield Problem(what="JobRequeue is 0: a job that loses its gateway is not started again", paste="JobRequeue=1")
    for name in ("RequeueExit", "RequeueExitHold"):
        if name in live.config:
            what = f"{name} is {live.config[name]}: a job that ended so elsewhere gets that end again, and runs no more"
            yield Problem(what=what, paste=f"#{name}={live.config[name]}")


def _partition(_: OverflowConfig, side: CloudSide, live: Live) -> Iterator[Problem]:
    line = gateway.partition_line(side)
    found = live.partitions.get(side.partition)
    if found is None:
        yield Problem(what=f"there is no partition {side.partition}", paste=line)
        return
    wanted = {"PriorityTier": "0", "MaxTime": "UNLIMITED"}
    if differs := [f"{name}={found[name]}" for name, value in wanted.items() if found.get(name, value) != value]:
        yield Problem(what=f"partition {side.partition} has {', '.join(differs)}", paste=line)
    if found.get("State") not in ("UP", "DOWN"):
        what = f"partition {side.partition} is {found.get('State')}: the daemon leaves it so"
        yield Problem(what=what, paste=f"scontrol update partitionname={side.partition} state=down")
    if strangers := set(expand(found.get("Nodes", ""))) - set(side.names):
        what = f"partition {side.partition} has nodes that are not virtual: {compress(strangers)}"
        yield Problem(what=what, paste=line)
    conf = live.client_conf
    text = _line(conf.text, side.partition) if conf and conf.path == live.config.get("SLURM_CONF") else ""
    if text and not re.search(r"\bstate=down\b", text, re.IGNORECASE):
        what = f"slurm.conf has partition {side.partition} open: after its restart Slurm starts jobs that no pool takes"
        yield Problem(what=what, paste=line)


def _memory(_: OverflowConfig, side: CloudSide, live: Live) -> Iterator[Problem]:
    """Without a default a job that names no memory takes all of a virtual node's."""
    if "_MEMORY" not in live.config.get("SelectTypeParameters", "").upper():
        return
    places = (live.config, live.partitions.get(side.partition, {}))
    if not any(place.get(name, "")[:1].isdecimal() for place in places for name in ("DefMemPerCPU", "DefMemPerNode")):
        what = (
            f"memory is a resource, and neither the cluster nor partition {side.partition} has a DefMemPerCPU: one job"
        )
        yield Problem(what=f"{what} takes all of a virtual node", paste="DefMemPerCPU=4000")


def _line(conf: str, partition: str) -> str:
    found = re.search(rf"^\s*PartitionName={re.escape(partition)}\s.*$", conf, re.IGNORECASE | re.MULTILINE)
    return found[0] if found else ""


def _other_partitions(config: OverflowConfig, side: CloudSide, live: Live) -> Iterator[Problem]:
    for name in (*config.rules, config.wait_partition) if side.gres else config.rules:
        if name not in live.partitions:
            yield Problem(what=f"there is no partition {name}, which fed.yaml names", paste=f"PartitionName={name} ...")
    for name, fields in live.partitions.items():
        if name == side.partition:
            continue
        if inside := set(expand(fields.get("Nodes", ""))) & set(side.names):
            what = f"partition {name} has virtual nodes, where its jobs would start: {compress(inside)}"
            yield Problem(what=what, paste=f"PartitionName={name} Nodes=...   # by name, not ALL")
        tier = fields.get("PriorityTier", "1")
        if name in config.rules and tier.isdecimal() and int(tier) < 1:
            what = f"partition {name} has PriorityTier={tier}: its jobs start elsewhere though there is room here"
            yield Problem(what=what, paste=f"PartitionName={name} PriorityTier=1 ...")


def _nodes(_: OverflowConfig, side: CloudSide, live: Live) -> Iterator[Problem]:
    known = {node.name: node for node in live.nodes}
    for line in side.lines:
        text = gateway.node_line(line, side.gres)
        if missing := [name for name in line.names if name not in known]:
            yield Problem(what=f"there is no node {compress(missing)}", paste=text)
        for name in line.names:
            if name in known:
                yield from _node(known[name], text, side)


def _node(node: SlurmNode, line: str, side: CloudSide) -> Iterator[Problem]:
    if any(word in node.state for word in _BAD) or node.state.endswith("*"):
        why = f" ({node.reason})" if node.reason else ""
        low = "memory" in node.reason.lower() or "socket" in node.reason.lower() or "cpu" in node.reason.lower()
        paste = (
            "SlurmdParameters=config_overrides   # or less memory for it, and gateway/slurmd.conf for its CPUs"
            if low
            else f"systemctl restart slurmd   # on its gateway, then: scontrol update nodename={node.name} state=resume"
        )
        yield Problem(what=f"node {node.name} is {node.state}{why}", paste=paste)
    for name in (side.gres.name, side.gres.memory) if side.gres else ():
        items = [item for item in node.gres if item.name == name]
        has = sum(item.count for item in items)
        if has != gateway.TOTAL and not (has == 0 and any(item.type for item in items)):
            yield Problem(what=f"node {node.name} has {has} of {name}, not {gateway.TOTAL}", paste=line)


def _lua(config: OverflowConfig, _: CloudSide, live: Live) -> Iterator[Problem]:
    """Only what can be read here."""
    script = live.job_submit
    name = re.escape(config.partition)
    if script and not re.search(rf"(cloud|CLOUD)\b.*=.*[\"']{name}[\"']", script.text):
        what = f"{script.path} does not name partition {config.partition}: what can't run elsewhere is not refused"
        yield Problem(what=what, paste=f'vgpu.cloud = "{config.partition}"')
