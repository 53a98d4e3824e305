"""What of a live Slurm is not as the pool needs it. Pure: what was read in, findings out."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from slurm_plugin.findings import Finding, found
from slurm_plugin.ports import SlurmNode
from slurm_plugin.slurm import conf_files, render
from slurm_plugin.slurm.hostlist import compress, expand
from slurm_plugin.slurm.site import NodeLine, SlurmSide

OLDEST = (22, 5)  # of Slurm
STAMP_S = 5  # a file that is installed gets its time stamp, owner and mode one after the other
_WRITABLE_BY_OTHERS = 0o022
_RESETS = re.compile(
    r"nvidia-smi\b.*(\s-r\b|--gpu-reset|\s-mig\b|\smig\b.*\s-(dci|dgi|cgi|cci))|nvidia-mig-parted\s+apply|nvidia-mig-manager"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file on this host, as far as it could be read."""

    path: str
    text: str
    uid: int = 0
    mode: int = 0o644  # permission bits
    written_at: float = 0.0  # Unix seconds: the time stamp that Slurm compares
    changed_at: float = 0.0  # Unix seconds: when anything of it was changed, whatever its time stamp says

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What Slurm says of itself, and what could be read of its files on this host. What is not here says nothing."""

    config: Mapping[str, str]  # `scontrol show config`
    partitions: Mapping[str, Mapping[str, str]]  # `scontrol show partition`
    nodes: tuple[SlurmNode, ...]
    gres_conf: str = ""  # gres.conf's text, empty when it is not there
    hooks: Mapping[str, str] = field(default_factory=dict)  # Prolog, Epilog, ... -> paths and texts of what they run
    client_conf: File | None = None  # the slurm.conf of this host's clients, with what it includes
    cli_filter: File | None = None  # beside it
    job_submit: File | None = None  # job_submit.lua beside slurmctld's slurm.conf
    module: File | None = None  # vgpu.lua, there too
    own_module: str = ""  # vgpu.lua as this version has it
    hook_confs: tuple[File, ...] = ()
    answer: str | None = None  # to a request for a class that does not exist; None: not asked


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
        _nodes,
        gres_conf_findings,
        _client,
        _lua,
        _hook_confs,
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
    for name in ("GresTypes", "PrologFlags", "JobSubmitPlugins", "CliFilterPlugins", "AccountingStorageTRES"):
        has = _values(live.config, name)
        plain = {
            value.removeprefix(f"{name}/").removeprefix("job_submit/").removeprefix("cli_filter/") for value in has
        }
        lacks = [value for value in wanted.get(name, "").split(",") if value and value not in plain]
        if lacks:
            kept = [value for value in has if value not in ("none", "cli_filter/none", "job_submit/none")]
            yield found(_kebab(name), lacks=", ".join(lacks), values=",".join([*kept, *lacks]))
    flags = _values(live.config, "PrologFlags")
    for flag, code in (("Serial", "prolog-serial"), ("NoHold", "prolog-nohold")):
        if flag in flags:
            yield found(code, values=",".join(one for one in flags if one != flag))


def _values(config: Mapping[str, str], name: str) -> list[str]:
    return [value for value in config.get(name, "").replace(" ", "").split(",") if value]


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
            yield found("no-partition", partition=name, hosts=side.hosts)
            continue
        if partition.get("OverSubscribe") == "EXCLUSIVE":
            yield found("exclusive", partition=name)
        if not pool_hosts & set(expand(partition.get("Nodes", ""))):
            yield found("partition-nodes", partition=name, hosts=side.hosts)


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


def gres_conf_findings(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """What in gres.conf ends live changes of counts."""
    hosts = {host for line in side.nodes for host in line.hosts}
    own = render.gres_types(side)
    for entry in conf_files.parse(live.gres_conf):
        facts = {"name": entry.name, "text": entry.text, "line": render.gres_conf(side).rstrip()}
        if entry.name in own and entry.has_file:
            yield found("gres-file", **facts)
        if entry.name in own and entry.type:
            yield found("gres-type", **facts)
        if (
            entry.detects_nvml
            and "gpu" in _values(live.config, "GresTypes")
            and (not entry.hosts or hosts & set(entry.hosts))
        ):
            yield found("autodetect", text=entry.text, hosts=side.hosts)


def _client(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """What this host's own sbatch and srun read."""
    conf = live.client_conf
    if conf is None:
        return
    settings = conf_files.settings(conf.text)
    has = _values(settings, "grestypes")
    if lacks := [name for name in render.gres_types(side) if name not in has]:
        yield found("client-gres-types", path=conf.path, lacks=", ".join(lacks), values=",".join([*has, *lacks]))
    if "lua" in settings.get("clifilterplugins", "") and live.cli_filter is None:
        yield found("no-cli-filter", path=f"{conf.folder}/cli_filter.lua", folder=conf.folder)


def _lua(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """Does slurmctld run our job_submit, and the one that lies there?"""
    folder = live.job_submit.folder if live.job_submit else side.paths.lua
    if live.answer is not None and f"{side.gres.name}: no slice class" not in live.answer:
        ours = f"{side.gres.name}: slices can't be given out now" in live.answer
        yield found("lua-broken" if ours else "lua-not-run", answer=live.answer, folder=folder)
    if live.module and live.own_module and live.module.text != live.own_module:
        yield found("lua-differs", path=live.module.path, folder=folder)
    booted = live.config.get("BOOT_TIME", "")
    if live.job_submit and booted.isdecimal():
        for file in filter(None, (live.job_submit, live.module)):
            if file.changed_at > max(int(booted), live.job_submit.written_at) + STAMP_S:
                yield found("lua-unread", path=file.path, folder=folder)


def _hook_confs(_: SlurmSide, live: Live) -> Iterator[Finding]:
    for file in live.hook_confs:
        if file.uid != 0 or file.mode & _WRITABLE_BY_OTHERS:
            what = f"it belongs to uid {file.uid} and has mode {file.mode:04o}"
            yield found("hook-conf", path=file.path, what=what, line=f"chown root: {file.path}; chmod 644 {file.path}")


def _is_number(text: str) -> bool:
    return text.split(" ")[0].isdecimal() and int(text.split(" ")[0]) > 0


def _kebab(name: str) -> str:
    return "".join(f"-{char.lower()}" if char.isupper() and before.islower() else char.lower()
                   for before, char in zip(f" {name}", name, strict=False))  # fmt: skip
