"""PURE: what became of the pool, one entry each, and its line in the controller's file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

TEXT_MAX = 500  # characters of a reason that are kept
LIMIT = 200  # entries that are told when nobody says how many
LIMIT_MAX = 1000  # entries of one answer


class What(StrEnum):
    STARTED = "started"  # the controller: what was planned before and has no end here was given up
    PLANNED = "planned"  # a GPU is to be re-cut for the queue
    CHANGED = "changed"  # a GPU was re-cut
    DROPPED = "dropped"  # a plan was given up
    FAILED = "failed"  # the agent could not make a step
    GUARANTEE = "guarantee"  # one lacks something, is whole again, or had never had so little to spare
    PAUSED = "paused"
    RESUMED = "resumed"
    APPLIED = "applied"  # another pool.yaml
    RELEASED = "released"  # a job that Slurm held for a class that was not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    at: float  # Unix seconds
    what: str  # of What, by this version
    node: str = ""
    gpu: str = ""  # UUID
    index: int = -1  # of the GPU; -1: of none
    destroyed: tuple[str, ...] = ()  # 1g.10gb@3
    created: tuple[str, ...] = ()
    why: str = ""
    took_s: float = 0.0  # since it was planned, or its step was sent
    error: str = ""
    guarantee: str = ""  # as pool.yaml has it
    have: int = 0  # slices that keep it
    at_least: int = 0
    uid: int = 0  # whose wish it was


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    entries: tuple[Entry, ...]  # oldest first
    more: bool  # there are older ones


def to_line(entry: Entry) -> str:
    """One line of JSON, without what says nothing."""
    kept = {name: value for name, value in asdict(entry).items() if value != _USUAL.get(name)}
    return json.dumps(kept, separators=(",", ":"))


def from_line(line: str) -> Entry | None:
    """None for a line that was never finished or is none of ours."""
    try:
        found: Any = json.loads(line)
        return Entry(**{name: _read(name, found[name]) for name in _KINDS.keys() & found.keys()})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _read(name: str, value: Any) -> Any:
    kind = _KINDS[name]
    return tuple(map(str, value)) if kind is tuple else kind(value)


_USUAL: Mapping[str, Any] = {field.name: field.default for field in fields(Entry) if field.name not in ("at", "what")}
_KINDS: Mapping[str, type] = {name: type(value) for name, value in _USUAL.items()} | {"at": float, "what": str}
