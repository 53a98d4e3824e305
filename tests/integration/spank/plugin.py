"""A plugin with a Slurm around it that the test plays: what it is called with, and what it does."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tests.integration.spank.daemon import SPANK

_STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g")
_SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WITHOUT_SU = ("unshare", "--mount", "sh", "-c", 'mount --bind /dev/null "$(command -v su)" && exec "$@"', "sh")
WITHOUT_PROGRAMS = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none "$(dirname "$(command -v su)")" && exec "$@"',
    "sh",
)


def with_su(program: Path) -> tuple[str, ...]:
    """In the place of the real one."""
    return ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$(command -v su)" && exec "$@"', str(program))


class Context(IntEnum):
    """spank_context_t."""

    LOCAL = 1
    REMOTE = 2
    ALLOCATOR = 3
    SLURMD = 4
    JOB_SCRIPT = 5


class Step(IntEnum):
    INTERACTIVE = 0xFFFFFFFA
    BATCH = 0xFFFFFFFB
    EXTERN = 0xFFFFFFFC
    PENDING = 0xFFFFFFFD


def build(folder: Path, name: str, *sources: str) -> Path:
    program = folder / name
    host = Path(__file__).parent / "host.c"
    own = [str(SPANK / source) for source in sources]
    subprocess.run(["gcc", *_STRICT, *_SANITIZE, "-o", str(program), str(host), *own], check=True)
    return program


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    code: int
    returned: Mapping[str, str]  # by call; what else it printed in words
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    program: Path
    folder: Path

    def run(
        self,
        context: Context,
        *calls: str,
        arguments: Sequence[str] = (),
        env: Sequence[bytes] = (),
        argv: Sequence[bytes] = (),
        before: Sequence[str] = (),
        **own: str | int,
    ) -> Ran:
        """`env`, `argv`: the job's. `own`: more of the process's own environment. `before`: what runs it."""
        files = {"HOST_ENV": env, "HOST_ARGV": argv}
        for name, entries in files.items():
            (self.folder / name).write_bytes(b"".join(one + b"\0" for one in entries))
        environment = {
            "PATH": os.environ["PATH"],
            "ASAN_OPTIONS": "exitcode=99:detect_leaks=0",  # what a job's process keeps is gone at its exec
            "HOST_CONTEXT": str(int(context)),
            **{name: str(self.folder / name) for name in files},
            **{name: str(int(value) if isinstance(value, IntEnum) else value) for name, value in own.items()},
        }
        done = subprocess.run(
            [*before, self.program, *calls, "--", *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=60,
            check=False,
        )
        rows = [row.rpartition(" ") for row in done.stdout.splitlines()]
        return Ran(code=done.returncode, returned={first: last for first, _, last in rows}, err=done.stderr)
