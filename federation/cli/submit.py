"""`fed submit`: give a job to this site's daemon, which runs it here or forwards it, once."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from federation.cli.amounts import deadline, mebibytes, seconds, silence, tasks
from federation.cli.client import asked
from federation.cli.options import DEFAULT_SOCKET, Json, Socket
from federation.cli.render import job_view, printable
from federation.desk.talk import PORTION
from federation.errors import ConfigError, FedError, OutcomeUnknown, Unavailable
from federation.model.token import RANDOM_BYTES, array_of, mint, of_task
from slurm_plugin.cli.output import emit, emit_document, say

MAX_SCRIPT = 4 << 20
TRIES, PAUSE_S = 5, 1.0  # when the daemon went away in the middle: the same token is never two jobs
PROGRESS_BYTES, PROGRESS_S = 64 << 20, 1.0  # inputs larger than this show how far they are

Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME[=VALUE]", help="A variable that the job gets; more than once for more."),
]
Deadline = Annotated[
    str,
    typer.Option(
        "--deadline",
        envvar="FED_DEADLINE",
        metavar="WHEN",
        help="When it should have ended: 4:00:00 from now, or 2030-12-31T18:00.",
    ),
]
OnSilence = Annotated[
    str,
    typer.Option(
        "--on-silence",
        envvar="FED_ON_SILENCE",
        metavar="keep|stop:TIME|replace:TIME",
        help="When its site can't be reached for so long: it runs on, is stopped there, or is started anew elsewhere.",
    ),
]
Token = Annotated[
    str,
    typer.Option(
        "--token", metavar="TOKEN", help="Of a submit of the last day whose outcome is unknown: one job, never two."
    ),
]
StageIn = Annotated[
    list[str] | None,
    typer.Option("--stage-in", metavar="PATH", help="A file or folder that the job finds under the same name."),
]
StageOut = Annotated[
    list[str] | None,
    typer.Option("--stage-out", metavar="PATTERN", help="Files of the job's to bring back here, such as 'out/*'."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """One file of input: where it is here, and its name there."""

    path: Path
    name: str
    size: int
    mode: int


def submit(
    script: Annotated[Path | None, typer.Argument(metavar="SCRIPT", help="The job's script; - for stdin.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The script's arguments.")] = None,
    wrap: Annotated[str, typer.Option("--wrap", metavar="COMMAND", help="A command instead of a script.")] = "",
    gres: Annotated[str, typer.Option("--gres", envvar="FED_GRES", metavar="GRES", help="Such as vgpu:20gb.")] = "",
    limit: Annotated[
        str, typer.Option("--time", "-t", envvar="FED_TIME", help="Limit: minutes, H:MM:SS or D-HH.")
    ] = "",
    by: Deadline = "",
    on_silence: OnSilence = "keep",
    cpus: Annotated[int, typer.Option("--cpus", "-c", envvar="FED_CPUS", min=1, help="CPUs.")] = 1,
    mem: Annotated[str, typer.Option("--mem", envvar="FED_MEM", help="Memory, such as 4G.")] = "",
    name: Annotated[str, typer.Option("--name", "-J", envvar="FED_NAME", help="The job's name.")] = "",
    account: Annotated[str, typer.Option("--account", "-A", envvar="FED_ACCOUNT", help="Who pays.")] = "",
    array: Annotated[
        str, typer.Option("--array", "-a", help="One job for each: 0-9, 1-9:2 or 1,3. It is in ARRAY_TASK_ID.")
    ] = "",
    to: Annotated[
        str, typer.Option("--to", envvar="FED_TO", metavar="SITE[/POOL]", help="There and nowhere else.")
    ] = "",
    stage_in: StageIn = None,
    stage_out: StageOut = None,
    env: Env = None,
    token: Token = "",
    socket: Socket = DEFAULT_SOCKET,
    json: Json = False,
) -> None:
    """Submit a job: its token is printed, and from then on it runs once, whatever is cut or restarted."""
    source, title = _script(script, wrap)
    lease, lease_s = silence(on_silence)
    question: dict[str, Any] = {
        "do": "submit",
        "name": name or title,
        "args": arguments or [],
        "script_size": len(source),
        "gres": gres,
        "cpus": cpus,
        "memory_mib": mebibytes(mem) if mem else 0,
        "time_limit_s": seconds(limit) if limit else 0,
        "account": account,
        "deadline_at": deadline(by, time.time()) if by else None,
        "on_silence": lease,
        "lease_s": lease_s,
        "pin": to,
        "outputs": stage_out or [],
        "folder": str(Path.cwd()),
    }
    staged = _staged(stage_in or ())
    question["inputs"] = [(one.name, one.size, one.mode) for one in staged]
    each = _each(env or (), tasks(array) if array else (None,), token)
    questions = [question | one | {"settle": nth == 0} for nth, one in enumerate(each)]  # its tasks want the same
    jobs = _all(socket, questions, source, staged)
    printed = str(jobs[0]["array"] or jobs[0]["job"])
    if waits := jobs[0]["waits"]:
        say(printable(f"job {printed} waits: {waits}"))
    dropped = {word for told in jobs for word in str(told["dropped"]).split()}
    if dropped:
        say(f"these variables never cross: {' '.join(sorted(dropped))}")
    if json:
        from federation.desk.view import FedJobList

        emit_document("fed-jobs", FedJobList(jobs=tuple(map(job_view, jobs))))
    else:
        emit([printed])


def _script(path: Path | None, wrap: str) -> tuple[bytes, str]:
    if (path is None) == (not wrap):
        raise ConfigError("give a script or --wrap", hint="fed submit job.sh, or fed submit --wrap 'hostname'")
    if path is None:
        return b"#!/bin/sh\n" + os.fsencode(wrap) + b"\n", "wrap"
    with open(0, "rb", closefd=False) if str(path) == "-" else path.open("rb") as file:
        source = file.read(MAX_SCRIPT + 1)
    if any(line.startswith(b"#SBATCH") for line in source[: 1 << 16].splitlines()):
        say("the script has #SBATCH lines: fed does not read them, only the options of its own command line")
    return source, "stdin" if str(path) == "-" else path.name


def _each(asked_for: Sequence[str], numbers: Sequence[int | None], told: str) -> Iterator[dict[str, Any]]:
    """What is each job's own: of one without a number, or of each task of an array. A token of any task tells all."""
    minted = _told(told, numbers) if told else mint(int(time.time() * 1000), os.urandom(RANDOM_BYTES))
    for number in numbers:
        token = minted if number is None else of_task(minted, number)
        yield {"token": str(token)} | _environment(asked_for, token, len(numbers))


def _told(token: str, numbers: Sequence[int | None]) -> UUID:
    try:
        told = UUID(token)
    except ValueError:
        raise ConfigError(f"--token {token}: it is none", hint="fed submit tells it when it had no answer") from None
    if (array_of(told) is None) != (None in numbers):
        raise ConfigError(f"--token {token}: with --array it is a task's, and else a job's", hint="submit as before")
    return told


def _environment(asked_for: Sequence[str], token: UUID, count: int) -> dict[str, Any]:
    """All of ours, of which the daemon takes what its file allows, then those that were asked for by name."""
    own = list(os.environ.items())
    asked = []
    for one in asked_for:
        name, equals, value = one.partition("=")
        if not equals and name not in os.environ:
            raise ConfigError(f"--env {name}: there is no such variable here", hint=f"--env {name}=VALUE")
        asked.append((name, value if equals else os.environ[name]))
    if (array := array_of(token)) is not None:
        asked += [("ARRAY_JOB_ID", array[0]), ("ARRAY_TASK_ID", str(array[1])), ("ARRAY_TASK_COUNT", str(count))]
    return {"env": own + asked, "asked": [name for name, _ in asked]}


def _staged(paths: Iterable[str]) -> list[Staged]:
    found: list[Staged] = []
    for told in paths:
        path = Path(told)
        name = path.name if path.is_absolute() else os.path.normpath(told)
        if not path.is_dir():
            found.append(_file(path, name))
            continue
        inside = (Path(where) / one for where, _, names in os.walk(path) for one in names)
        found += [_file(one, os.path.normpath(f"{name}/{one.relative_to(path)}")) for one in sorted(inside)]
    return found


def _file(path: Path, name: str) -> Staged:
    facts = path.stat()
    if not path.is_file():
        raise ConfigError(f"--stage-in {path}: it is no plain file")
    return Staged(path=path, name=name, size=facts.st_size, mode=facts.st_mode & 0o777)


def _all(
    socket: Path, questions: Sequence[dict[str, Any]], source: bytes, staged: Sequence[Staged]
) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = []
    try:
        for question in questions:
            jobs.append(_one(socket, question, source, staged, begun=bool(jobs)))
    except FedError:
        if jobs:
            say(f"{len(jobs)} of {len(questions)} tasks were submitted, as {jobs[0]['array']}")
        raise
    return jobs


def _one(
    socket: Path, question: dict[str, Any], source: bytes, staged: Sequence[Staged], *, begun: bool
) -> dict[str, Any]:
    """Submit it; again, with the same token, when the daemon goes away in the middle. Raises what it answers.

    Who had no answer once has the job, perhaps, though nobody is there to say so now. `begun`: he has some of an array.
    """
    unknown = begun
    for left in reversed(range(TRIES)):
        try:
            with asked(socket, question, _bytes(source, staged), patient=bool(staged)) as answer:
                return answer.one()
        except (OutcomeUnknown, Unavailable) as error:
            unknown = unknown or isinstance(error, OutcomeUnknown)
            if not unknown:
                raise
            if not left:
                again = f"submit the same with --token {question['token']}: that is one job, never two"
                raise OutcomeUnknown(str(error), hint=again) from None
        time.sleep(PAUSE_S)
    raise AssertionError("the last try returns or raises")


def _bytes(source: bytes, staged: Sequence[Staged]) -> Iterator[bytes]:
    yield source
    total, sent, told_at = sum(one.size for one in staged), 0, time.monotonic()
    for one in staged:
        left = one.size
        with one.path.open("rb") as file:
            while left:
                data = file.read(min(PORTION, left))
                if not data:
                    raise ConfigError(f"{one.path} became shorter while it was read", hint="submit when it is finished")
                yield data
                left, sent = left - len(data), sent + len(data)
                if total > PROGRESS_BYTES and time.monotonic() - told_at > PROGRESS_S:
                    told_at = time.monotonic()
                    say(f"{sent >> 20} of {total >> 20} MiB of input")
