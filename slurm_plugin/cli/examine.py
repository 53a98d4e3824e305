"""What `doctor` looks at: the controller's view, the catalogue, and Slurm. What can't be seen is a finding too."""

import asyncio
import hashlib
import os
import pwd
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.catalogue import parse
from slurm_plugin.cli.client import fetch_pool
from slurm_plugin.cli.doctor import Report, catalogue_findings, job_findings, pool_findings, without_doubles
from slurm_plugin.cli.options import Where
from slurm_plugin.cli.target import Target, pool_of, target_of
from slurm_plugin.cli.view import PoolView
from slurm_plugin.errors import ConfigError, LinkError, SlurmError
from slurm_plugin.findings import FAULTS, Finding, found, lasting
from slurm_plugin.link.munge import Munge
from slurm_plugin.pool import GresNames, Mode, NodeGroup, PoolConfig
from slurm_plugin.ports import QueuedJob
from slurm_plugin.slurm.checks import check
from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.facts import Live
from slurm_plugin.slurm.file_checks import others_can_write
from slurm_plugin.slurm.live import read_live
from slurm_plugin.slurm.process import Site
from slurm_plugin.slurm.queue import Pool
from slurm_plugin.slurm.site import side_of

SECOND_LOOK_S = 3.0  # what is wrong for the moment is right again by then
OF_SLURM = ("slurm.conf as slurmctld has it", "partitions", "nodes", "gres.conf", "hooks", "job_submit", "this client")


def examine(where: Where) -> Report:
    """Look at all that this host can see. Raises ConfigError when it is not known where to look."""
    wrong: tuple[Finding, ...] = ()
    try:
        pool = pool_of(where)
    except ConfigError as error:
        pool, wrong = None, (found("pool-file", error=error),)
    target = target_of(where)
    report = _look(pool, target)
    if any(FAULTS[finding.code].passing for finding in report.findings):
        time.sleep(SECOND_LOOK_S)
        second = _look(pool, target)
        report = Report(checked=second.checked, findings=lasting(report.findings, second.findings))
    return Report(checked=report.checked, findings=(*wrong, *report.findings))


def _look(pool: PoolConfig | None, target: Target) -> Report:
    checked, findings, view = ["controller"], _munge(target), None
    try:
        view = fetch_pool(target)
        findings += _pool(view, pool)
        checked[0] = f"controller at {target.address} ({len(view.nodes)} nodes)"
    except LinkError as error:
        findings += (found("controller-away", error=error),)
    if pool is not None:
        report = examine_slurm(pool, view)
        checked += report.checked
        # A pool that is only observed has no catalogue, and gives nothing out.
        none_yet = pool.mode is Mode.OBSERVE and not pool.controller.catalogue.exists()
        findings += tuple(one for one in report.findings if not (none_yet and one.code == "catalogue-unread"))
        if not none_yet:
            checked.append("catalogue")
            findings += _catalogue(pool.controller.catalogue, view, pool.controller.user)
    return Report(checked=tuple(checked), findings=without_doubles(findings))


def _munge(target: Target) -> tuple[Finding, ...]:
    try:
        asyncio.run(Munge(target.munge_socket).encode("doctor", for_uid=os.getuid()))
    except LinkError as error:
        return (found("munge", error=error),)
    return ()


def _pool(view: PoolView, pool: PoolConfig | None) -> tuple[Finding, ...]:
    if pool is None:
        return pool_findings(view, GresNames(), time.time())
    groups = _groups(pool)
    return pool_findings(view, pool.gres, time.time(), lambda node, index: node in groups and groups[node].takes(index))


def _groups(pool: PoolConfig) -> Mapping[str, NodeGroup]:
    return {host: group for group in pool.groups for host in group.hosts}


def examine_slurm(pool: PoolConfig, view: PoolView | None = None) -> Report:
    """Compare the running Slurm with what the pool needs.

    `view` says how many GPUs each node really has, and what jobs hold; without one neither is compared.
    """
    try:
        slurm = asyncio.run(_read(pool))
    except SlurmError as error:
        return Report(checked=(), findings=(found("slurm-away", error=error),))
    groups = _groups(pool)
    gpus = {node.name: len(node.gpus) for node in (view.nodes if view else ()) if node.name in groups and node.gpus}
    accounting = "slurmdbd" in slurm.live.config.get("AccountingStorageType", "")
    findings = check(side_of(pool, gpus, accounting=accounting), slurm.live)
    if view is None:
        return Report(checked=OF_SLURM, findings=findings)
    findings += job_findings(view, slurm.jobs, pool.gres, pool.wait_partition, time.time())
    return Report(checked=(*OF_SLURM, "jobs"), findings=findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slurm:
    live: Live
    jobs: tuple[QueuedJob, ...]


async def _read(pool: PoolConfig) -> _Slurm:
    place = pool.controller
    names = Pool(gres=pool.gres.name, wait_partition=pool.wait_partition)
    slurm = SlurmCommands(Site(conf=place.slurm_conf, bin_dir=place.slurm_bin), names)
    return _Slurm(live=await read_live(slurm, place.slurm_conf, pool.gres.name), jobs=await slurm.vgpu_jobs())


def _catalogue(path: Path, view: PoolView | None, user: str = "root") -> tuple[Finding, ...]:
    try:
        facts, text = path.stat(), path.read_text()
        catalogue = parse(text)
    except FileNotFoundError:
        return (found("no-catalogue", path=path),)
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        return (found("catalogue", path=path, error=error),)
    findings: tuple[Finding, ...] = ()
    written = view is not None and view.mode != Mode.OBSERVE  # by a controller that only observes it never is
    if view and written and view.catalogue_sha256 not in ("", hashlib.sha256(text.encode()).hexdigest()):
        findings += (found("catalogue-old", path=path),)
    elif view and written:
        findings += catalogue_findings(catalogue, view)
    if what := others_can_write(facts.st_uid, stat.S_IMODE(facts.st_mode), {0, _uid(user)}):
        findings += (found("catalogue-mode", path=path, what=what, user=user),)
    return findings


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:  # of another host
        return 0
