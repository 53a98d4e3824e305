"""PURE: a short word on a waiting job itself, in its AdminComment: `[fed: may run in cloud/gpu]`.

Everything outside the brackets is other people's, and stays: what job_submit and the pool wrote, and a burst's note.
"""

import re

from slurm_plugin.slurm.notes import plain

_WORD = re.compile(r" ?\[fed: ([^\]]*)\]")


def worded(comment: str, word: str) -> str:
    """The comment with this word in the place of any before."""
    rest = _WORD.sub("", comment).strip()
    return f"{rest} [fed: {plain(word)}]".strip()


def word_in(comment: str) -> str:
    found = _WORD.findall(comment)
    return str(found[-1]) if found else ""
