"""What is known of a running Slurm and of its files on this host, as values. `live` reads it, `checks` judge it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_plugin.ports import SlurmNode


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file on this host, as far as it could be read."""

    path: str
    text: str
    uid: int = 0
    mode: int = 0o644  # permission bits
    written_at: float = 0.0  # Unix seconds: the time stamp that Slurm compares
    changed_at: float = 0.0  # Unix seconds: when anything of it was changed, whatever its time stamp says

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What Slurm says of itself, and what could be read of its files on this host. What is not here says nothing."""

    config: Mapping[str, str]  # `scontrol show config`
    partitions: Mapping[str, Mapping[str, str]]  # `scontrol show partition`
    nodes: tuple[SlurmNode, ...]
    gres_conf: str = ""  # gres.conf's text, empty when it is not there
    hooks: Mapping[str, str] = field(default_factory=dict)  # Prolog, Epilog, ... -> paths and texts of what they run
    client_conf: File | None = None  # the slurm.conf of this host's clients, with what it includes
    cli_filter: File | None = None  # beside it
    job_submit: File | None = None  # job_submit.lua beside slurmctld's slurm.conf
    module: File | None = None  # vgpu.lua, there too
    own_module: str = ""  # vgpu.lua as this version has it
    hook_confs: tuple[File, ...] = ()
    answer: str | None = None  # to a request for a class that does not exist; None: not asked
