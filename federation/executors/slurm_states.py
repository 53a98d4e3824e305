"""PURE: what Slurm's words for a job's state mean here.

A state comes long (NODE_FAIL), short (NF), with more behind it (CANCELLED by 0), with flags (RUNNING+POWER_UP_NODE), or
cut (CANCELLED+). A word that is not known is of a job that lives: a new word must not end a job that runs.
Source: squeue(1), section JOB STATE CODES, and sacct(1), of 22.05 to 25.11.
"""

from collections.abc import Mapping
from types import MappingProxyType

from federation.model.states import End

_OVER: Mapping[str, End | None] = MappingProxyType(
    {
        "COMPLETED": None,
        "FAILED": None,
        "CANCELLED": End.CANCELLED,
        "REVOKED": End.CANCELLED,
        "TIMEOUT": End.TIMEOUT,
        "DEADLINE": End.TIMEOUT,
        "NODE_FAIL": End.NODE_FAIL,
        "BOOT_FAIL": End.NODE_FAIL,
        "LAUNCH_FAILED": End.NODE_FAIL,
        "RECONFIG_FAIL": End.NODE_FAIL,
        "PREEMPTED": End.PREEMPTED,
        "OUT_OF_MEMORY": End.OUT_OF_MEMORY,
    }
)
"""States after which nothing of a job runs; None: its own exit says how it ended."""

_SHORT = MappingProxyType(
    {
        "CD": "COMPLETED",
        "F": "FAILED",
        "CA": "CANCELLED",
        "RV": "REVOKED",
        "TO": "TIMEOUT",
        "DL": "DEADLINE",
        "NF": "NODE_FAIL",
        "BF": "BOOT_FAIL",
        "LF": "LAUNCH_FAILED",
        "PR": "PREEMPTED",
        "OOM": "OUT_OF_MEMORY",
    }
)
# RF is left out: REQUEUE_FED, which waits, and RECONFIG_FAIL of newer releases.


def is_over(text: str) -> bool:
    """Whether nothing of the job runs or will: its state is an end, and no flag says that it goes on."""
    words = _words(text)
    return bool(words) and all(word in _OVER for word in words)


def end_of(text: str) -> End | None:
    """How a job that is over ended, where that is Slurm's to say."""
    return next((end for word in _words(text) if (end := _OVER.get(word)) is not None), None)


def failed(text: str) -> bool:
    """Whether its script exited, and not with 0."""
    return "FAILED" in _words(text)


def _words(text: str) -> list[str]:
    """Each without what is told behind it."""
    first = text.strip().partition(" ")[0].upper()
    return [_SHORT.get(word, word) for word in first.split("+") if word]
