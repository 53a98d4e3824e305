"""What scontrol prints: `KEY=value` records of nodes, partitions and the configuration. Pure.

Admins' texts (Reason, Comment, Extra) hold blanks and `=`, so the first of a name counts: Slurm prints the free
texts last, and what such a text forges comes after the truth.
"""

import re
from collections.abc import Iterable

from slurm_plugin.errors import SlurmError
from slurm_plugin.ports import SlurmNode
from slurm_plugin.slurm.gres import parse_gres

_CONFIG_LINE = re.compile(r"([A-Za-z][A-Za-z0-9_]*(?:\[\d+\])?)\s*=\s?(.*)")
_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*)=")


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """`scontrol -o -d show node`, with SLURM_TIME_FORMAT=%s. Raises SlurmError when a record cannot be read."""
    records = _join_lines(text.splitlines(), "NodeName=")
    nodes = tuple(_node(_cut(record)) for record in records)
    names = [node.name for node in nodes]
    if len(set(names)) != len(names):
        doubles = sorted({name for name in names if names.count(name) > 1})
        raise SlurmError(
            f"scontrol show node has two records of {doubles[0]}",
            hint="look for a line break in a node's Reason, Comment or Extra and write that text anew",
        )
    return nodes


def parse_partitions(text: str) -> dict[str, dict[str, str]]:
    """`scontrol -o -a show partition`: the fields of each partition by its name. None of its values holds a blank."""
    partitions = {}
    for record in _join_lines(text.splitlines(), "PartitionName="):
        fields = _cut(record)
        partitions[fields.pop("PartitionName")] = fields
    return partitions


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config`: the values by name as Slurm spells it, without those it reports as unset.

    A list such as Prolog[0], Prolog[1] (from 23.11) is one value with commas.
    """
    config: dict[str, str] = {}
    for line in text.splitlines():
        match = _CONFIG_LINE.match(line.strip())
        if match is None or match[2].strip() in ("(null)", ""):
            continue
        name, value = re.sub(r"\[\d+\]$", "", match[1]), match[2].strip()
        indexed = name != match[1]
        config[name] = f"{config[name]},{value}" if indexed and name in config else value
    return config


def _join_lines(lines: Iterable[str], start: str) -> list[str]:
    """Records begin with `start`; any other line continues the one before it (a line break in an admin's text)."""
    records: list[str] = []
    for line in lines:
        if line.startswith(start):
            records.append(line)
        elif records:
            records[-1] += " " + line
    return records


def _cut(record: str) -> dict[str, str]:
    found = list(_KEY.finditer(record))
    ends = [match.start() for match in found[1:]] + [len(record)]
    fields: dict[str, str] = {}
    for match, end in zip(found, ends, strict=True):
        fields.setdefault(match[1], record[match.end() : end].strip())
    return fields


def _node(fields: dict[str, str]) -> SlurmNode:
    try:
        return SlurmNode(
            name=fields["NodeName"],
            state=fields["State"],
            reason=fields.get("Reason", ""),
            gres=parse_gres(fields.get("Gres", "")),
            gres_used=parse_gres(fields.get("GresUsed", "")),
            cpus=int(fields.get("CPUEfctv") or fields["CPUTot"]),
            cpus_used=int(fields["CPUAlloc"]),
            memory_mib=int(fields["RealMemory"]),
            partitions=tuple(name for name in fields.get("Partitions", "").split(",") if name),
            slurmd_started_at=_unix(fields.get("SlurmdStartTime", "")),
            comment=fields.get("Comment", ""),
            features=frozenset(fields.get("ActiveFeatures", "").split(",")) - {"", "(null)"},
        )
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol show node printed a record without its fields: {error}") from error


def _unix(text: str) -> int:
    return int(text) if text.isdecimal() else 0
