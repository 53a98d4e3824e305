"""The `fed` command. This release has no daemon between sites, so `fed` says that, and its version."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import TyperException

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fed {version('vgpu-pool')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Jobs between sites. This release serves one site: there is nothing to run or configure here yet; see `vgpu`."""
    typer.echo(context.get_help())


def run(argv: list[str]) -> int:
    try:
        result = app(argv, standalone_mode=False, prog_name="fed")
    except TyperException as error:
        sys.stderr.write(f"error: {error.format_message()}\nhint: fed --help\n")
        return error.exit_code
    return result if isinstance(result, int) else 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))
