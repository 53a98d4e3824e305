"""PURE: what lies in an attempt's folder, for every executor alike.

    work/             the job's working folder: inputs are put here before it starts, outputs are taken from here after
    script  go        what the user wrote, and what starts it with its arguments, environment and limits
    wrapper           runs `go`; wrapper.sh
    claim             a symbolic link, made in one atomic step, that leads nowhere: its text says who has the attempt
    session           the process that leads the job's session
    stdout  stderr    what the job writes, as bytes
    exit              how it ended; its sizes of the output are final. Written beside and moved here
    timeout           there once its limit has passed
    alone             there for a batch job of Slurm's: a signal goes to what leads it, not to all of its processes

All of it is the job's user's own, who may write anything there: what is read is bounded and judged.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any
from uuid import UUID

from federation.errors import Refused
from federation.model.spec import STDIN, Batch, JobSpec
from federation.model.states import End, Outcome
from federation.model.token import Key

WORK, SCRIPT, GO, WRAPPER, CLAIM, SESSION, EXIT = "work", "script", "go", "wrapper", "claim", "session", "exit"
STDOUT, STDERR = "stdout", "stderr"
FENCE = "fence"  # the claim's text when we made it, so that the attempt never runs; after a dot, how it had ended
ALONE = "alone"
MARK = "FED_JOB"  # a variable of each process of a job, with its key

MAX_SCRIPT = 4 << 20  # bytes; Slurm's own default
MAX_STRING = (128 << 10) - 1  # bytes of one argument or variable; Linux's own bound
MAX_STRINGS = 1 << 20  # bytes of all of them; Linux has 2 MiB at the least
MAX_RECORD = 1024  # bytes of a claim or an exit record
MAX_AT = 1 << 40  # Unix seconds
CLAIM_DAYS = 90  # a claim with nothing beside it is kept: longer than journals remember a released attempt
SWEEP_S = 86400.0  # between looks for older ones
RESET = "FED_RESET"  # how the wrapper tells `go` which signals to stop ignoring
OURS = (RESET, "TZ", "LC_ALL", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")  # what Slurm's commands are run with

_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_CLAIM = re.compile(r"run\.(\d{1,10})\.(\d{1,20})\.([0-9a-f-]{36})\.(\d{1,12})")
_EXIT = re.compile(
    r"(code|signal|unknown) (\d{1,3}) (\d{1,12}) (\d{1,12}) (\d{1,18}) (\d{1,18}) (-|term|timeout)"
    r"(?: ([A-Za-z0-9._-]{1,64}) (-|\d{1,15}) (-|\d{1,18}) ([A-Za-z0-9,/-]{1,400}))?\n"
)
_FOLDER = re.compile(r"([0-9a-f]{32})\.(\d{1,9})")
_WARNING = re.compile(r"(?:[BR]{1,2}:)?[A-Za-z0-9]{1,10}(?:@\d{1,5})?")
_LIMITS = {"CPU": ("t", 1), "FSIZE": ("f", 512), "DATA": ("d", 1024), "STACK": ("s", 1024)}
_LIMITS |= {"CORE": ("c", 512), "NOFILE": ("n", 1), "AS": ("v", 1024)}
"""Resource limits that mean the same on another host, as sh's ulimit knows them: letter, and bytes of one unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who has an attempt. `pid`, `start` (ticks since boot) and `boot` name one process for all time.

    `end`, of a fence: how its backend had ended it before it started; None: somebody wanted that it never runs.
    """

    fence: bool = False
    end: End | None = None
    pid: int = 0
    start: int = 0
    boot: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """An exit record. `by_term`: the wrapper itself was told to end, which is the backend's doing and not a user's."""

    outcome: Outcome
    by_term: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What an attempt's folder shows. `uid`: whose it is; None: there is no folder. `since`: when it was changed.

    `sizes`: of both streams so far, for a job that leaves no exit record.
    """

    uid: int | None = None
    since: float = 0.0
    claim: Claim | None = None
    ending: Ending | None = None
    sizes: tuple[int, int] = (0, 0)

    @property
    def fenced(self) -> bool:
        return self.claim is not None and self.claim.fence


def name_of(key: Key) -> str:
    """Of the folder, and of the job in a scheduler: no text of a user's."""
    return f"{key.token.hex}.{key.attempt}"


def key_of(name: str) -> Key | None:
    found = _FOLDER.fullmatch(name)
    return Key(UUID(hex=found[1]), int(found[2])) if found else None


def check(spec: JobSpec) -> None:
    """Raises Refused, for what no backend could run as it was written."""
    script = spec.script
    if not script.startswith(b"#!"):
        hint = "begin it with the program that runs it, such as #!/bin/sh"
        raise Refused("this does not look like a batch script: its first line must begin with #!", hint=hint)
    if b"\r\n" in script:
        hint = "sed -i 's/\\r$//' SCRIPT converts it"
        raise Refused("the batch script has DOS line breaks (\\r\\n) instead of UNIX line breaks (\\n)", hint=hint)
    if b"\0" in script:
        raise Refused("the batch script has a NUL byte in it")
    if len(script) > MAX_SCRIPT:
        raise Refused(f"the batch script has {len(script)} bytes; {MAX_SCRIPT} are the most")
    strings = [*spec.args, *(name + b"=" + value for name, value in spec.env)]
    if any(b"\0" in one for one in strings):
        raise Refused("an argument or a variable has a NUL byte in it")
    if any(len(one) > MAX_STRING for one in strings) or sum(map(len, strings)) > MAX_STRINGS:
        raise Refused(f"arguments and variables may have {MAX_STRING} bytes each and {MAX_STRINGS} in all")
    for name, _ in spec.env:
        if not _NAME.fullmatch(name):
            raise Refused(f"{name[:64].decode('utf-8', 'backslashreplace')!r} is no variable's name")
    if spec.batch is not None:
        _check_batch(spec.batch)


def _check_batch(batch: Batch) -> None:
    if batch.warning and not _WARNING.fullmatch(batch.warning):
        raise Refused("--signal of the batch job is none that Slurm knows")
    for what, path in (("folder", batch.folder), ("stdin", batch.stdin if batch.stdin != STDIN else b"")):
        if path and (not path.startswith(b"/") or b"\0" in path or len(path) > MAX_STRING):
            raise Refused(f"the batch job's {what} is no absolute path")


def files(key: Key, spec: JobSpec, *, most_memory_mib: int = 0) -> dict[str, bytes]:
    """What is to be put into the folder before the job starts; all of it may be run. Raises Refused."""
    check(spec)
    wrapper = resources.files(__package__).joinpath("wrapper.sh").read_bytes()
    alone = {ALONE: b""} if spec.batch is not None else {}
    return {SCRIPT: spec.script, GO: _go(key, spec, most_memory_mib), WRAPPER: wrapper, **alone}


def _go(key: Key, spec: JobSpec, most_memory_mib: int) -> bytes:
    """Bytes are quoted for a shell and never looked at by one: variables go to env(1) as arguments."""
    batch = spec.batch or Batch()
    variables = [(MARK.encode(), name_of(key).encode()), *_facts(spec), *spec.env]
    words = b" ".join(_quoted(name + b"=" + value) for name, value in variables)
    args = b"".join(b" " + _quoted(one) for one in spec.args)
    unset = " ".join(f"-u {name}" for name in OURS)
    streams = f": > {STDERR}\nexec > {STDOUT} 2>&1" if batch.joined else f"exec > {STDOUT} 2> {STDERR}"
    limit = f"ulimit -d {most_memory_mib << 10} || exit 1\n" if most_memory_mib else ""
    head = f"#!/bin/sh\necho $$ > {SESSION}\n{streams} < /dev/null\numask {batch.umask:03o}\n".encode() + _stdin(batch)
    if batch.folder:
        place, script = b"here=$(pwd)\ncd -- " + _quoted(batch.folder), b'"$here"/' + SCRIPT.encode()
    else:
        place, script = b"cd " + WORK.encode(), b"../" + SCRIPT.encode()
    own = _own_id(batch) + _own_folder(batch)
    start = f"{_soft_limits(batch)}{limit}{own}exec setsid env {unset} ${RESET} ".encode()
    return head + place + b" || exit 1\n" + start + words + b" " + script + args + b"\n"


def _stdin(batch: Batch) -> bytes:
    """A file that can't be opened ends it, with a line in the job's own stderr."""
    if batch.stdin != STDIN:
        return b"exec < " + _quoted(batch.stdin) + b"\n" if batch.stdin else b""
    file = WORK.encode() + b"/" + _quoted(STDIN)
    return b"exec < " + file + b"\nrm -f " + file + b"\n"


def _facts(spec: JobSpec) -> list[tuple[bytes, bytes]]:
    """What Slurm tells a batch job of itself, and would tell it wrong, or not at all, where it runs."""
    if spec.batch is None:
        return []
    facts: list[tuple[bytes, bytes]] = [(b"SLURM_JOB_NAME", spec.name)]
    if spec.batch.folder:
        facts.append((b"SLURM_SUBMIT_DIR", spec.batch.folder))
    if (array := spec.batch.array) is not None:
        told = {"JOB_ID": array.job_id, "TASK_ID": array.task_id, "TASK_COUNT": array.count}
        told |= {"TASK_MIN": array.lowest, "TASK_MAX": array.highest, "TASK_STEP": array.step}
        facts += [(f"SLURM_ARRAY_{name}".encode(), b"%d" % value) for name, value in told.items()]
    return facts


def _own_id(batch: Batch) -> str:
    """Where no Slurm has given it one of its own."""
    names = ("SLURM_JOB_ID", "SLURM_JOBID")
    return "".join(f': "${{{name}:={batch.job_id}}}"; export {name}\n' for name in names) if batch.job_id else ""


def _own_folder(batch: Batch) -> str:
    """A Slurm has the folder there in which its sbatch was called."""
    return "" if batch.folder else '[ -z "${SLURM_JOB_ID:-}" ] || export SLURM_SUBMIT_DIR="$PWD"\n'


def _soft_limits(batch: Batch) -> str:
    """What this host does not allow stays as it is here, as in Slurm."""
    lines = ""
    for name, soft in batch.limits:
        if (known := _LIMITS.get(name)) is not None:
            letter, unit = known
            lines += f"ulimit -S -{letter} {'unlimited' if soft < 0 else soft // unit} 2> /dev/null || :\n"
    return lines


def _quoted(word: bytes) -> bytes:
    return shlex.quote(word.decode("latin-1")).encode("latin-1")


def argv(folder: str, limit_s: int) -> list[str]:
    return ["/bin/sh", f"{folder}/{WRAPPER}", folder, str(limit_s)]


def fence(end: End | None) -> str:
    """The text of a fence."""
    return FENCE if end is None else f"{FENCE}.{end.value.replace('_', '-')}"


_FENCES = {fence(end): end for end in (None, *End)}


def parse_claim(text: str) -> Claim:
    """A text that is none of ours was put there by the user: the attempt is his, and no process has it."""
    if text in _FENCES:
        return Claim(fence=True, end=_FENCES[text])
    found = _CLAIM.fullmatch(text)
    if found is None:
        return Claim()
    return Claim(pid=int(found[1]), start=int(found[2]), boot=found[3], at=_at(found[4]))


def parse_exit(text: str) -> Ending | None:
    """None: not a record."""
    found = _EXIT.fullmatch(text)
    if found is None or int(found[2]) > 255:
        return None
    kind, number, why = found[1], int(found[2]), found[7]
    end = {"code": End.EXITED, "signal": End.SIGNALED, "unknown": End.SIGNALED}[kind]
    outcome = Outcome(
        end=End.TIMEOUT if why == "timeout" else end,
        exit_code=number if kind == "code" else None,
        signal=number if kind == "signal" else None,
        started_at=_at(found[3]),
        ended_at=_at(found[4]),
        stdout_size=int(found[5]),
        stderr_size=int(found[6]),
        reason="what waited for it was killed" if kind == "unknown" else "",
        **_used(*found.groups()[7:]),
    )
    return Ending(outcome=outcome, by_term=why == "term" or kind == "unknown")


def _used(node: str | None, cpu: str, memory: str, slices: str) -> dict[str, Any]:
    """What the record tells beside the end: hundredths of a second, bytes. "-": nobody knows."""
    if node is None:
        return {}
    return {
        "node": "" if node == "-" else node,
        "cpu_s": None if cpu == "-" else int(cpu) / 100,
        "memory_mib": None if memory == "-" else int(memory) >> 20,
        "slices": "" if slices == "-" else slices,
    }


def _at(text: str) -> float:
    return float(min(int(text), MAX_AT))


def portions(keys: Sequence[Key], most: int) -> list[Sequence[Key]]:
    return [keys[at : at + most] for at in range(0, len(keys), most)]
