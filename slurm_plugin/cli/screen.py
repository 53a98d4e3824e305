"""PURE: text for a terminal. Nothing a user or a device wrote reaches it with a control character in it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap

from slurm_plugin.cli.view import GpuView, SliceState

CELL_MAX = 120  # characters of one table cell; more is cut and marked
CELL_MIN = 16  # no column is made narrower than that
LINE_MAX = 400  # characters of a line of text, and of a cell that is the reason for something

MARKS = {
    SliceState.BUSY: "#",
    SliceState.IDLE: "-",
    SliceState.WITHHELD: "~",
    SliceState.HELD: "h",
    SliceState.UNKNOWN: "?",
    SliceState.FOREIGN: "x",
    SliceState.HALF_MADE: "!",
}
LEGEND = "# busy  - idle  ~ withheld  ? unknown  h held  x foreign  ! half made  . free"  # one a memory slice


def safe(text: str, most: int = CELL_MAX) -> str:
    """The text on one line: whatever is not printable is written as an escape, and the rest is cut at `most`."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def table(header: Sequence[str], rows: Iterable[Sequence[str]], width: int = 0, most: int = CELL_MAX) -> list[str]:
    """Left-aligned columns, two blanks apart, no blank at a line's end.

    `width`: of the terminal; what is wider goes on below, in its column. 0: each row is one line.
    """
    grid = [list(header), *([safe(cell, most) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in grid) for column in range(len(header))]
    if width:
        widths = _narrowed(widths, width - 2 * (len(widths) - 1))
    return [
        "  ".join(part.ljust(wide) for part, wide in zip(parts, widths, strict=True)).rstrip()
        for row in grid
        for parts in zip_longest(*(_wrapped(cell, wide) for cell, wide in zip(row, widths, strict=True)), fillvalue="")
    ]


def _narrowed(widths: Sequence[int], room: int) -> list[int]:
    """The widest column gives first."""
    found = list(widths)
    while sum(found) > room and (widest := max(found)) > CELL_MIN:
        found[found.index(widest)] -= 1
    return found


def _wrapped(cell: str, width: int) -> list[str]:
    return wrap(cell, width, break_on_hyphens=False) or [""] if len(cell) > width else [cell]


def fold(lines: Iterable[str], width: int) -> Iterator[str]:
    """Lines of text that go on below, two blanks further in, where the terminal is not so wide. `width` 0: it is."""
    for line in lines:
        if not width or len(line) <= width:
            yield line
        else:
            yield from wrap(line, max(width, CELL_MIN), subsequent_indent="  ", break_on_hyphens=False)


def picture(gpu: GpuView) -> str:
    """One GPU's memory axis: `[####][--]..` is a busy slice of four, an idle one of two, and two free."""
    if not gpu.uuid:
        return "(unreadable)"
    if gpu.mig != "enabled":
        return f"(MIG {safe(gpu.mig) or 'unknown'})"
    cells = ["."] * gpu.memory_slices
    for piece in gpu.slices:
        end = piece.start + piece.size
        cells[piece.start : end] = [MARKS[piece.state]] * piece.size
        cells[piece.start] = "[" + cells[piece.start]
        cells[end - 1] += "]"
    return "".join(cells)


def age(seconds: float) -> str:
    """A length of time in the two largest units that say it: 42s, 3m10s, 2h05m, 4d03h."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
