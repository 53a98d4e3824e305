"""What a user asked for. Names, script and environment are bytes: no site may change one of them."""

from dataclasses import dataclass, field
from enum import StrEnum


class OnSilence(StrEnum):
    """What becomes of a job whose two sites can't talk for longer than its lease."""

    KEEP = "keep"  # it runs on, and its results wait: never twice
    REPLACE = "replace"  # the far site stops it, and it starts anew elsewhere: may run twice, and its user agreed
    STOP = "stop"  # the far site stops it; it does not start again


STDIN = b".stdin.fed"  # the name of the input that a batch job reads as its stdin: no name before it starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Both sides measure from their last good exchange. `after_s` means nothing for KEEP."""

    on_silence: OnSilence = OnSilence.KEEP
    after_s: float = 0.0

    @property
    def limit_s(self) -> float | None:
        """The longest silence; None: any."""
        return None if self.on_silence is OnSilence.KEEP else self.after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file that has to be at the far site before the job starts. `path` is relative to the job's folder there."""

    path: bytes
    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A job's place in an array of Slurm's, and which numbers the array has."""

    job_id: int
    task_id: int
    count: int = 1
    lowest: int = 0
    highest: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a batch job of Slurm's had where it was submitted, and has where it runs."""

    job_id: int = 0
    array: Array | None = None
    joined: bool = False  # stdout and stderr are one file: all of it is in stdout, in its order
    umask: int = 0o022
    limits: tuple[tuple[str, int], ...] = ()  # soft resource limits, such as ("NOFILE", 1024); -1: none
    warning: str = ""  # what `sbatch --signal` asked for, such as B:USR1@60
    folder: bytes = b""  # where it runs, on files that both sites share; empty: in a folder of its own
    stdin: bytes = b""  # what it reads: an absolute path on such files, else STDIN, one of its inputs; empty: nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    user: str  # at the origin; the far site maps it by its own list
    account: str = ""
    name: bytes = b""
    script: bytes = b""
    args: tuple[bytes, ...] = ()
    env: tuple[tuple[bytes, bytes], ...] = ()
    gres: str = ""  # such as vgpu:20gb, as the user wrote it
    cpus: int = 1
    memory_mib: int = 0  # 0: the pool's default
    time_limit_s: int = 0  # counted from the start where it runs; 0: the pool's default
    pin: str = ""  # SITE or SITE/POOL; empty: wherever it suits
    deadline_at: float | None = None  # Unix seconds by which it should have ended
    inputs: tuple[Input, ...] = ()
    outputs: tuple[bytes, ...] = ()  # patterns of files to bring back
    lease: Lease = field(default_factory=Lease)
    batch: Batch | None = None  # of a job of Slurm's; only for a pool whose room says `batch`

    @property
    def input_bytes(self) -> int:
        return sum(one.size for one in self.inputs)
