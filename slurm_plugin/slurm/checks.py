"""What of a live Slurm is not as the pool needs it: one finding a fault, with the line to paste. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from slurm_plugin.ports import SlurmNode
from slurm_plugin.slurm import gres_file, render
from slurm_plugin.slurm.hostlist import compress, expand
from slurm_plugin.slurm.site import NodeLine, SlurmSide


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    code: str  # stable, for scripts
    what: str  # the fault, one line
    why: str  # what it does to jobs
    paste: str  # the line or command that mends it


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What Slurm says of itself, and what could be read of its files."""

    config: Mapping[str, str]  # `scontrol show config`
    partitions: Mapping[str, Mapping[str, str]]  # `scontrol show partition`
    nodes: tuple[SlurmNode, ...]
    gres_conf: str = ""  # gres.conf's text, empty when it is not there
    hooks: Mapping[str, str] = field(default_factory=dict)  # Prolog, Epilog, TaskProlog -> texts of what they run


def check(side: SlurmSide, live: Live) -> tuple[Finding, ...]:
    """Every fault, cluster-wide ones first. Raises ConfigError when a host list of Slurm's cannot be read."""
    checks: tuple[Callable[[SlurmSide, Live], Iterator[Finding]], ...] = (
        _lists,
        _limits,
        _hooks,
        _memory,
        _partitions,
        _wait_partition,
        _nodes,
        gres_conf_findings,
    )
    return tuple(finding for one in checks for finding in one(side, live))


def _lists(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """Settings that are lists: what must be in them."""
    why = {
        "GresTypes": "slurmctld and every client refuse a GRES they do not know",
        "PrologFlags": "without Alloc, salloc and srun start before their slice is bound",
        "JobSubmitPlugins": "without it `vgpu:20gb` is a count of 20,000,000,000 to Slurm, and no class is checked",
        "CliFilterPlugins": "without it srun refuses `vgpu:20gb` inside a job, and before 23.11 outside of one too",
        "AccountingStorageTRES": "slices can be neither limited nor accounted",
    }
    wanted = render.settings(side)
    for name, text in why.items():
        has = [value for value in live.config.get(name, "").replace(" ", "").split(",") if value]
        plain = {
            value.removeprefix(f"{name}/").removeprefix("job_submit/").removeprefix("cli_filter/") for value in has
        }
        lacks = [value for value in wanted.get(name, "").split(",") if value and value not in plain]
        if lacks:
            kept = [value for value in has if value not in ("none", "cli_filter/none", "job_submit/none")]
            yield Finding(
                code=f"{_kebab(name)}",
                what=f"{name} lacks {', '.join(lacks)}",
                why=text,
                paste=f"{name}={','.join([*kept, *lacks])}",
            )


def _limits(_: SlurmSide, live: Live) -> Iterator[Finding]:
    for name, why in (
        ("PrologEpilogTimeout", "a prolog that waits for a slice is killed, and that drains the node"),
        ("BatchStartTimeout", "a job whose prolog waits for a slice is taken for lost when slurmd registers"),
    ):
        value = live.config.get(name, "65534").split()[0]
        if value.isdecimal() and int(value) < render.PROLOG_LIMIT_S:
            yield Finding(
                code=_kebab(name),
                what=f"{name} is {value} s, the pool's prolog may take up to {render.PROLOG_LIMIT_S} s",
                why=why,
                paste=f"{name}={render.PROLOG_LIMIT_S}",
            )
    if live.config.get("EnforcePartLimits", "NO").upper() == "NO":
        yield Finding(
            code="enforce-part-limits",
            what="EnforcePartLimits is NO",
            why="a job over its partition's limits is taken and waits for ever, with the reason PartitionDown",
            paste="EnforcePartLimits=ANY",
        )


def _hooks(side: SlurmSide, live: Live) -> Iterator[Finding]:
    for name, path, why in (
        ("Prolog", side.paths.prolog, "no job is given its slice"),
        ("Epilog", side.paths.epilog, "no slice comes back when a job ends"),
        ("TaskProlog", side.paths.task_prolog, "jobs do not see CUDA_VISIBLE_DEVICES, and one without a slice runs"),
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
        yield Finding(code=f"no-{_kebab(name)}", what=f"{name} {set_to}", why=why, paste=paste)


def _memory(side: SlurmSide, live: Live) -> Iterator[Finding]:
    if "select/linear" in live.config.get("SelectType", ""):
        yield Finding(
            code="select-linear",
            what="SelectType is select/linear",
            why="every job gets whole nodes, so that one slice closes a node",
            paste="SelectType=select/cons_tres",
        )
    if "_MEMORY" not in live.config.get("SelectTypeParameters", "").upper():
        return
    if any(_is_number(live.config.get(name, "")) for name in ("DefMemPerCPU", "DefMemPerNode")):
        return
    for name in side.partitions:
        partition = live.partitions.get(name, {})
        if not any(_is_number(partition.get(key, "")) for key in ("DefMemPerCPU", "DefMemPerNode")):
            yield Finding(
                code="def-mem",
                what=f"memory is a resource, and neither the cluster nor partition {name} has a DefMemPerCPU",
                why="a job without --mem takes all of a node's memory, and no other slice of that node can be used",
                paste="DefMemPerCPU=4000",
            )


def _partitions(side: SlurmSide, live: Live) -> Iterator[Finding]:
    pool_hosts = {host for line in side.nodes for host in line.hosts}
    for name in side.partitions:
        partition = live.partitions.get(name)
        if partition is None:
            yield Finding(
                code="no-partition",
                what=f"there is no partition {name}",
                why="pool.yaml names it as the pool's",
                paste=f"PartitionName={name} Nodes={side.hosts} State=UP",
            )
            continue
        if partition.get("OverSubscribe") == "EXCLUSIVE":
            yield Finding(
                code="exclusive",
                what=f"partition {name} has OverSubscribe=EXCLUSIVE",
                why="each job takes all of a node, with every class of it and the padding",
                paste=f"PartitionName={name} ... OverSubscribe=NO",
            )
        if not pool_hosts & set(expand(partition.get("Nodes", ""))):
            yield Finding(
                code="partition-nodes",
                what=f"partition {name} has none of the pool's nodes ({side.hosts})",
                why="no vgpu job can start there",
                paste=f"PartitionName={name} ... Nodes={side.hosts}",
            )


def _wait_partition(side: SlurmSide, live: Live) -> Iterator[Finding]:
    line = render.wait_partition_line(side, live.partitions)
    partition = live.partitions.get(side.wait_partition)

    def finding(code: str, what: str, why: str) -> Finding:
        return Finding(code=code, what=f"partition {side.wait_partition} {what}", why=why, paste=line)

    held = "a job whose class no node offers at the moment is refused, or held for good"
    if partition is None:
        yield finding("no-wait-partition", "is missing", held)
        return
    if partition.get("State") != "DOWN":
        yield finding("wait-partition-up", f"is {partition.get('State')}, not DOWN", "jobs would start through it")
    if partition.get("Hidden") != "YES":
        yield finding("wait-partition-shown", "is not hidden", "users see it in sinfo, and ask what it is")
    lacks = {host for pool_line in side.nodes for host in pool_line.hosts} - set(expand(partition.get("Nodes", "")))
    if lacks:
        yield finding("wait-partition-nodes", f"lacks {compress(lacks)}", held)
    differs = [
        f"{name}={partition.get(name, 'not set')} (the pool's: {value})"
        for name, value in render.mirrored_limits(side, live.partitions).items()
        if partition.get(name) != value and name != "DefaultTime"
    ]
    if differs:
        yield finding(
            "wait-partition-limits",
            f"has {', '.join(differs)}",
            "a job that fits only the wait partition's limits is taken, and waits for ever",
        )


def _nodes(side: SlurmSide, live: Live) -> Iterator[Finding]:
    by_name = {node.name: node for node in live.nodes}
    for line in side.nodes:
        missing = [host for host in line.hosts if host not in by_name]
        if missing:
            yield Finding(
                code="no-node",
                what=f"Slurm has no node {compress(missing)}",
                why="pool.yaml names it as the pool's",
                paste=render.node_line(side, NodeLine(hosts=tuple(missing), gpus=line.gpus)),
            )
        for host in line.hosts:
            if host in by_name:
                yield from _node(side, line, by_name[host])
    if side.gres.total % 1024 == 0:
        yield Finding(
            code="total-k",
            what=f"the total of {side.gres.name}, {side.gres.total}, is a multiple of 1024",
            why="Slurm prints it as a number of K, which other tools misread",
            paste="gres: {total: 1000}   # in pool.yaml",
        )


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
        yield Finding(
            code="gres-total",
            what=f"node {node.name} has {has} {name}, not {total}",
            why="the total must be the one of slurm.conf for ever: a registration with another drains the node",
            paste=render.node_line(side, NodeLine(hosts=(node.name,), gpus=line.gpus, other_gres=rest)),
        )


def gres_conf_findings(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """What in gres.conf ends live changes of counts."""
    hosts = {host for line in side.nodes for host in line.hosts}
    own = render.gres_types(side)
    for entry in gres_file.parse(live.gres_conf):
        if entry.name in own and entry.has_file:
            yield Finding(
                code="gres-file",
                what=f"gres.conf gives {entry.name} device files: {entry.text}",
                why="one such line, for any node, makes the counts of every node fixed until slurmctld restarts",
                paste=render.gres_conf(side).rstrip(),
            )
        if entry.name in own and entry.type:
            yield Finding(
                code="gres-type",
                what=f"gres.conf gives {entry.name} a type: {entry.text}",
                why="a class whose count is 0 when slurmd registers then takes back the file's counts",
                paste=render.gres_conf(side).rstrip(),
            )
        if (
            entry.detects_nvml
            and "gpu" in live.config.get("GresTypes", "").split(",")
            and (not entry.hosts or hosts & set(entry.hosts))
        ):
            yield Finding(
                code="autodetect",
                what=f"gres.conf detects GPUs by NVML on nodes of the pool: {entry.text}",
                why="slurmd counts MIG devices anew when it registers; after a change of layout that drains the node",
                paste=f"NodeName={side.hosts} AutoDetect=off",
            )


def _is_number(text: str) -> bool:
    return text.split(" ")[0].isdecimal() and int(text.split(" ")[0]) > 0


def _kebab(name: str) -> str:
    return "".join(f"-{char.lower()}" if char.isupper() and before.islower() else char.lower()
                   for before, char in zip(f" {name}", name, strict=False))  # fmt: skip
