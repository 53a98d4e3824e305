"""Commands of whoever runs the pool: pause, resume, history."""

import re
import time
from typing import Annotated

import typer

from slurm_plugin.cli.options import DryRun, Json
from slurm_plugin.cli.output import emit, emit_document, say, width
from slurm_plugin.cli.pool import HALF_A_DAY_S, local_time
from slurm_plugin.cli.users import user_name

LIMIT, LIMIT_MAX = 200, 1000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def pause(
    context: typer.Context,
    reason: Annotated[str, typer.Argument(metavar="[REASON]", help="Shown to everybody who looks.")] = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Stop every re-cut. Jobs go on, start and end as ever, on the slices that there are."""
    _follow(context, wanted=True, reason=reason, dry_run=dry_run, json=json)


def resume(context: typer.Context, dry_run: DryRun = False, json: Json = False) -> None:
    """Let re-cutting go on."""
    _follow(context, wanted=False, reason="", dry_run=dry_run, json=json)


def history(
    context: typer.Context,
    node: Annotated[
        str, typer.Option("--node", envvar="VGPU_HISTORY_NODE", metavar="NODE", help="Only what became of this node.")
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            "--since",
            envvar="VGPU_HISTORY_SINCE",
            metavar="WHEN",
            help="How long back (90s, 30m, 1h, 2d, 1w) or a local time (2026-05-31, 2026-05-31T14:05).",
        ),
    ] = "",
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            envvar="VGPU_HISTORY_LIMIT",
            metavar="N",
            min=1,
            max=LIMIT_MAX,
            help="At the most so many, the newest.",
        ),
    ] = LIMIT,
    json: Json = False,
) -> None:
    """What was re-cut, when and why, and how the guarantees were kept."""
    from slurm_plugin.cli.client import fetch_history
    from slurm_plugin.cli.target import target_of
    from slurm_plugin.cli.text import history_lines

    told = fetch_history(target_of(context.obj), node, _since(since, time.time()), limit)
    if json:
        emit_document("history", told)
    else:
        emit(history_lines(told, user_name, _to_the_second, width()))
        if not told.entries:
            say(f"hint: nothing of this is on record{f'; has the pool a node {node!r}?' if node else ''}")
        if told.more:
            say(f"hint: there are older ones: --limit {min(LIMIT_MAX, limit * 5)}")


def _follow(context: typer.Context, *, wanted: bool, reason: str, dry_run: bool, json: bool) -> None:
    from slurm_plugin.cli.client import fetch_pool, request_pause
    from slurm_plugin.cli.target import target_of
    from slurm_plugin.cli.text import pause_line
    from slurm_plugin.cli.view import PauseState

    target = target_of(context.obj)
    if dry_run:
        state = PauseState(pause=fetch_pool(target).pause, changed=False)
    else:
        state = request_pause(target, wanted=wanted, reason=reason)
    if json:
        emit_document("pause", state)
        return
    emit([pause_line(state.pause, user_name, local_time) if state.pause else "re-cutting is not paused"])
    if wanted == (state.pause is not None) and not state.changed:
        say(
            "hint: it is so already; nothing would change" if dry_run else "hint: it was so before; nothing was changed"
        )
    elif dry_run:
        say(f"hint: without --dry-run it would be {'paused' if wanted else 'let go on'}")


def _since(text: str, now: float) -> float:
    """Unix seconds; 0 for an empty text."""
    if not text:
        return 0.0
    if span := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        return max(0.0, now - int(span[1]) * _UNITS_S[span[2]])
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"):
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    raise typer.BadParameter(f"{text!r} is no time: write 30m, 2d or 2026-05-31T14:05", param_hint="'--since'")


def _to_the_second(at: float) -> str:
    """Without the date where it was not long ago."""
    form = "%H:%M:%S" if abs(at - time.time()) < HALF_A_DAY_S else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(at))
