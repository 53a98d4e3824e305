"""PURE: which of some names a user may have meant. `slurm_plugin/hooks/lua/vgpu.lua` has the same."""

import re
from collections.abc import Iterable, Sequence

MAX_NAMES = 64  # looked at
NEAR = 2  # edits within which a name is taken for a slip of the pen
MAX_DIGITS = 6  # of a number that is read here

_DECIMAL = re.compile(rf"0?\.([0-9]{{1,{MAX_DIGITS}}})")
_PERCENT = re.compile(r"([0-9]{1,3})%")
_OTHER_UNIT = re.compile(rf"([0-9]{{1,{MAX_DIGITS}}})[kp]i?b?")


def meant(name: str) -> str:
    """What a class in none of the forms may stand for: 1/4 for 0.25 and 25%, 1g.10gb for mig-1g.10gb, 1gb for 1k."""
    if (decimal := _DECIMAL.fullmatch(name)) and int(decimal[1]):
        return f"1/{10 ** len(decimal[1]) // int(decimal[1])}"
    if (percent := _PERCENT.fullmatch(name)) and 0 < int(percent[1]) <= 100:
        return f"1/{100 // int(percent[1])}"
    tidy = re.sub(r"[^a-z0-9_.+/%-]+", "", name).lstrip("-+._/").removeprefix("mig-")
    unit = _OTHER_UNIT.fullmatch(tidy)
    return f"{unit[1]}gb" if unit else tidy


def nearest(text: str, names: Sequence[str], *, always: bool = False) -> str:
    """The nearest of the first MAX_NAMES names: fewest edits, then the longest common start, then the alphabet.

    "" when it is more than NEAR edits away, unless `always`.
    """
    ranked = [(_edits(text, name), -_common(text, name), name) for name in names[:MAX_NAMES]]
    edits, _, best = min(ranked, default=(0, 0, ""))
    return best if edits <= NEAR or always else ""


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _edits(one: str, other: str) -> int:
    """Levenshtein's distance."""
    row: Iterable[int] = range(len(other) + 1)
    for at, a in enumerate(one, 1):
        last, row = list(row), [at]
        for to, b in enumerate(other, 1):
            row.append(min(last[to] + 1, row[-1] + 1, last[to - 1] + (a != b)))
    return list(row)[-1]
