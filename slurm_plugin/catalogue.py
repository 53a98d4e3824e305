"""PURE: the catalogue, which tells the job_submit module what the pool offers. The controller writes it, Lua and Python
read it. A line-based text, one fact a line, single blanks between fields:

    vgpu-catalogue 1
    pool hpc
    gres vgpu pad vgpu_mem                the GRES of slices, its private padding type, and the GRES of weights
    default 1g.10gb                       or -
    partition gpu vgpu-wait               one line for each partition of the pool, with its wait partition
    exclusive refuse                      or allow
    operators 0 64030                     uids whose own choice of partition is left alone
    class m20 memory 20 2 1g.20gb 2g.20gb name, kind, number or -, weight, profiles that serve it, best first
    alias tiny 1g.10gb
    shape 1 64 512000 1g.10gb=28 m20=12   id, CPUs, memory in MiB, most slices of each class it can hold
    made 1 1g.10gb=16                     most slices of each class under the layouts of today; no line: not known
    node n[1-40] 1                        host list, shape; one shape may have several lines
    end 14                                lines before this one

A text without its right last line is half a text: refused whole, like any line that is not understood.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.hostlist import compress, expand

VERSION = 1
MAX_BYTES = 16_777_216  # about 500,000 nodes whose names have nothing in common
LINE_HOSTS = 1000  # nodes that we put in one line
MAX_NODES = 1_000_000
MAX_LINE_HOSTS = 5000  # nodes that a line may stand for; vgpu.lua has the same
DEFAULT_PATH = "/var/lib/vgpu/catalogue"

_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_HOSTS = re.compile(r"[A-Za-z0-9_.+,\[\]-]+")
_NUMBER = re.compile(r"[0-9]{1,9}")
_UID = re.compile(r"[0-9]{1,10}")
_WIDTHS = {"pool": 2, "gres": 4, "default": 2, "partition": 3, "exclusive": 2, "alias": 3, "node": 3}


class Kind(StrEnum):
    EXACT = "exact"
    MEMORY = "memory"
    FRACTION = "fraction"
    NAMED = "named"


class Exclusive(StrEnum):
    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """One request class: a type of the vgpu GRES."""

    name: str
    kind: Kind
    param: int  # GB for memory, N for a fraction 1/N, else 0
    weight: int  # eighths of a GPU's memory that one slice counts for
    profiles: tuple[str, ...]  # best first, never empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What all nodes of one build can hold at most, whatever their layout is now."""

    id: int
    cpus: int
    memory_mib: int
    most: Mapping[str, int]  # class -> slices; a class that is not here has none
    made: Mapping[str, int] | None = None  # the same of what the layouts of today make; None: not known

    def makes(self, name: str) -> int:
        """Slices of this class that such a node may have without an admin's change."""
        return (self.most if self.made is None else self.made).get(name, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    pool: str
    gres: str = "vgpu"
    pad: str = "pad"
    mem: str = "vgpu_mem"
    default: str = ""  # a class, or empty
    partitions: tuple[tuple[str, str], ...]  # (partition, its wait partition)
    exclusive: Exclusive = Exclusive.REFUSE
    operators: tuple[int, ...] = (0,)
    classes: tuple[Class, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)  # another name -> class
    shapes: tuple[Shape, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)  # node -> shape id
    by_name: Mapping[str, Class] = field(init=False, compare=False, repr=False)
    by_shape: Mapping[int, Shape] = field(init=False, compare=False, repr=False)
    population: Mapping[int, int] = field(init=False, compare=False, repr=False)  # shape id -> nodes of it

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {one.name: one for one in self.classes})
        object.__setattr__(self, "by_shape", {shape.id: shape for shape in self.shapes})
        object.__setattr__(self, "population", Counter(self.nodes.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What the catalogue needs of one node."""

    cpus: int
    memory_mib: int
    most: Mapping[str, int]
    made: Mapping[str, int] | None = None


def shapes(nodes: Mapping[str, NodeFacts]) -> tuple[tuple[Shape, ...], dict[str, int]]:
    """Nodes gathered by what they can hold: (shapes, node -> shape id). Ids count from 1 in the order of the nodes."""
    seen: dict[Hashable, Shape] = {}
    of: dict[str, int] = {}
    for name, facts in nodes.items():
        most = _positive(facts.most)
        made = None if facts.made is None else _positive(facts.made)
        layouts = None if made is None else frozenset(made.items())  # one that makes nothing is no unknown one
        key = (facts.cpus, facts.memory_mib, frozenset(most.items()), layouts)
        fresh = Shape(id=len(seen) + 1, cpus=facts.cpus, memory_mib=facts.memory_mib, most=most, made=made)
        of[name] = seen.setdefault(key, fresh).id
    return tuple(seen.values()), of


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {one: count for one, count in counts.items() if count > 0}


def render(catalogue: Catalogue) -> str:
    """The text of it. Raises ConfigError when a name in it could not be read back."""
    lines = [
        f"vgpu-catalogue {VERSION}",
        f"pool {catalogue.pool}",
        f"gres {catalogue.gres} {catalogue.pad} {catalogue.mem}",
        f"default {catalogue.default or '-'}",
        *(f"partition {name} {wait}" for name, wait in catalogue.partitions),
        f"exclusive {catalogue.exclusive}",
        " ".join(("operators", *map(str, catalogue.operators))),
        *(
            f"class {one.name} {one.kind} {one.param or '-'} {one.weight} {' '.join(one.profiles)}"
            for one in catalogue.classes
        ),
        *(f"alias {name} {target}" for name, target in catalogue.aliases.items()),
        *(" ".join((f"shape {one.id} {one.cpus} {one.memory_mib}", *_pairs(one.most))) for one in catalogue.shapes),
        *(" ".join((f"made {one.id}", *_pairs(one.made))) for one in catalogue.shapes if one.made is not None),
        *_node_lines(catalogue.nodes),
    ]
    text = "\n".join((*lines, f"end {len(lines)}", ""))
    if parse(text).nodes != catalogue.nodes:
        raise ConfigError("a node's name in the catalogue reads as a host list")
    return text


def _node_lines(nodes: Mapping[str, int]) -> Iterator[str]:
    """As few as may be: slurmctld reads them all at each submission."""
    names_of: dict[int, list[str]] = {}
    for name, shape in nodes.items():
        names_of.setdefault(shape, []).append(name)
    for shape, names in names_of.items():
        for at in range(0, len(names), LINE_HOSTS):
            yield f"node {compress(names[at : at + LINE_HOSTS])} {shape}"


def _pairs(counts: Mapping[str, int]) -> Iterator[str]:
    return (f"{name}={count}" for name, count in counts.items())


def parse(text: str, *, most_nodes: int = MAX_NODES) -> Catalogue:
    """Read a catalogue. Raises ConfigError naming the line that is wrong, as one with more nodes than these."""
    lines = text.split("\n")
    if len(text) > MAX_BYTES:
        raise ConfigError("the catalogue is too large")
    if lines[0] != f"vgpu-catalogue {VERSION}":
        raise ConfigError(f"line 1: this is no catalogue of version {VERSION}")
    if len(lines) < 3 or lines[-1] != "" or lines[-2] != f"end {len(lines) - 2}":
        raise ConfigError("the catalogue is cut short: its last line is not the right end line")
    reader = _Reader(most_nodes)
    for number, line in enumerate(lines[1:-2], 2):
        if not reader.read(line.split(" ")):
            raise ConfigError(f"line {number}: not understood: {line[:80]!r}")
    missing = reader.missing()
    if missing:
        raise ConfigError(f"the catalogue lacks {missing}")
    return reader.catalogue()


def _counts(fields: Sequence[str]) -> dict[str, int] | None:
    """`class=count` fields; None when one of them is something else."""
    pairs = [one.split("=") for one in fields]
    if not all(len(pair) == 2 and _NUMBER.fullmatch(pair[1]) for pair in pairs):
        return None
    return {name: int(count) for name, count in pairs}


class _Reader:
    """One parse. `read` takes one line's fields and says whether it understood them."""

    def __init__(self, most_nodes: int) -> None:
        self._most_nodes = most_nodes
        self.single: dict[str, list[str]] = {}
        self.partitions: list[tuple[str, str]] = []
        self.classes: dict[str, Class] = {}
        self.aliases: dict[str, str] = {}
        self.shapes: dict[int, Shape] = {}
        self.nodes: dict[str, int] = {}

    def read(self, fields: Sequence[str]) -> bool:
        key, *rest = fields
        word = _HOSTS if key == "node" else _WORD
        if not all(word.fullmatch(one.replace("=", "-", 1) if key in ("shape", "made") else one) for one in rest):
            return False
        if len(fields) != _WIDTHS.get(key, len(fields)):
            return False
        match key:
            case "pool" | "gres" | "default":
                return self._once(key, rest)
            case "exclusive":
                return rest[0] in tuple(Exclusive) and self._once(key, rest)
            case "operators":
                return all(map(_UID.fullmatch, rest)) and self._once(key, rest)
            case "partition":
                self.partitions.append((rest[0], rest[1]))
                return True
            case "class":
                return self._class(rest)
            case "alias":
                return (
                    self.aliases.setdefault(rest[0], rest[1]) == rest[1]
                    and rest[1] in self.classes
                    and rest[0] not in self.classes
                )
            case "shape":
                return self._shape(rest)
            case "made":
                return self._made(rest)
            case "node":
                return (
                    bool(_NUMBER.fullmatch(rest[1]))
                    and int(rest[1]) in self.shapes
                    and self._nodes(rest[0], int(rest[1]))
                )
        return False

    def _once(self, key: str, rest: list[str]) -> bool:
        return self.single.setdefault(key, rest) is rest

    def _class(self, rest: list[str]) -> bool:
        if len(rest) < 5 or rest[0] in self.classes or rest[1] not in tuple(Kind):
            return False
        name, kind, param, weight, *profiles = rest
        numbered = kind in (Kind.MEMORY, Kind.FRACTION)
        if not _NUMBER.fullmatch(weight) or (not _NUMBER.fullmatch(param) if numbered else param != "-"):
            return False
        number = int(param) if numbered else 0
        self.classes[name] = Class(
            name=name, kind=Kind(kind), param=number, weight=int(weight), profiles=tuple(profiles)
        )
        return True

    def _shape(self, rest: list[str]) -> bool:
        most = _counts(rest[3:])
        if len(rest) < 3 or not all(map(_NUMBER.fullmatch, rest[:3])) or most is None:
            return False
        shape = Shape(id=int(rest[0]), cpus=int(rest[1]), memory_mib=int(rest[2]), most=most)
        return self.shapes.setdefault(shape.id, shape) is shape

    def _made(self, rest: list[str]) -> bool:
        made = _counts(rest[1:])
        if not rest or not _NUMBER.fullmatch(rest[0]) or made is None:
            return False
        shape = self.shapes.get(int(rest[0]))
        if shape is None or shape.made is not None:
            return False
        self.shapes[shape.id] = replace(shape, made=made)
        return True

    def _nodes(self, hosts: str, shape: int) -> bool:
        try:
            names = expand(hosts, limit=min(MAX_LINE_HOSTS, self._most_nodes - len(self.nodes)))
        except ConfigError:
            return False
        before = len(self.nodes)
        self.nodes.update(dict.fromkeys(names, shape))
        return len(self.nodes) == before + len(names)

    def missing(self) -> str:
        for key in ("pool", "gres", "default", "exclusive"):
            if key not in self.single:
                return key
        default = self.single["default"][0]
        if default != "-" and default not in self.classes:
            return f"its default class {default}"
        return "" if self.partitions else "partition"

    def catalogue(self) -> Catalogue:
        gres, pad, mem = self.single["gres"]
        default = self.single["default"][0]
        return Catalogue(
            pool=self.single["pool"][0],
            gres=gres,
            pad=pad,
            mem=mem,
            default="" if default == "-" else default,
            partitions=tuple(self.partitions),
            exclusive=Exclusive(self.single["exclusive"][0]),
            operators=tuple(map(int, self.single.get("operators", ["0"]))),
            classes=tuple(self.classes.values()),
            aliases=self.aliases,
            shapes=tuple(self.shapes.values()),
            nodes=self.nodes,
        )
