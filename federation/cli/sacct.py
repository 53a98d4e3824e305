"""`fed sacct`: when and where jobs of the Slurm here ran elsewhere, what they used and what it cost."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from federation.cli.client import ask
from federation.cli.options import DEFAULT_SOCKET, Json, Socket
from federation.cli.render import clock, say_others, table
from federation.desk.view import RunList, RunView
from slurm_plugin.cli.output import emit, emit_document


def sacct(
    names: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Jobs of Slurm's: 12, 12_3.")] = None,
    everybody: Annotated[bool, typer.Option("--all-users", "-a", help="Of all users, for an admin.")] = False,
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="No more than this.")] = 1000,
    socket: Socket = DEFAULT_SOCKET,
    json: Json = False,
) -> None:
    """Show the runs elsewhere of jobs of the Slurm here, newest first: where, when, what they used and what it cost."""
    told = ask(socket, "sacct", jobs=names or [], everybody=everybody, most=most)
    found = RunList(runs=tuple(_run(one) for one in told["runs"]))
    emit_document("fed-sacct", found) if json else emit(run_lines(found.runs))
    say_others(told.get("others", 0), "run")


def _run(told: dict[str, Any]) -> RunView:
    """What a newer daemon adds is left out."""
    return RunView(**{name: told[name] for name in RunView.__dataclass_fields__})


def run_lines(runs: Iterable[RunView]) -> Iterator[str]:
    head = ("JOB", "TOKEN", "USER", "POOL", "NODE", "STATE", "EXIT", "START", "END", "WAITED", "RAN", "CPU", "MEMORY")
    rows = (
        (
            one.job,
            one.token,
            one.user,
            one.pool,
            one.node or "-",
            one.end or one.state,
            f"{one.exit_code or 0}:{one.signal or 0}" if one.end else "-",
            clock(one.started_at) or "-",
            clock(one.ended_at) or "-",
            _seconds(one.began_at, one.started_at),
            _seconds(one.started_at, one.ended_at),
            "-" if one.cpu_s is None else f"{one.cpu_s:.2f}s",
            "-" if one.memory_mib is None else f"{one.memory_mib}M",
            one.slices or "-",
            f"{one.cost:.2f}" if one.cost else "-",
            one.why,
        )
        for one in runs
    )
    yield from table((*head, "SLICES", "COST", "WHY"), rows)


def _seconds(begin: float | None, end: float | None) -> str:
    return "-" if begin is None or end is None else f"{max(0.0, end - begin):.0f}s"
