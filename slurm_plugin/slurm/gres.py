"""GRES lists as Slurm prints and takes them: `gpu:h100:4(S:0-1),vgpu:m20:2`, `gres/vgpu:1`, `(null)`. Pure."""

import re
from collections.abc import Iterable

from slurm_plugin.errors import SlurmError
from slurm_plugin.ports import GresItem

MAX_ITEMS = 4096  # elements of one list; a node of the pool has a few dozen

# Slurm prints a multiple of 1024 as `1K`, and takes the same letters back.
_SUFFIX = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_COUNT = re.compile(r"(\d+)([kmgtp]?)", re.IGNORECASE)
_PREFIX = re.compile(r"(?:gres[:/])+", re.IGNORECASE)
_NOTHING = frozenset({"", "(null)", "N/A", "none", "gres:none", "gres/none", "gres:", "gres/"})


def parse_gres(text: str) -> tuple[GresItem, ...]:
    """What a GRES list says, in its order. Locations such as `(S:0-1)` and `(IDX:0,2)` are dropped.

    A last part that is a number, with or without a letter of KMGTP, is a count as for Slurm; else it is a type.
    Raises SlurmError when an element is no GRES. Bound: MAX_ITEMS.
    """
    text = text.strip()
    if text in _NOTHING:
        return ()
    elements = _split(text)
    if len(elements) > MAX_ITEMS:
        raise SlurmError(f"a GRES list of {len(elements)} elements is longer than {MAX_ITEMS}")
    return tuple(_item(element, text) for element in elements if element)


def format_gres(items: Iterable[GresItem]) -> str:
    """The same list as `scontrol update ... gres=` and slurm.conf take it: always with a count, never with a prefix."""
    return ",".join(
        f"{item.name}:{item.type}:{item.count}" if item.type else f"{item.name}:{item.count}" for item in items
    )


def _split(text: str) -> list[str]:
    """At commas outside parentheses, since `gpu:a:2(IDX:0,2)` is one element."""
    elements, start, depth = [], 0, 0
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth = max(0, depth - 1)
        elif char == "," and depth == 0:
            elements.append(text[start:at])
            start = at + 1
    elements.append(text[start:])
    return elements


def _item(element: str, text: str) -> GresItem:
    bare = _PREFIX.sub("", re.sub(r"\([^()]*\)", "", element).strip(), count=1).replace("=", ":")
    name, *rest = bare.split(":")
    rest = [part for part in rest if part != "no_consume"]
    if not name or len(rest) > 2 or "" in rest:
        raise SlurmError(f"'{element}' in '{text[:200]}' is not a GRES")
    count = 1
    if rest and (match := _COUNT.fullmatch(rest[-1])):
        count = int(match[1]) * _SUFFIX[match[2].lower()]
        rest.pop()
    if len(rest) > 1:
        raise SlurmError(f"'{element}' in '{text[:200]}' is not a GRES: '{rest[-1]}' is no count")
    return GresItem(name=name, type=rest[0] if rest else "", count=count)
