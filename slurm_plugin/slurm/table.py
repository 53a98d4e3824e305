"""Fields of squeue as a table that no text inside a field can forge.

A newline in a job's name, or in a GRES type, writes lines that look like other jobs (seen on 22.05 and 24.11). So each
field is printed at full width with a mark behind it that is new for every call, and the text is cut at the marks only.
"""

import secrets
import string
from collections.abc import Iterable, Sequence

from slurm_plugin.errors import SlurmError

CELL = "\x1f"  # nothing that Slurm prints has it: what has it all the same gets another sign
LINE = "\x1e"  # likewise, between rows
_REPLACED = {ord(CELL): "?", ord(LINE): "?"}
MARK_BYTES = 8  # of 52 letters: nobody plants the right mark in a text before the call is made


def new_mark() -> str:
    """For one call."""
    return "~" + "".join(secrets.choice(string.ascii_letters) for _ in range(MARK_BYTES))


def squeue_format(fields: Sequence[str], mark: str) -> str:
    """The argument of `squeue -O`: each field whole (width 0), followed by the mark."""
    return ",".join(f"{field}:0{mark}" for field in fields)


def squeue_letters(letters: Sequence[str], mark: str, plain: int = 0) -> str:
    """The argument of `squeue -o`, likewise; with a sign behind the mark that tells the last field of a row.

    In the first `plain` fields nobody but Slurm writes: CELL is enough behind them, and half of a long answer less.
    """
    fields = [f"%{letter}" for letter in letters]
    return "".join(f"{field}{CELL}" for field in fields[:plain]) + f"{mark},".join(fields[plain:]) + f"{mark}."


def lines(text: str, mark: str, plain: int = 0) -> list[str]:
    """The rows of a text by `squeue_letters`, each with CELL between its fields, and blanks around them left.

    A row is the same text in every answer that says the same. Raises SlurmError when the text is not whole rows.
    """
    rows = text.split(f"{mark}.\n")
    if rows.pop().strip():
        raise SlurmError("squeue's answer is not whole rows")
    if LINE in text or text.count(CELL) != plain * len(rows):
        rows = [_disarmed(row, plain) for row in rows]
    return [row.replace(f"{mark},", CELL) for row in rows]


def _disarmed(row: str, plain: int) -> str:
    """Without signs of ours behind the plain fields."""
    *own, free = row.split(CELL, plain)
    return CELL.join([*own, free.translate(_REPLACED)])


def line(fields: Iterable[str]) -> str:
    """A row of such a text, made of its fields."""
    return CELL.join(field.translate(_REPLACED) for field in fields)


def cells(row: str, columns: int) -> list[str]:
    """The fields of one of those rows. Raises SlurmError when they are not so many."""
    fields = list(map(str.strip, row.split(CELL)))
    if len(fields) != columns:
        raise SlurmError("squeue's answer is not whole rows")
    return fields


def parse_table(text: str, columns: int, mark: str) -> list[list[str]]:
    """The rows of such a text, fields stripped of blanks around them.

    Raises SlurmError when the text is not whole rows: a cut answer must not pass as a shorter one.
    """
    pieces = text.split(mark)
    tail = pieces.pop()
    if tail.strip() or len(pieces) % columns:
        raise SlurmError("squeue's answer is not whole rows")
    return [[piece.strip() for piece in pieces[at : at + columns]] for at in range(0, len(pieces), columns)]
