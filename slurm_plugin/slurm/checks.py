"""What of a live Slurm is not as the pool needs it. Pure: what was read in, findings out."""

import re
import shlex
from collections.abc import Callable, Iterator

from slurm_plugin.findings import Finding, found
from slurm_plugin.nearest import nearest
from slurm_plugin.ports import SlurmNode
from slurm_plugin.slurm import file_checks, render
from slurm_plugin.slurm.conf_files import values
from slurm_plugin.slurm.facts import Live
from slurm_plugin.slurm.hostlist import compress, expand
from slurm_plugin.slurm.site import NodeLine, SlurmSide

OLDEST = (22, 5)  # of Slurm
_HOOK_FAILED = re.compile(r"(Prolog|Epilog) error\b")  # Slurm's own words
_RESETS = re.compile(
    r"nvidia-smi\b.*(\s-r\b|--gpu-reset|\s-mig\b|\smig\b.*\s-(dci|dgi|cgi|cci))|nvidia-mig-parted\s+apply|nvidia-mig-manager"
)


def check(side: SlurmSide, live: Live) -> tuple[Finding, ...]:
    """Every fault, cluster-wide ones first. Raises ConfigError when a host list of Slurm's cannot be read."""
    checks: tuple[Callable[[SlurmSide, Live], Iterator[Finding]], ...] = (
        _version,
        _lists,
        _limits,
        _hooks,
        _resets,
        _memory,
        _partitions,
        _wait_partition,
        _differing,
        _nodes,
        _elsewhere,
        file_checks.totals,
        file_checks.gres_conf,
        file_checks.client,
        file_checks.lua,
        file_checks.job_ids,
        file_checks.owners,
    )
    return tuple(finding for one in checks for finding in one(side, live))


def _version(_: SlurmSide, live: Live) -> Iterator[Finding]:
    version = live.config.get("SLURM_VERSION", "")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        yield found("slurm-version", version=version)


def _lists(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """Settings that are lists: what must be in them, and what must not."""
    wanted = render.settings(side)
    for name in ("GresTypes", "PrologFlags", "JobSubmitPlugins", "AccountingStorageTRES"):
        has = values(live.config, name)
        plain = {value.removeprefix(f"{name}/").removeprefix("job_submit/") for value in has}
        lacks = [value for value in wanted.get(name, "").split(",") if value and value not in plain]
        if lacks:
            kept = [value for value in has if value not in ("none", "job_submit/none")]
            yield found(_kebab(name), lacks=", ".join(lacks), values=",".join([*kept, *lacks]))
    flags = values(live.config, "PrologFlags")
    for flag, code in (("Serial", "prolog-serial"), ("NoHold", "prolog-nohold")):
        if flag in flags:
            yield found(code, values=",".join(one for one in flags if one != flag))


def _limits(_: SlurmSide, live: Live) -> Iterator[Finding]:
    for name in ("PrologEpilogTimeout", "BatchStartTimeout"):
        value = live.config.get(name, "65534").split()[0]
        if value.isdecimal() and int(value) < render.PROLOG_LIMIT_S:
            yield found(_kebab(name), value=value, limit=render.PROLOG_LIMIT_S)
    if live.config.get("SlurmdTimeout", "300").split()[0] == "0":
        yield found("slurmd-timeout")
    if live.config.get("EnforcePartLimits", "NO").upper() == "NO":
        yield found("enforce-part-limits")


def _hooks(side: SlurmSide, live: Live) -> Iterator[Finding]:
    for name, path in (
        ("Prolog", side.paths.prolog),
        ("Epilog", side.paths.epilog),
        ("TaskProlog", side.paths.task_prolog),
    ):
        program = path.rpartition("/")[2]
        value = live.config.get(name, "")
        if program in value or program in live.hooks.get(name, ""):
            continue
        # A script or folder of the site's that could not be read here may well call ours.
        if value and name not in live.hooks:
            continue
        set_to = f"is {value}, which does not run {program}" if value else "is not set"
        paste = f"{path} || exit 1" if value and name == "TaskProlog" else path if value else f"{name}={path}"
        yield found(f"no-{_kebab(name)}", is_set=set_to, line=paste)


def _resets(_: SlurmSide, live: Live) -> Iterator[Finding]:
    for name, text in live.hooks.items():
        for line in text.splitlines():
            if _RESETS.search(line.split("#")[0]):
                yield found("resets-gpu", setting=name, line=line.strip())


def _memory(side: SlurmSide, live: Live) -> Iterator[Finding]:
    if "select/linear" in live.config.get("SelectType", ""):
        yield found("select-linear")
    if "_MEMORY" not in live.config.get("SelectTypeParameters", "").upper():
        return
    if any(_is_number(live.config.get(name, "")) for name in ("DefMemPerCPU", "DefMemPerNode")):
        return
    for name in side.partitions:
        partition = live.partitions.get(name, {})
        if not any(_is_number(partition.get(key, "")) for key in ("DefMemPerCPU", "DefMemPerNode")):
            yield found("def-mem", partition=name)


def _partitions(side: SlurmSide, live: Live) -> Iterator[Finding]:
    pool_hosts = {host for line in side.nodes for host in line.hosts}
    for name in side.partitions:
        partition = live.partitions.get(name)
        if partition is None:
            others = sorted(live.partitions.keys() - {side.wait_partition})
            if near := nearest(name, others):
                yield found("misspelt-partition", partition=name, near=near)
            else:
                yield found("no-partition", partition=name, hosts=side.hosts)
            continue
        if partition.get("OverSubscribe") == "EXCLUSIVE" or partition.get("Exclusive") == "NODE":  # from 26.05 on
            yield found("exclusive", partition=name)
        if not pool_hosts & set(expand(partition.get("Nodes", ""))):
            yield found("partition-nodes", partition=name, hosts=side.hosts)
        if partition.get("PriorityTier") == "0":
            yield found("partition-tier", partition=name)


def _wait_partition(side: SlurmSide, live: Live) -> Iterator[Finding]:
    line = render.wait_partition_line(side, live.partitions)
    partition = live.partitions.get(side.wait_partition)
    facts = {"partition": side.wait_partition, "line": line}
    if partition is None:
        yield found("no-wait-partition", **facts)
        return
    if partition.get("State") != "DOWN":
        yield found("wait-partition-up", state=partition.get("State"), **facts)
    if partition.get("Hidden") != "YES":
        yield found("wait-partition-shown", **facts)
    if (tier := partition.get("PriorityTier", "0")) != "0":
        yield found("wait-partition-tier", tier=tier, **facts)
    lacks = {host for pool_line in side.nodes for host in pool_line.hosts} - set(expand(partition.get("Nodes", "")))
    if lacks:
        yield found("wait-partition-nodes", hosts=compress(lacks), **facts)
    differs = [
        f"{name}={partition.get(name, 'not set')} (the pool's: {value})"
        for name, value in render.mirrored_limits(side, live.partitions).items()
        if partition.get(name) != value and name != "DefaultTime"
    ]
    if differs:
        yield found("wait-partition-limits", differs=", ".join(differs), **facts)


def _differing(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """Limits that the wait partition can't repeat, as the pool's partitions differ."""
    partitions = {name: live.partitions[name] for name in side.partitions if name in live.partitions}
    for limit, unlimited in render.MIRRORED_LIMITS.items():
        values = {name: partition.get(limit, unlimited) for name, partition in partitions.items()}
        if limit in render.HELD_AT_SUBMIT or len(set(values.values())) < 2:
            continue
        value = next(one for one in values.values() if one != unlimited)
        told = ", ".join(f"{one or 'none'} in {name}" for name, one in values.items())
        other = next(name for name, one in values.items() if one != value)
        yield found("partitions-differ", limit=limit, told=told, partition=other, value=value)


def _nodes(side: SlurmSide, live: Live) -> Iterator[Finding]:
    by_name = {node.name: node for node in live.nodes}
    for line in side.nodes:
        missing = tuple(host for host in line.hosts if host not in by_name)
        if missing:
            fresh = render.node_line(side, NodeLine(hosts=missing, gpus=line.gpus))
            yield found("no-node", hosts=compress(missing), line=fresh)
        for host in line.hosts:
            if host in by_name:
                yield from _node(side, line, by_name[host])
    if side.gres.total % 1024 == 0:
        yield found("total-k", name=side.gres.name, total=side.gres.total)


def _elsewhere(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """Nodes that are not the pool's run its hooks too, and may lack them."""
    paths = {"Prolog": side.paths.prolog, "Epilog": side.paths.epilog}
    named = [path for name, path in paths.items() if path.rpartition("/")[2] in live.config.get(name, "")]
    ours = {host for line in side.nodes for host in line.hosts}
    drained = {node.name for node in live.nodes if "DRAIN" in node.state and _HOOK_FAILED.match(node.reason)}
    if named and (others := drained - ours):
        hosts = compress(others)
        facts = {"host": shlex.quote(hosts), "named": named[0], "folder": side.paths.programs}
        yield found("drained-elsewhere", hosts=hosts, **facts)


def _node(side: SlurmSide, line: NodeLine, node: SlurmNode) -> Iterator[Finding]:
    wanted = dict(part.split(":") for part in side.node_gres(NodeLine(hosts=(node.name,), gpus=line.gpus)).split(","))
    for name, total in wanted.items():
        items = [item for item in node.gres if item.name == name]
        has = sum(item.count for item in items)
        # After a reconfigure 22.05 shows each type with 0 until the controller publishes; GPUs 0: not known yet.
        reverted = has == 0 and any(item.type for item in items)
        if has == int(total) or reverted or (name == side.gres.memory and not line.gpus):
            continue
        others = tuple(item for item in node.gres if item.name not in wanted)
        rest = ",".join(":".join(filter(None, (item.name, item.type, str(item.count)))) for item in others)
        fresh = render.node_line(side, NodeLine(hosts=(node.name,), gpus=line.gpus, other_gres=rest))
        yield found("gres-total", node=node.name, has=has, name=name, total=total, line=fresh)


def _is_number(text: str) -> bool:
    return text.split(" ")[0].isdecimal() and int(text.split(" ")[0]) > 0


def _kebab(name: str) -> str:
    return "".join(f"-{char.lower()}" if char.isupper() and before.islower() else char.lower()
                   for before, char in zip(f" {name}", name, strict=False))  # fmt: skip
