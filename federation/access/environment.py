"""PURE: which variables of a job's environment cross from one site to another.

Two rules, and both must let a name pass: a site's own list of what may cross, and what never does. Never: what
describes the job that its submitter was in, what the far site itself sets to bind the job, and what makes a program
load or run something before its own first line.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

Environment = Sequence[tuple[bytes, bytes]]

NEVER_BEGINS = (b"SLURM", b"SBATCH_", b"SALLOC_", b"SRUN_", b"SPANK_", b"PMI", b"FED_", b"LD_", b"BASH_FUNC_")
NEVER = frozenset(
    {b"BASH_ENV", b"ENV", b"SHELLOPTS", b"BASHOPTS", b"PS4", b"PROMPT_COMMAND", b"IFS", b"GCONV_PATH", b"LOCPATH"}
    | {b"GLIBC_TUNABLES", b"CUDA_VISIBLE_DEVICES", b"NVIDIA_VISIBLE_DEVICES", b"ROCR_VISIBLE_DEVICES"}
    | {b"GPU_DEVICE_ORDINAL", b"KRB5CCNAME", b"SSH_AUTH_SOCK", b"XAUTHORITY"}
)
DEFAULT_ALLOW = ("LANG", "LC_*", "TZ", "TERM", "OMP_*", "MKL_*", "OPENBLAS_*", "PYTHONUNBUFFERED")
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubbed:
    env: tuple[tuple[bytes, bytes], ...]
    dropped: tuple[bytes, ...]  # names, for a person to be told


def check_pattern(text: str) -> str:
    """NAME, NAME_* or *. Raises ValueError."""
    if not _PATTERN.fullmatch(text):
        raise ValueError(f"'{text[:64]}' is no variable's name, nor the begin of one with * after it")
    if never(text.rstrip("*").encode()) and text != "*":
        raise ValueError(f"{text} never crosses")
    return text


def scrub(env: Environment, allow: Sequence[str], *, asked: Sequence[bytes] = ()) -> Scrubbed:
    """What crosses, in its order. `asked`: names that the user gave one by one; the list need not have those.

    Of a name that is there twice the last counts, as it does in a shell.
    """
    kept: dict[bytes, bytes] = {}
    dropped: dict[bytes, None] = {}
    wanted = frozenset(asked)
    for name, value in env:
        passes = bool(_NAME.fullmatch(name)) and b"\0" not in value and not never(name)
        if passes and (name in wanted or any(_matches(name, one.encode()) for one in allow)):
            kept[name] = value
        else:
            dropped[name] = None
    return Scrubbed(env=tuple(kept.items()), dropped=tuple(dropped))


def never(name: bytes) -> bool:
    return name in NEVER or name.startswith(NEVER_BEGINS)


def _matches(name: bytes, pattern: bytes) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith(b"*") else name == pattern
