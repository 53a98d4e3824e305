"""The `fed` command: its commands, and the one place where an error becomes two lines and an exit code.

`wait` exits with the job's code. Else: 0 done, 1 a check found something, 2 usage or an admin's file, 3 to 8 as
federation/errors.py says, 130 interrupted, 141 nobody reads the output.
"""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from federation.cli import check, jobs, pki, setup, site
from federation.cli.overflow import overflow
from federation.cli.render import printable
from federation.cli.sacct import sacct
from federation.cli.submit import submit
from federation.errors import ConfigError, FedError

INTERRUPTED = 130
NOBODY_READS = 141

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
app.command("submit", context_settings={"allow_interspersed_args": False})(submit)
app.command("jobs")(jobs.jobs)
app.command("show")(jobs.show)
app.command("explain")(jobs.explain)
app.command("logs")(jobs.logs)
app.command("wait")(jobs.wait)
app.command("cancel")(jobs.cancel)
app.command("signal")(jobs.signal)
app.command("requeue")(jobs.requeue)
app.command("peers")(site.peers)
app.command("pools")(site.pools)
app.command("overflow")(overflow)
app.command("sacct")(sacct)
app.command("render")(setup.render)
app.command("drain")(site.drain)
app.command("doctor")(site.doctor)
app.command("daemon")(site.daemon)
app.add_typer(pki.app, name="pki")
app.command("check-config")(check.check_config)


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
    """Jobs between sites: submitted here, run here or at another site, once; their output and files come back here."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(argv: list[str]) -> int:
    """Run one command line; the exit code. Raises only what is a bug of ours."""
    try:
        result = app(argv, standalone_mode=False, prog_name="fed")
        sys.stdout.flush()
    except FedError as error:
        return _failed(str(error), error.hint, error.exit_code)
    except TyperException as error:
        if (wrong := getattr(error.__cause__, "errors", None)) is not None:  # what pydantic calls a mistake
            from slurm_plugin.document import in_words

            error.message = in_words(wrong()[0])
        context = getattr(error, "ctx", None)
        return _failed(error.format_message(), f"{context.command_path if context else 'fed'} --help", error.exit_code)
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered can't be written either; without this the interpreter says so at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        hint = "run it as the user whose that is" if isinstance(error, PermissionError) else "fed --help"
        return _failed(f"{error.strerror or error}{place}", hint, ConfigError.exit_code)
    return result if isinstance(result, int) else 0


def _failed(message: str, hint: str, code: int) -> int:
    sys.stderr.write(f"error: {printable(message)}\n")
    if hint:
        sys.stderr.write(f"hint: {printable(hint)}\n")
    return code


def main() -> None:
    sys.exit(run(sys.argv[1:]))
