"""Fields of squeue as a table that no text inside a field can forge. Pure.

A newline in a job's name, or in a GRES type, writes lines that look like other jobs (seen on 22.05 and 24.11). So each
field is printed at full width with a mark behind it that is new for every call, and the text is cut at the marks only.
"""

from collections.abc import Iterable, Sequence

from slurm_plugin.errors import SlurmError

MARK_BYTES = 8  # of a 62-letter alphabet: nobody plants the right mark in a text before the call is made


def squeue_format(fields: Sequence[str], mark: str) -> str:
    """The argument of `squeue -O`: each field whole (width 0), followed by the mark."""
    return ",".join(f"{field}:0{mark}" for field in fields)


def squeue_letters(letters: Iterable[str], mark: str) -> str:
    """The argument of `squeue -o`, likewise."""
    return "".join(f"%{letter}{mark}" for letter in letters)


def parse_table(text: str, columns: int, mark: str) -> list[list[str]]:
    """The rows of such a text, fields stripped of blanks around them.

    Raises SlurmError when the text is not whole rows: a cut answer must not pass as a shorter one.
    """
    pieces = text.split(mark)
    tail = pieces.pop()
    if tail.strip() or len(pieces) % columns:
        raise SlurmError("squeue's answer is not whole rows")
    return [[piece.strip() for piece in pieces[at : at + columns]] for at in range(0, len(pieces), columns)]
