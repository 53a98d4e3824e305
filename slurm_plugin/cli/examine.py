"""What `doctor` looks at: the controller's view, the catalogue, and Slurm. What can't be seen is a finding too."""

import asyncio
import time
from pathlib import Path

from slurm_plugin.catalogue import parse
from slurm_plugin.cli.client import fetch_pool
from slurm_plugin.cli.doctor import PASSING, Report, catalogue_findings, lasting, pool_findings
from slurm_plugin.cli.options import Where
from slurm_plugin.cli.target import Target, pool_of, target_of
from slurm_plugin.cli.view import PoolView
from slurm_plugin.errors import ConfigError, LinkError, SlurmError
from slurm_plugin.pool import GresNames, PoolConfig
from slurm_plugin.slurm.checks import Finding, Live, check
from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.process import Site
from slurm_plugin.slurm.site import side_of

SECOND_LOOK_S = 3.0  # a count that is wrong for the moment is right again by then
WRITABLE_BY_OTHERS = 0o022
HOOKS = ("Prolog", "Epilog", "TaskProlog")
SCRIPTS_MAX = 100  # of one hook setting
TEXT_BYTES = 1 << 20  # of one file


def examine(where: Where) -> Report:
    """Look at all that this host can see. Raises ConfigError when it is not known where to look."""
    pool, target = pool_of(where), target_of(where)
    checked = ["controller"]
    findings: tuple[Finding, ...] = ()
    view: PoolView | None = None
    try:
        view, findings = _controller(target, pool)
        checked[0] = f"controller at {target.address} ({len(view.nodes)} nodes)"
    except LinkError as error:
        findings = (_away(error),)
    if pool is not None:
        report = examine_slurm(pool, view)
        checked += report.checked
        findings += report.findings
        if pool.controller.catalogue.exists():
            checked.append("catalogue")
            findings += _catalogue(pool.controller.catalogue, view)
    return Report(checked=tuple(checked), findings=findings)


def _away(error: LinkError) -> Finding:
    return Finding(
        code="controller-away",
        what=str(error),
        why="jobs still start on what is published, but counts and layouts do not move",
        paste="systemctl restart vgpu-controller; journalctl -u vgpu-controller --since -10min",
    )


def _controller(target: Target, pool: PoolConfig | None) -> tuple[PoolView, tuple[Finding, ...]]:
    def look() -> tuple[PoolView, tuple[Finding, ...]]:
        view = fetch_pool(target)
        if pool is None:
            return view, pool_findings(view, GresNames(), time.time())
        groups = {host: group for group in pool.groups for host in group.hosts}
        return view, pool_findings(
            view, pool.gres, time.time(), lambda node, index: node in groups and groups[node].takes(index)
        )

    view, findings = look()
    if any(finding.code in PASSING for finding in findings):
        time.sleep(SECOND_LOOK_S)
        view, second = look()
        findings = lasting(findings, second)
    return view, findings


def examine_slurm(pool: PoolConfig, view: PoolView | None = None) -> Report:
    """Compare the running Slurm with what the pool needs. `view` says how many GPUs each node really has."""
    place = pool.controller
    try:
        live = asyncio.run(_live(Site(conf=place.slurm_conf, bin_dir=place.slurm_bin)))
    except SlurmError as error:
        away = Finding(
            code="slurm-away",
            what=str(error),
            why="nothing of Slurm's side could be checked",
            paste="systemctl status slurmctld",
        )
        return Report(checked=(), findings=(away,))
    groups = {host: group for group in pool.groups for host in group.hosts}
    gpus = {
        node.name: sum(groups[node.name].takes(gpu.index) for gpu in node.gpus)
        for node in (view.nodes if view else ())
        if node.name in groups and node.gpus
    }
    accounting = "slurmdbd" in live.config.get("AccountingStorageType", "")
    findings = check(side_of(pool, gpus, accounting=accounting), live)
    return Report(
        checked=("slurm.conf as slurmctld has it", "partitions", "nodes", "gres.conf", "hooks"), findings=findings
    )


async def _live(site: Site) -> Live:
    slurm = SlurmCommands(site)
    config, partitions, nodes = await slurm.config(), await slurm.partitions(), await slurm.nodes()
    gres_conf = Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf")).with_name("gres.conf")
    hooks = {name: text for name in HOOKS if (text := _hook_text(config.get(name, ""))) is not None}
    return Live(config=config, partitions=partitions, nodes=nodes, gres_conf=_text(gres_conf) or "", hooks=hooks)


def _hook_text(setting: str) -> str | None:
    """Names, targets and texts of the scripts that one of Slurm's hook settings runs; None when this host has none."""
    scripts = [
        Path(path) for pattern in setting.split(",") if pattern for path in sorted(Path("/").glob(pattern.lstrip("/")))
    ]
    if not scripts:
        return None
    return "\n".join(f"{script} {script.resolve()} {_text(script) or ''}" for script in scripts[:SCRIPTS_MAX])


def _text(path: Path) -> str | None:
    try:
        with path.open(errors="replace") as file:
            return file.read(TEXT_BYTES)
    except OSError:
        return None


def _catalogue(path: Path, view: PoolView | None) -> tuple[Finding, ...]:
    try:
        mode = path.stat().st_mode
        catalogue = parse(path.read_text())
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        return (
            Finding(
                code="catalogue",
                what=f"{path}: {error}",
                why="job_submit refuses every vgpu request while the catalogue is missing or broken",
                paste="systemctl restart vgpu-controller  # it writes the catalogue anew",
            ),
        )
    found = catalogue_findings(catalogue, view) if view else ()
    if mode & WRITABLE_BY_OTHERS:
        found += (
            Finding(
                code="catalogue-mode",
                what=f"{path} can be written by others than its owner",
                why="who writes the catalogue decides what jobs get",
                paste=f"chmod 644 {path}",
            ),
        )
    return found
