"""`fed render`: what the Slurm here needs for the virtual nodes of fed.yaml, and whether it has it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from federation.cli.check import FOUND
from federation.cli.options import DEFAULT_CONFIG, Config, Json
from federation.cli.render import printable
from federation.errors import ConfigError, Unavailable
from slurm_plugin.cli.output import emit, emit_document

if TYPE_CHECKING:
    from federation.config import FedConfig
    from federation.config_overflow import OverflowConfig
    from federation.overflow.checks import Problem
    from slurm_plugin.pool import GresNames

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedRendered:
    parts: dict[str, str]  # by the name of the file they are for


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemView:
    what: str
    paste: str  # line or command that mends it


@dataclass(frozen=True, slots=True, kw_only=True)
class FedChecked:
    problems: tuple[ProblemView, ...]


def render(
    part: Annotated[
        str, typer.Argument(metavar="[PART]", help="slurm.conf, gres.conf, ...: one of what is printed without it.")
    ] = ALL,
    slices: Annotated[
        bool, typer.Option("--slices/--no-slices", envvar="FED_RENDER_SLICES", help="Does the cluster have vgpu?")
    ] = True,
    check: Annotated[
        bool,
        typer.Option(
            "--check", envvar="FED_RENDER_CHECK", help="Compare the running Slurm; exit code 1 if it differs."
        ),
    ] = False,
    config: Config = DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """What to paste into Slurm's configuration for the virtual nodes. docs/overflow.md has the order of steps."""
    from federation.config import load_config
    from federation.overflow.render import PARTS, side_of, texts

    found = overflow_of(load_config(config))
    if check:
        _show(problems_of(found), json=json)
        return
    if part not in (ALL, *PARTS):
        raise ConfigError(f"there is no part {part}", hint=f"one of {', '.join(PARTS)}")
    side = side_of(found, _gres(found) if slices else None)
    wanted = {name: text for name, text in texts(found, side).items() if part in (ALL, name)}
    if json:
        emit_document("fed-render", FedRendered(parts=wanted))
        return
    for name, text in wanted.items():
        emit([f"##### {name}", *text.splitlines(), ""] if part == ALL else text.splitlines())


def _show(problems: "tuple[Problem, ...]", *, json: bool) -> None:
    if json:
        views = tuple(ProblemView(what=one.what, paste=one.paste) for one in problems)
        emit_document("fed-render-check", FedChecked(problems=views))
    else:
        emit(line for one in problems for line in (printable(one.what), f"    {printable(one.paste)}"))
        if not problems:
            emit(["Slurm is as the virtual nodes need it"])
    if problems:
        raise typer.Exit(FOUND)


def overflow_of(config: "FedConfig") -> "OverflowConfig":
    """Raises ConfigError when nothing flows over here."""
    if config.overflow is None:
        raise ConfigError("fed.yaml has no overflow: no job of a Slurm here runs elsewhere", hint="docs/overflow.md")
    return config.overflow


def _gres(config: "OverflowConfig") -> "GresNames":
    from slurm_plugin.config import load_pool
    from slurm_plugin.errors import ConfigError as PoolError
    from slurm_plugin.pool import GresNames

    if config.pool_yaml is None:
        return GresNames()
    try:
        return load_pool(config.pool_yaml).gres
    except PoolError as error:
        raise ConfigError(str(error), hint=error.hint) from None


def problems_of(config: "OverflowConfig") -> "tuple[Problem, ...]":
    """What of the running Slurm is not as it must be. Raises Unavailable, ConfigError."""
    import asyncio

    from federation.overflow import render
    from federation.overflow.checks import check
    from slurm_plugin.errors import ConfigError as BadText
    from slurm_plugin.errors import SlurmError
    from slurm_plugin.slurm.commands import SlurmCommands
    from slurm_plugin.slurm.conf_files import values
    from slurm_plugin.slurm.live import read_live

    gres = _gres(config)
    try:
        live = asyncio.run(read_live(SlurmCommands(config.slurm), config.slurm.conf, gres.name))
        has_slices = gres.name in values(live.config, "GresTypes")
        return check(config, render.side_of(config, gres if has_slices else None), live)
    except SlurmError as error:
        raise Unavailable(str(error), hint=error.hint) from None
    except BadText as error:
        raise ConfigError(str(error), hint=error.hint) from None
