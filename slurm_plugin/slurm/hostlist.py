"""Host lists such as `n[1-3,07-09],gpu-a[1-2]b[0-1]`, to names and back, without asking Slurm. Pure."""

import itertools
import re
from collections.abc import Iterable

from slurm_plugin.errors import ConfigError

MAX_HOSTS = 131_072  # names one text may stand for; more is a typing error that would eat the memory

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBERED = re.compile(r"(.*?)(\d*)", re.DOTALL)


def expand(text: str, *, limit: int = MAX_HOSTS) -> tuple[str, ...]:
    """The names a host list stands for, in its order and as often as it says. `(null)` and an empty text are no names.

    Leading zeros are a width: `n[08-10]` is n08, n09, n10. Several brackets in one name multiply.
    Raises ConfigError when it is no host list or stands for more than `limit` names.
    """
    text = text.strip()
    if text in ("", "(null)", "None assigned", "N/A"):
        return ()
    names: list[str] = []
    for element in _split(text):
        names.extend(_expand_one(element, text, limit - len(names)))
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """A short host list of these names: sorted, each once. `expand(compress(x))` is `sorted(set(x))` up to order."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in set(names):
        match = _NUMBERED.fullmatch(name)
        if match is None or not match[2]:
            plain.append(name)
            continue
        digits = match[2]
        # Numbers without leading zeros share a group whatever their length; padded ones go by their width.
        width = len(digits) if digits[0] == "0" and len(digits) > 1 else 0
        groups.setdefault((match[1], width), []).append(int(digits))
    parts = sorted(plain)
    for (prefix, width), numbers in sorted(groups.items()):
        ranges = _ranges(sorted(numbers), width)
        single = len(ranges) == 1 and "-" not in ranges[0]
        parts.append(f"{prefix}{ranges[0]}" if single else f"{prefix}[{','.join(ranges)}]")
    return ",".join(parts)


def _split(text: str) -> list[str]:
    elements, start, depth = [], 0, 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            elements.append(text[start:at].strip())
            start = at + 1
        if depth not in (0, 1):
            raise ConfigError(f"'{text[:200]}' is not a host list: its brackets do not match")
    elements.append(text[start:].strip())
    if depth or "" in elements:
        raise ConfigError(f"'{text[:200]}' is not a host list")
    return elements


def _expand_one(element: str, text: str, room: int) -> list[str]:
    axes: list[list[str]] = []
    size = 1
    for part in re.split(r"(\[[^\]]*\])", element):
        axis = _numbers(part[1:-1], text, room) if part.startswith("[") else [part]
        axes.append(axis)
        size *= len(axis)
        if size > room:
            raise ConfigError(f"'{text[:200]}' stands for too many hosts")
    return ["".join(parts) for parts in itertools.product(*axes)]


def _numbers(ranges: str, text: str, room: int) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"'{text[:200]}' is not a host list: '{part[:40]}' is no range")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"'{text[:200]}' is not a host list: '{part[:40]}' counts down")
        if last - first >= room:
            raise ConfigError(f"'{text[:200]}' stands for too many hosts")
        numbers.extend(str(number).zfill(len(match[1])) for number in range(first, last + 1))
    return numbers


def _ranges(numbers: list[int], width: int) -> list[str]:
    """Runs of consecutive numbers, as `3` or `1-9`.

    A padded run ends where the number would outgrow its width, which its group holds anyway.
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ["-".join(str(number).zfill(width) for number in run) for run in runs]
