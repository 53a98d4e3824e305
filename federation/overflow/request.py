"""PURE: what of a job of Slurm's crosses: what Slurm says that it asked for, and what its proxy brought.

Only what has a meaning elsewhere does: of the environment what `fed submit` would take and what `--export` named; of
the facts that Slurm tells a job its name and its place in an array.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from federation.access.environment import scrub
from federation.access.paths import parts_of
from federation.errors import Refused
from federation.executors.layout import check
from federation.model.spec import STDIN, Array, Batch, JobSpec
from federation.overflow.burst import SlurmJob
from federation.overflow.frames import Hello
from federation.wire.convert import MAX_TEXT
from slurm_plugin import request

FIELDS = ("JobID", "NumCPUs", "MinMemory", "tres-alloc", "tres-per-node", "Account")
"""Of squeue."""

MOST_PATTERNS = 100  # of --stage-in, or --stage-out
MOST_LINES = 1000  # of a script, in which #SBATCH is looked for
_COUNTED = re.compile(r"vgpu_mem(?:[:=]|$)")  # by the pool itself, in each its own way
_MEMORY = re.compile(r"(?:^|,)mem=(\d+(?:\.\d+)?)([KMGTP]?)")
_UNITS = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}  # MiB
_NO_GRES = frozenset({"", "N/A", "(null)", "None"})
_OPTION = re.compile(rb"_SLURM_SPANK_OPTION_vgpu_burst_(stage_in|stage_out)")
_WARNED = re.compile(rb"#SBATCH\s+(?:\S.*\s)?--signal[=\s]\s*((?:[RB]{1,2}:)?\w{1,10}(?:@\d{1,5})?)(?:\s|$)")
_WARNING = re.compile(r"(?:R:)?(\w{1,10}(?:@\d{1,5})?)")
_FACTS = (b"COUNT", b"MIN", b"MAX", b"STEP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    cpus: int = 1
    memory_mib: int = 0  # 0: it did not say
    gres: str = ""
    account: str = ""
    warning: str = ""  # what --signal said on the command line of sbatch, where that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`environment`: variables that cross without being asked for."""

    environment: tuple[str, ...]
    pool: str  # SITE/POOL
    shared_files: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Patterns, from the job's folder on."""

    inputs: tuple[bytes, ...] = ()
    outputs: tuple[bytes, ...] = ()


def asked(row: Sequence[str]) -> Asked:
    """A row of FIELDS. Raises ValueError."""
    _, cpus, least_memory, allocated, gres, account = row
    memory = _MEMORY.search(allocated) if least_memory.strip("0KMGTP.") else None
    return Asked(
        cpus=max(1, int(cpus)),
        memory_mib=int(float(memory[1]) * _UNITS[memory[2]]) if memory else 0,
        gres=gres_of(gres),
        account="" if account in _NO_GRES else account,
    )


def gres_of(tres: str) -> str:
    """What squeue says that it has on its node. What it was submitted with no update changes."""
    elements = () if tres in _NO_GRES else request.elements(tres)
    return ",".join(one for one in elements if not _COUNTED.match(one))


def spec_of(hello: Hello, job: SlurmJob, wants: Asked, user: str, rules: Rules) -> JobSpec:
    """Without its inputs. Raises Refused, for what could run nowhere as it is."""
    env = dict(hello.env)
    crossing = scrub(hello.env, rules.environment, asked=_named(env.get(b"SLURM_EXPORT_ENV", b"")))
    spec = JobSpec(
        user=user,
        account=wants.account,
        name=env.get(b"SLURM_JOB_NAME", b""),
        script=hello.script,
        args=hello.args,
        env=crossing.env,
        gres=wants.gres,
        cpus=wants.cpus,
        memory_mib=wants.memory_mib,
        time_limit_s=job.limit_s,
        pin=rules.pool,
        outputs=() if rules.shared_files else files_of(hello).outputs,
        batch=Batch(
            job_id=job.job_id,
            array=_array(job, env),
            joined=hello.joined,
            umask=hello.umask,
            limits=tuple((one.name, one.soft) for one in hello.limits),
            warning=_warning(
                wants.warning or env.get(b"SBATCH_SIGNAL", b"").decode("latin-1") or _warned(hello.script)
            ),
            folder=hello.folder if rules.shared_files else b"",
            stdin=hello.stdin if rules.shared_files else STDIN if hello.stdin else b"",
        ),
    )
    check(spec)
    for what, told in (("account", spec.account), ("gres", spec.gres)):
        if not told.isprintable() or len(told) > MAX_TEXT:
            raise Refused(f"this {what} is no name: it is too long, or has what can't be printed")
    asked = request.parse(spec.gres) if spec.gres else None
    if isinstance(asked, request.Refusal):
        raise Refused(asked.text)
    return spec


def files_of(hello: Hello) -> Files:
    """What --stage-in and --stage-out said: patterns with commas between them. Raises Refused."""
    told: dict[bytes, tuple[bytes, ...]] = {}
    for name, value in hello.env:
        if (found := _OPTION.fullmatch(name)) is not None:
            patterns = tuple(one for one in value.split(b",") if one)
            if len(patterns) > MOST_PATTERNS:
                raise Refused(f"more than {MOST_PATTERNS} patterns of files", hint="pack them into one")
            for one in patterns:
                parts_of(one)
            told[found[1]] = patterns
    return Files(inputs=told.get(b"stage_in", ()), outputs=told.get(b"stage_out", ()))


def _named(export: bytes) -> tuple[bytes, ...]:
    """Variables that --export named one by one."""
    names = (one.partition(b"=")[0] for one in export.split(b","))
    return tuple(one for one in names if one not in (b"", b"ALL", b"NONE", b"NIL"))


def _array(job: SlurmJob, env: Mapping[bytes, bytes]) -> Array | None:
    """Which job it is, Slurm says; what the whole array is, it told the job only."""
    if not job.array_id or job.task_id < 0:
        return None
    facts = [env.get(b"SLURM_ARRAY_TASK_" + name, b"") for name in _FACTS]
    count, lowest, highest, step = (int(one) if one.isdigit() and len(one) < 10 else 0 for one in facts)
    return Array(
        job_id=job.array_id,
        task_id=job.task_id,
        count=count or 1,
        lowest=lowest,
        highest=highest or job.task_id,
        step=step or 1,
    )


def _warning(asked: str) -> str:
    """What is wanted of the steps that the script starts there: one for the script itself (`B:`) is sent here."""
    found = _WARNING.fullmatch(asked)
    return found[1] if found else ""


def _warned(script: bytes) -> str:
    """What the script's own lines say."""
    for line in script.split(b"\n", MOST_LINES)[:MOST_LINES]:
        if line and not line.startswith(b"#"):
            break
        if (found := _WARNED.match(line)) is not None:
            return found[1].decode("ascii", "replace")
    return ""
