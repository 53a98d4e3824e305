"""`vgpu top`: the pool as it is this second, again and again. What a frame shows is a pure function of the status."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slurm_plugin.cli.text import Names
    from slurm_plugin.cli.view import NodeView, PendingView, PoolView
    from slurm_plugin.explanation import Clock

REFRESH_S = 1.0
CLASSES_MAX = 10  # lines of what waits
PROBLEMS_MAX = 5
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the terminal's second screen, without a cursor
_HOME, _REST, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"  # top left; clear to the line's end; clear all below


def top(
    context: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", envvar="VGPU_TOP_ONCE", help="Show it once, as into a pipe, and end.")
    ] = False,
) -> None:
    """GPUs, slices and what waits, live. q ends it."""
    from slurm_plugin.cli.client import fetch_pool
    from slurm_plugin.cli.output import emit
    from slurm_plugin.cli.pool import local_time
    from slurm_plugin.cli.target import target_of
    from slurm_plugin.cli.users import user_name

    target = target_of(context.obj)

    def frame() -> list[str]:
        return top_lines(fetch_pool(target), user_name, time.time(), local_time)

    first = frame()
    if once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        emit(first)
        return
    with _screen():
        _draw(first)
        while not _quits(REFRESH_S):
            _draw(_next(frame, first))


def top_lines(pool: "PoolView", names: "Names", now: float, clock: "Clock") -> list[str]:
    """One frame: the sum, what waits, what is planned, then each GPU."""
    from slurm_plugin.cli.screen import LEGEND, age, safe, table
    from slurm_plugin.cli.text import counted, others_line, pause_line, slice_total

    problems = [*pool.problems, *(f"{node.name}: {text}" for node in pool.nodes for text in node.problems)]
    more = [f"problem: {len(problems) - PROBLEMS_MAX} more (vgpu status)"] if len(problems) > PROBLEMS_MAX else []
    return [
        f"pool {safe(pool.pool)}  {time.strftime('%H:%M:%S', time.localtime(now))}  up {age(now - pool.started_at)}"
        f"  {counted(len(pool.nodes), 'node')}  {slice_total(pool)}",
        *(["the pool is only observed: nothing is changed"] if pool.mode == "observe" else ()),
        *([pause_line(pool.pause, names, clock)] if pool.pause else ()),
        *(f"problem: {safe(text)}" for text in problems[:PROBLEMS_MAX]),
        *more,
        "",
        *(_waiting(pool.pending) if pool.pending or not pool.others else ()),
        *([others_line(pool)] if pool.others else ()),
        f"plan: {safe(pool.plan)}" if pool.plan else "plan: no re-cut",
        "",
        *table(("NODE", "SLURM", "GPU", "SLICES", "BUSY", "JOBS"), (row for node in pool.nodes for row in _rows(node))),
        "",
        LEGEND,
    ]


def _waiting(pending: "tuple[PendingView, ...]") -> list[str]:
    """By class: how many jobs, of how many users, and how many slices they need."""
    from slurm_plugin.cli.screen import table

    if not pending:
        return ["nothing waits"]
    classes: dict[str, list[PendingView]] = {}
    for job in pending:
        classes.setdefault(job.gres_class, []).append(job)
    ranked = sorted(classes.items(), key=lambda one: (-len(one[1]), one[0]))
    rows = [
        (
            f"vgpu:{name}",
            str(len(jobs)),
            str(len({job.uid for job in jobs})),
            str(sum(job.count * max(1, job.nodes) for job in jobs)),
            str(max(job.priority for job in jobs)),
        )
        for name, jobs in ranked[:CLASSES_MAX]
    ]
    more = [f"{len(ranked) - CLASSES_MAX} more classes"] if len(ranked) > CLASSES_MAX else []
    return [*table(("WAITS", "JOBS", "USERS", "SLICES", "PRIORITY"), rows), *more]


def _rows(node: "NodeView") -> Iterator[tuple[str, ...]]:
    from slurm_plugin.cli.screen import picture
    from slurm_plugin.cli.view import SliceState

    if not node.gpus:
        yield (node.name, node.slurm_state, "", "", "", "no GPU reported" if node.agent_connected else "agent away")
    for gpu in node.gpus:
        busy = [piece for piece in gpu.slices if piece.state is SliceState.BUSY]
        jobs = " ".join(dict.fromkeys(f"{job}" for piece in busy for job in piece.jobs))
        note = "FAULT" if gpu.fault else "" if node.agent_connected else "agent away"
        count = f"{len(busy)}/{len(gpu.slices)}"
        yield (node.name, node.slurm_state, str(gpu.index), picture(gpu), count, " ".join(filter(None, (note, jobs))))


def _next(frame: Callable[[], list[str]], last: list[str]) -> list[str]:
    """The next frame. While the controller is being restarted, the last one and why there is no other."""
    from slurm_plugin.cli.screen import safe
    from slurm_plugin.errors import VgpuError

    try:
        last[:] = frame()
    except VgpuError as error:
        if not error.transient:
            raise
        return [f"error: {safe(str(error))}", *last]
    return last


def fitted(lines: list[str], columns: int, room: int) -> list[str]:
    """As much as there is room for; what is left out is counted."""
    shown = [line if len(line) <= columns else f"{line[: max(0, columns - 3)]}..." for line in lines]
    if len(shown) <= room:
        return shown
    return [*shown[: max(0, room - 1)], f"... {len(shown) - max(0, room - 1)} more lines (vgpu status)"[:columns]][
        :room
    ]


def _draw(lines: list[str]) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())
    shown = fitted(lines, size.columns, size.lines - 1)
    sys.stdout.write(_HOME + "".join(f"{line}{_REST}\r\n" for line in shown) + _BELOW)
    sys.stdout.flush()


def _quits(wait_s: float) -> bool:
    """Wait so long for a key. True for a q, and when nobody is there to press one."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready) and os.read(sys.stdin.fileno(), 1) in (b"q", b"Q", b"")


@contextmanager
def _screen() -> Iterator[None]:
    """The terminal is as it was when this ends, also by Ctrl-C."""
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        sys.stdout.write(_ENTER)
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
