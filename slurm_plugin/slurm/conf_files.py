"""Slurm's files as far as the pool must know them. Pure.

Of gres.conf counts, what has device files or a type, and where GPUs are detected; of slurm.conf settings and nodes.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurm_plugin.slurm.hostlist import expand

_PAIR = re.compile(r"(\w+)\s*=\s*(\S+)")
_FILE_KEYS = frozenset({"file", "multiplefiles"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GresLine:
    text: str
    name: str
    type: str
    hosts: tuple[str, ...]  # empty: every node that reads the file
    count: str  # as it stands there, such as 1000 or 1K; empty when it is not given
    has_file: bool
    detects_nvml: bool


def parse(text: str) -> Iterator[GresLine]:
    """The lines of a gres.conf; keys in any case, comments and continued lines as Slurm reads them.

    Raises ConfigError for a NodeName that is no host list.
    """
    for line in _lines(text):
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        if not pairs:
            continue
        yield GresLine(
            text=line,
            name=pairs.get("name", ""),
            type=pairs.get("type", ""),
            hosts=expand(pairs.get("nodename", "")),
            count=pairs.get("count", ""),
            has_file=bool(_FILE_KEYS & pairs.keys()),
            detects_nvml="nvml" in pairs.get("autodetect", "").lower(),
        )


def settings(text: str) -> dict[str, str]:
    """The cluster-wide settings of a slurm.conf by lower-case name; of one given twice the last, as Slurm has it."""
    found = {}
    for line in _lines(text):
        for key, value in _PAIR.findall(line):
            if key.lower() in ("nodename", "partitionname", "downnodes", "nodeset"):
                break  # the rest of the line belongs to it
            found[key.lower()] = value
    return found


def node_gres(text: str) -> dict[str, str]:
    """What each node's line of a slurm.conf has as its Gres, or the line of NodeName=DEFAULT before it.

    Raises ConfigError for a NodeName that is no host list.
    """
    found: dict[str, str] = {}
    default = ""
    for line in _lines(text):
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        name = pairs.get("nodename", "")
        if name.upper() == "DEFAULT":
            default = pairs.get("gres", default)
        elif name:
            found |= dict.fromkeys(expand(name), pairs.get("gres", default))
    return found


def values(settings: Mapping[str, str], name: str) -> list[str]:
    """The parts of a setting that is a list."""
    return [value for value in settings.get(name, "").replace(" ", "").split(",") if value]


def _lines(text: str) -> Iterator[str]:
    for raw in text.replace("\\\n", " ").splitlines():
        if line := raw.split("#")[0].strip():
            yield line
