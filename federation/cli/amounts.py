"""PURE: times, sizes and arrays as users of Slurm write them."""

import re
from datetime import datetime

from federation.errors import ConfigError
from federation.model.token import MAX_TASK

MAX_TASKS = 1000  # of one array
_TIME = re.compile(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?|(\d+)(?::(\d+))?(?::(\d+))?)")
_DATE = re.compile(r"\d{4}-\d\d-")
_MEM = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_KIB = {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def seconds(text: str) -> int:
    """minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]. Raises ConfigError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ConfigError(f"'{text}' is no time", hint="such as 30 (minutes), 1:30:00 or 2-12")
    if found[1] is not None:
        days, hours, minutes, rest = (int(one or 0) for one in found.groups()[:4])
        return ((days * 24 + hours) * 60 + minutes) * 60 + rest
    parts = [int(one) for one in found.groups()[4:] if one is not None]
    if len(parts) == 3:
        return (parts[0] * 60 + parts[1]) * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)


def deadline(text: str, now: float) -> float:
    """Unix seconds: a time from now on, or a date such as 2030-12-31T18:00, of this host's zone. Raises ConfigError."""
    if _TIME.fullmatch(text) and not _DATE.match(text):
        return now + seconds(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(f"'{text}' is no deadline", hint="such as 4:00:00 from now, or 2030-12-31T18:00") from None


def silence(text: str) -> tuple[str, int]:
    """keep, stop:TIME or replace:TIME, as its kind and seconds. Raises ConfigError."""
    kind, _, limit = text.partition(":")
    if text == "keep":
        return kind, 0
    if kind in ("stop", "replace") and limit and (after_s := seconds(limit)) > 0:
        return kind, after_s
    raise ConfigError(f"'{text}' is none of keep, stop:TIME and replace:TIME", hint="such as stop:1:00:00")


def mebibytes(text: str) -> int:
    """MiB, or with K, M, G or T behind it; rounded up. Raises ConfigError."""
    found = _MEM.fullmatch(text)
    if found is None:
        raise ConfigError(f"'{text}' is no amount of memory", hint="such as 500M or 4G")
    return -(-int(found[1]) * _KIB[found[2].upper() or "M"] // (1 << 10))


def tasks(text: str) -> tuple[int, ...]:
    """1-5, 1-9:2, 1,3,7. Raises ConfigError."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ConfigError(f"'{text}' is no array", hint="such as 0-9, 1-9:2 or 1,3,7")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1 or (last - first) // step >= MAX_TASKS:
            raise ConfigError(f"'{part}' has no tasks, or more than {MAX_TASKS}")
        found.update(dict.fromkeys(range(first, last + 1, step)))
    if max(found) > MAX_TASK:
        raise ConfigError(f"'{text}': a task's number is at most {MAX_TASK}")
    if len(found) > MAX_TASKS:
        raise ConfigError(f"an array has at most {MAX_TASKS} tasks")
    return tuple(found)
