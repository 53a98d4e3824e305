"""The pool's note in a job's AdminComment: `asked vgpu:20gb [vgpu: waits: ...]`. Pure.

Everything outside the brackets is other people's words, and stays. AdminComment is the one field of a job that an admin
may set at any time in 22.05 and 24.11 alike: SystemComment is Slurm's own, Extra comes with 23.02 and selects nodes,
and Comment is the user's.

Source: slurmctld/job_mgr.c of both, update_job_str: an array's elements that wait stay one record when all of them are
named, and each that is named becomes a record of its own when some are not.
"""

import re
from collections.abc import Iterable, Sequence

from slurm_plugin.model import RunKey
from slurm_plugin.slurm import queue

FIELDS = (*queue.TARGET_FIELDS, "HetJobOffset", "admin_comment")
SCAN_FIELDS = ("JobID", "admin_comment")
NOTE_MAX = 240  # characters
ELEMENTS_MAX = 4000  # of an array with steps, which scontrol takes one by one only

_NOTE = re.compile(r" ?\[vgpu: ([^\]]*)\]")
_PLAIN = str.maketrans("[]\n\r\t", "()   ")
_RANGES = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*")


def noted(comment: str, note: str) -> str:
    """The comment with this note in the place of any before; without one for an empty note."""
    rest = _NOTE.sub("", comment).strip()
    mine = f"[vgpu: {plain(note)}]" if note else ""
    return f"{rest} {mine}".strip()


def plain(note: str) -> str:
    """As it will stand there."""
    return note.translate(_PLAIN)[:NOTE_MAX].strip()


def note_in(comment: str) -> str:
    found = _NOTE.findall(comment)
    return found[-1] if found else ""


def notes(rows: Iterable[Sequence[str]]) -> dict[int, str]:
    """Rows of SCAN_FIELDS: the jobs with a note."""
    return {int(job_id): note for job_id, comment in rows if job_id.isdecimal() and (note := note_in(comment))}


def place(rows: Iterable[Sequence[str]], run: RunKey) -> tuple[str, str] | None:
    """Rows of FIELDS: how scontrol names exactly this run's record, and its comment now.

    None when the run is over, or its record can't be named whole.
    """
    for *row, offset, comment in rows:
        if queue.target([row], run) is not None:
            own, array, task, het = row[0], row[4], row[5], row[6]
            if het.isdecimal() and int(het):
                return f"{het}+{offset}", comment
            if task in ("", "N/A"):
                return own, comment
            named = elements(task.strip("[]").split("%")[0])
            return (f"{array}_[{named}]", comment) if named else None
    return None


def elements(text: str) -> str:
    """All of an array expression without steps; "" when that can't be told."""
    if not _RANGES.fullmatch(text):
        return ""
    if ":" not in text:
        return text
    found: list[str] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        if len(found) + (int(last or first) - int(first)) // max(1, int(step or 1)) >= ELEMENTS_MAX:
            return ""
        found.extend(map(str, range(int(first), int(last or first) + 1, max(1, int(step or 1)))))
    return ",".join(found)
