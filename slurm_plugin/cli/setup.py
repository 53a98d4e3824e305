"""`vgpu render`: what a site's Slurm needs, to be pasted; and whether the running Slurm has it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_plugin.cli.options import Json, Where
from slurm_plugin.cli.output import emit, emit_document, width
from slurm_plugin.errors import ConfigError, SlurmError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slurm_plugin.pool import PoolConfig
    from slurm_plugin.slurm.site import SlurmSide

FOUND = 1
SLURM_S = 5.0  # for Slurm's answer: without one there are no limits to repeat


class Part(StrEnum):
    ALL = "all"
    SLURM_CONF = "slurm.conf"
    GRES_CONF = "gres.conf"
    CHAIN = "chain"
    JOB_SUBMIT = "job_submit.lua"
    CLI_FILTER = "cli_filter.lua"
    AGENT = "vgpu-agent.service"
    CONTROLLER = "vgpu-controller.service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    parts: dict[str, str]  # by the name of the file they are for


def render(
    context: typer.Context,
    part: Annotated[
        Part, typer.Argument(metavar="[PART]", help=f"One of: {', '.join(Part)}.", show_default=False)
    ] = Part.ALL,
    accounting: Annotated[
        bool,
        typer.Option("--accounting", envvar="VGPU_RENDER_ACCOUNTING", help="Slurm has slurmdbd: account slices too."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", envvar="VGPU_RENDER_CHECK", help="Compare the running Slurm; exit code 1 if it differs."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """What to paste into Slurm's configuration. `chain` is for sites with prologs of their own."""
    pool = _pool(context.obj)
    if check:
        from slurm_plugin.cli.doctor import report_lines
        from slurm_plugin.cli.examine import examine_slurm

        report = examine_slurm(pool)
        if json:
            emit_document("check", report)
        else:
            emit(report_lines(report, width()))
        if report.findings:
            raise typer.Exit(FOUND)
        return
    from slurm_plugin.slurm.site import side_of

    live = _partitions(pool) if part in (Part.ALL, Part.SLURM_CONF) else {}
    texts = _texts(side_of(pool, {}, accounting=accounting), live)
    wanted = {name: text for name, text in texts.items() if part in (Part.ALL, name)}
    if json:
        emit_document("render", Rendered(parts={name.value: text for name, text in wanted.items()}))
    else:
        for name, text in wanted.items():
            emit([f"##### {name}", *text.splitlines(), ""] if part is Part.ALL else text.splitlines())


def _partitions(pool: "PoolConfig") -> dict[str, dict[str, str]]:
    """Those of the running Slurm, whose limits the wait partition must have too; none where it does not answer."""
    import asyncio

    from slurm_plugin.slurm.commands import SlurmCommands
    from slurm_plugin.slurm.process import Site

    place = pool.controller
    site = Site(conf=place.slurm_conf, bin_dir=place.slurm_bin, timeout_s=SLURM_S)
    try:
        return asyncio.run(SlurmCommands(site).partitions())
    except SlurmError:
        return {}


def _texts(side: "SlurmSide", live: "Mapping[str, Mapping[str, str]]") -> dict[Part, str]:
    from slurm_plugin.slurm import chain
    from slurm_plugin.slurm import render as conf

    return {
        Part.SLURM_CONF: conf.slurm_conf(side, live),
        Part.GRES_CONF: conf.gres_conf(side),
        Part.CHAIN: chain.prologs(side),
        Part.JOB_SUBMIT: chain.job_submit_lua(side),
        Part.CLI_FILTER: chain.cli_filter_lua(side),
        Part.AGENT: chain.agent_unit(side),
        Part.CONTROLLER: chain.controller_unit(side),
    }


def _pool(where: Where) -> "PoolConfig":
    from slurm_plugin.config import load_pool

    pool = load_pool(where.config)
    for group in pool.groups:
        if not group.count:
            raise ConfigError(
                f"{where.config}: how many GPUs has {group.hosts[0]}? Its weight in slurm.conf must never change",
                hint="write `count:` in its entry under nodes: all GPUs that a node has, in the pool or not",
            )
    return pool
