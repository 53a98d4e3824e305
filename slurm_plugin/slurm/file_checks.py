"""What in the files of Slurm and of the pool on this host is not as the pool needs it. Pure."""

import re
from collections.abc import Iterator

from slurm_plugin.errors import SlurmError
from slurm_plugin.findings import Finding, found
from slurm_plugin.slurm import conf_files, render
from slurm_plugin.slurm.conf_files import values
from slurm_plugin.slurm.facts import Live
from slurm_plugin.slurm.gres import parse_gres
from slurm_plugin.slurm.site import NodeLine, SlurmSide

STAMP_S = 5  # a file that is installed gets its time stamp, owner and mode one after the other
_WRITABLE_BY_OTHERS = 0o022


def totals(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """slurm.conf and gres.conf must both have the pool's totals, whatever Slurm has at the moment."""
    conf = live.client_conf
    in_conf = conf_files.node_gres(conf.text) if conf and conf.path == live.config.get("SLURM_CONF") else {}
    in_gres_conf = [entry for entry in conf_files.parse(live.gres_conf) if entry.count and not entry.type]
    for line in side.nodes:
        for host in line.hosts:
            wanted = _counts(side.node_gres(NodeLine(hosts=(host,), gpus=line.gpus)))
            if side.gres.memory in wanted and not line.gpus:  # how many there are is not known yet
                del wanted[side.gres.memory]
            has = _counts(in_conf[host]) if host in in_conf else wanted
            told = {
                entry.name: _counts(f"{entry.name}:{entry.count}").get(entry.name, 0)
                for entry in in_gres_conf
                if not entry.hosts or host in entry.hosts
            }
            for name, total in wanted.items():
                fresh = render.node_line(side, NodeLine(hosts=(host,), gpus=line.gpus, other_gres="..."))
                facts = {"node": host, "name": name, "total": total}
                if has.get(name, 0) != total:
                    yield found("conf-total", file="slurm.conf", has=has.get(name, 0), line=fresh, **facts)
                if told.get(name, total) != total:
                    fresh = f"NodeName={host} Name={name} Count={total}"
                    yield found("conf-total", file="gres.conf", has=told[name], line=fresh, **facts)


def _counts(text: str) -> dict[str, int]:
    """Untyped counts by name. What can't be read says nothing: Slurm itself refuses it."""
    try:
        return {item.name: item.count for item in parse_gres(text) if not item.type}
    except SlurmError:
        return {}


def gres_conf(side: SlurmSide, live: Live) -> Iterator[Finding]:
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
            and "gpu" in values(live.config, "GresTypes")
            and (not entry.hosts or hosts & set(entry.hosts))
        ):
            yield found("autodetect", text=entry.text, hosts=side.hosts)


def client(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """What this host's own sbatch and srun read."""
    conf = live.client_conf
    if conf is None:
        return
    settings = conf_files.settings(conf.text)
    has = values(settings, "grestypes")
    if lacks := [name for name in render.gres_types(side) if name not in has]:
        yield found("client-gres-types", path=conf.path, lacks=", ".join(lacks), values=",".join([*has, *lacks]))
    if "lua" in settings.get("clifilterplugins", "") and live.cli_filter is None:
        yield found("no-cli-filter", path=f"{conf.folder}/cli_filter.lua", folder=conf.folder)


def lua(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """Does slurmctld run our job_submit, and the one that lies there?"""
    folder = live.job_submit.folder if live.job_submit else side.paths.lua
    unasked = live.answer is None or any(one.code == "client-gres-types" for one in client(side, live))
    if live.answer is not None and not unasked and f"{side.gres.name}: no slice class" not in live.answer:
        ours = f"{side.gres.name}: slices can't be given out now" in live.answer
        code = "lua-not-run" if not ours else "catalogue-unread" if "catalogue" in live.answer else "lua-broken"
        yield found(code, answer=live.answer, folder=folder)
    if live.module and live.own_module and live.module.text != live.own_module:
        yield found("lua-differs", path=live.module.path, folder=folder)
    booted = live.config.get("BOOT_TIME", "")
    if live.job_submit and booted.isdecimal():
        for file in filter(None, (live.job_submit, live.module)):
            if file.changed_at > max(int(booted), live.job_submit.written_at) + STAMP_S:
                yield found("lua-unread", path=file.path, folder=folder)


def job_ids(side: SlurmSide, live: Live) -> Iterator[Finding]:
    """Does slurmctld's slurm.conf have the file that the controller writes?"""
    conf = live.client_conf
    if not side.job_ids or conf is None or conf.path != live.config.get("SLURM_CONF"):
        return
    if "firstjobid" not in conf_files.settings(conf.text):
        yield found("no-job-ids", path=conf.path, job_ids=side.job_ids)


def owners(_: SlurmSide, live: Live) -> Iterator[Finding]:
    """Files that nobody may change but root, and SlurmUser what is slurmctld's."""
    for file in live.hook_confs:
        if what := others_can_write(file.uid, file.mode, {0}):
            yield found("hook-conf", path=file.path, what=what, line=f"chown root: {file.path}; chmod 644 {file.path}")
    slurm = re.search(r"\((\d+)\)", live.config.get("SlurmUser", ""))
    for file in filter(None, (live.job_submit, live.module)):
        if what := others_can_write(file.uid, file.mode, {0, int(slurm[1]) if slurm else 0}):
            yield found("lua-mode", path=file.path, what=what)


def others_can_write(uid: int, mode: int, owners: set[int]) -> str:
    """In words; "" when only they can."""
    return f"it belongs to uid {uid} and has mode {mode:04o}" if uid not in owners or mode & _WRITABLE_BY_OTHERS else ""
