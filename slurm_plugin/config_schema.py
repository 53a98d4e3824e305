"""The shape of pool.yaml, version 1. Nothing is guessed: types are strict and unknown keys are errors."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from slurm_plugin.catalogue import Exclusive
from slurm_plugin.classes import NamedClass, named_class
from slurm_plugin.config_planning import ChangingSection, PlanningSection, ReachSection
from slurm_plugin.errors import ConfigError
from slurm_plugin.planning import Follow, Guarantee
from slurm_plugin.pool import (
    ControllerPlace,
    DuplicateJobid,
    GresNames,
    Mode,
    NodeGroup,
    PoolConfig,
    QueueReader,
    Share,
    StuckProlog,
)

MAX_TOTAL = 1_000_000
MAX_CLASSES = 256  # of the admin's, and as many aliases
_OFFERED = re.compile(r"[mq][0-9]+", re.IGNORECASE)  # types that the pool may offer: padding is one that no user means
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(f"'{text[:64]}' is not a name (letters, digits, _ . -, at most 64, a letter first)")
    return text


def _pad(text: str) -> str:
    if _OFFERED.fullmatch(text):
        raise ValueError(f"'{text}' is what a class is called, as m20 and q4 are; take another word")
    return _word(text)


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"{path} must be an absolute path")
    return path


def _listen(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65536):
        raise ValueError(f"'{text}' is not host:port")
    return text


def _total(count: int) -> int:
    if count % 1024 == 0:
        raise ValueError("a multiple of 1024 is printed as 1K by Slurm; take another number")
    return count


Word = Annotated[str, AfterValidator(_word)]
File = Annotated[Path, Field(strict=False), AfterValidator(_absolute)]
Counts = Annotated[dict[str, Annotated[int, Field(ge=1, le=16)]], Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GresSection(_Section):
    name: Word = "vgpu"
    total: Annotated[int, Field(ge=2, le=MAX_TOTAL), AfterValidator(_total)] = 1000
    pad: Annotated[str, AfterValidator(_pad)] = "pad"
    memory: Word = "vgpu_mem"


class ClassSection(_Section):
    memory: str = ""
    fraction: str = ""
    profiles: list[str] = []

    @model_validator(mode="after")
    def _meaningful(self) -> "ClassSection":
        self.to_class()
        return self

    def to_class(self) -> NamedClass:
        try:
            return named_class("", memory=self.memory, fraction=self.fraction, profiles=self.profiles)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("classes.: ")) from None


class ShareSection(_Section):
    layout: Counts
    share: Annotated[int, Field(ge=1, le=10_000)] = 1


class NodesSection(_Section):
    hosts: str
    gpus: Literal["all"] | Annotated[list[Annotated[int, Field(ge=0, le=63)]], Field(min_length=1)] = "all"
    layout: Counts | None = None
    mix: Annotated[list[ShareSection], Field(min_length=1, max_length=64)] | None = None
    product: str = ""
    count: Annotated[int, Field(ge=1, le=64)] | None = None
    follow: Literal["layout", "queue"] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "NodesSection":
        if self.layout is not None and self.mix is not None:
            raise ValueError("say either layout or mix")
        if not isinstance(self.gpus, str) and len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"gpus names {next(n for n in self.gpus if self.gpus.count(n) > 1)} twice")
        if self.count is not None and not isinstance(self.gpus, str) and max(self.gpus) >= self.count:
            raise ValueError(f"gpus has {max(self.gpus)}, and a node with count {self.count} has 0 to {self.count - 1}")
        return self

    def to_group(self, hosts: tuple[str, ...]) -> NodeGroup:
        gpus = None if isinstance(self.gpus, str) else tuple(sorted(set(self.gpus)))
        shares = [Share(layout=self.layout)] if self.layout else []
        shares += [Share(layout=part.layout, share=part.share) for part in self.mix or ()]
        return NodeGroup(
            hosts=hosts,
            gpus=gpus,
            shares=tuple(shares),
            product=self.product,
            count=self.count or 0,
            follow=Follow(self.follow) if self.follow else None,
        )


class PolicySection(_Section):
    exclusive: Literal["refuse", "allow"] = "refuse"
    mode: Literal["manage", "observe"] = "manage"
    stuck_prolog: Literal["requeue", "report"] = "requeue"
    duplicate_jobid: Literal["resume", "report"] = "resume"
    notices: bool = True


class ControllerSection(_Section):
    listen: Annotated[str, AfterValidator(_listen)] = "0.0.0.0:6820"
    address: Annotated[str, AfterValidator(_listen)] | None = None
    user: Word = "root"
    state_dir: File = Path("/var/lib/vgpu")
    catalogue: File = Path("/var/lib/vgpu/catalogue")
    job_ids: File | None = None
    slurm_conf: File | None = None
    slurm_bin: File | None = None
    munge_socket: File | None = None
    queue_reader: Literal["squeue", "pyslurm"] = "squeue"

    def to_place(self) -> ControllerPlace:
        known = self.model_dump() | {"address": self.address or "", "queue_reader": QueueReader(self.queue_reader)}
        return ControllerPlace(**known)


class PoolFile(_Section):
    version: Literal[1]
    pool: Word
    partitions: Annotated[list[Word], Field(min_length=1)]
    wait_partition: Word = "vgpu-wait"
    gres: GresSection = GresSection()
    default_class: str = ""
    classes: Annotated[dict[str, ClassSection], Field(max_length=MAX_CLASSES)] = {}
    aliases: Annotated[dict[str, str], Field(max_length=MAX_CLASSES)] = {}
    nodes: Annotated[list[NodesSection], Field(min_length=1)]
    policy: PolicySection = PolicySection()
    planning: PlanningSection = PlanningSection()
    controller: ControllerSection = ControllerSection()

    @model_validator(mode="after")
    def _distinct(self) -> "PoolFile":
        if self.wait_partition in self.partitions:
            raise ValueError("wait_partition must not be one of partitions")
        if self.gres.name == self.gres.memory:
            raise ValueError("gres.name and gres.memory must differ")
        if self.gres.pad != "pad" and self.gres.pad.lower() in self.classes.keys() | self.aliases.keys():
            raise ValueError(f"gres.pad must be neither a class nor an alias, as '{self.gres.pad}' is")
        return self

    def to_pool(self, hosts: Sequence[tuple[str, ...]], guarantees: Sequence[Guarantee]) -> PoolConfig:
        """`hosts`: those of each entry of nodes, expanded; `guarantees`: those of planning, understood."""
        return PoolConfig(
            pool=self.pool,
            partitions=tuple(self.partitions),
            wait_partition=self.wait_partition,
            gres=GresNames(**self.gres.model_dump()),
            default_class=self.default_class,
            classes={name: section.to_class() for name, section in self.classes.items()},
            aliases=dict(self.aliases),
            groups=tuple(s.to_group(names) for s, names in zip(self.nodes, hosts, strict=True)),
            exclusive=Exclusive(self.policy.exclusive),
            mode=Mode(self.policy.mode),
            stuck_prolog=StuckProlog(self.policy.stuck_prolog),
            duplicate_jobid=DuplicateJobid(self.policy.duplicate_jobid),
            notices=self.policy.notices,
            planning=self.planning.to_planning(guarantees),
            controller=self.controller.to_place(),
        )


def keys_at(path: tuple[str | int, ...]) -> tuple[str, ...]:
    """The keys that are known at a place of the file."""
    section = next((kind for pattern, kind in _SECTIONS if _matches(pattern, path)), PoolFile)
    return tuple(section.model_fields)


_ANY = None  # any part of a path
_SECTIONS: tuple[tuple[tuple[str | None, ...], type[BaseModel]], ...] = (
    (("classes", _ANY), ClassSection),
    (("nodes", _ANY), NodesSection),
    (("nodes", _ANY, "mix", _ANY), ShareSection),
    (("gres",), GresSection),
    (("policy",), PolicySection),
    (("planning",), PlanningSection),
    (("planning", "changing"), ChangingSection),
    (("planning", "classes", _ANY), ReachSection),
    (("controller",), ControllerSection),
)


def _matches(pattern: tuple[str | None, ...], path: tuple[str | int, ...]) -> bool:
    return len(pattern) == len(path) and all(part in (_ANY, here) for part, here in zip(pattern, path, strict=True))
