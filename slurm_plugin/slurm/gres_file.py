"""gres.conf as far as the pool must know it: what has device files or a type, where GPUs are detected. Pure."""

import re
from collections.abc import Iterator
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
    has_file: bool
    detects_nvml: bool


def parse(text: str) -> Iterator[GresLine]:
    """The lines of a gres.conf; keys in any case, comments and continued lines as Slurm reads them.

    Raises ConfigError for a NodeName that is no host list.
    """
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.split("#")[0].strip()
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        if not pairs:
            continue
        yield GresLine(
            text=line,
            name=pairs.get("name", ""),
            type=pairs.get("type", ""),
            hosts=expand(pairs.get("nodename", "")),
            has_file=bool(_FILE_KEYS & pairs.keys()),
            detects_nvml="nvml" in pairs.get("autodetect", "").lower(),
        )
