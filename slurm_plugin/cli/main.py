"""The `vgpu` command: its commands, and the one place where an error becomes two lines and an exit code.

0 done, 1 `doctor` or a check found something, 2 usage or an admin's file, 3 what was asked can't be given, 4 NVML,
5 Slurm, 6 the controller did not answer or was not believed, 7 the lab, 8 `apply --wait` ran out, 130 interrupted,
141 nobody reads the output.
"""

import os
import sys

import typer
from typer.exceptions import Abort, TyperException

from slurm_plugin.cli import lab, operate, pool, setup, top
from slurm_plugin.cli.options import where
from slurm_plugin.cli.output import say, say_error
from slurm_plugin.errors import ConfigError, VgpuError

INTERRUPTED = 130
NOBODY_READS = 141
OF_VGPU = ("--config", "--controller", "--controller-uid", "--munge-socket")  # not of its commands

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True)
app.callback()(where)
app.command("status")(pool.status)
app.command("explain")(pool.explain)
app.command("plan")(pool.plan)
app.command("apply")(pool.apply)
app.command("pause")(operate.pause)
app.command("resume")(operate.resume)
app.command("history")(operate.history)
app.command("top")(top.top)
app.command("doctor")(pool.doctor)
app.add_typer(pool.show, name="show")
app.command("render")(setup.render)
app.add_typer(lab.app, name="lab")


def run(argv: list[str]) -> int:
    """Run one command line; the exit code. Raises only what is a bug of ours."""
    try:
        result = app(argv, standalone_mode=False, prog_name="vgpu")
        sys.stdout.flush()
    except VgpuError as error:
        say_error(error)
        return error.exit_code
    except TyperException as error:
        return _usage(error)
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # typer makes the first into the second
        # What is still buffered can't be written either; without this the interpreter says so at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        say(f"error: {error.strerror or error}{place}")
        say("hint: run it as the user whose that is" if isinstance(error, PermissionError) else "hint: vgpu --help")
        return ConfigError.exit_code
    return result if isinstance(result, int) else 0


def _usage(error: TyperException) -> int:
    if (wrong := getattr(error.__cause__, "errors", None)) is not None:  # what pydantic calls a mistake
        from slurm_plugin.document import in_words

        error.message = in_words(wrong()[0])
    text = error.format_message()
    if not text or "\n" in text:  # no arguments: the message is the whole help
        say(text)
        return error.exit_code
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", "")
    command = context.command_path if context else "vgpu"
    misplaced = option in OF_VGPU and command != "vgpu"
    say(f"error: {text}")
    say(f"hint: write it before the command: vgpu {option} ..." if misplaced else f"hint: {command} --help")
    return error.exit_code


def main() -> None:
    sys.exit(run(sys.argv[1:]))
