"""The options that several commands share, each with its environment variable."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_CONFIG = Path("/etc/vgpu/pool.yaml")

Json = Annotated[bool, typer.Option("--json", envvar="VGPU_JSON", help="Print one JSON document (docs/json.md).")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", envvar="VGPU_DRY_RUN", help="Say what would change; change nothing.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which pool the command line is about, as the options before the command say it."""

    config: Path
    controller: str  # host:port; empty: as pool.yaml says
    controller_uid: int | None  # None: as pool.yaml says
    munge_socket: Path | None  # None: as pool.yaml says


def where(
    context: typer.Context,
    config: Annotated[
        Path, typer.Option("--config", envvar="VGPU_POOL_CONFIG", metavar="FILE", help="The pool's pool.yaml.")
    ] = DEFAULT_CONFIG,
    controller: Annotated[
        str,
        typer.Option(
            "--controller",
            envvar="VGPU_CONTROLLER",
            metavar="HOST:PORT",
            help="Where the controller listens, when not as pool.yaml says.",
        ),
    ] = "",
    controller_uid: Annotated[
        int | None,
        typer.Option(
            "--controller-uid",
            envvar="VGPU_CONTROLLER_UID",
            metavar="UID",
            help="Whom the controller runs as, when not as pool.yaml says.",
        ),
    ] = None,
    munge_socket: Annotated[
        Path | None,
        typer.Option(
            "--munge-socket",
            envvar="VGPU_MUNGE_SOCKET",
            metavar="PATH",
            help="munged's socket, when not as pool.yaml says.",
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=lambda wanted: _version_line(wanted), help="Print it.")
    ] = False,
) -> None:
    """One pool of GPU slices for a Slurm cluster."""
    context.obj = Where(config=config, controller=controller, controller_uid=controller_uid, munge_socket=munge_socket)


def _version_line(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"vgpu {version('vgpu-pool')}")
        raise typer.Exit
