"""`fed jobs`, `show`, `explain`, `logs`, `wait`, `cancel`, `signal`, `requeue`: what is asked about jobs."""

import re
import signal as signals
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from federation.cli.client import ask, asked
from federation.cli.options import DEFAULT_SOCKET, Json, Socket
from federation.cli.overflow import explained, overflow_job_view
from federation.cli.render import explain_lines, job_lines, job_view, label, printable, say_others, show_lines, state
from federation.desk.view import FedJobList, FedJobView
from federation.errors import ConfigError, OutcomeUnknown
from slurm_plugin.cli.output import emit, emit_document, say

TIMED_OUT, OTHERWISE = 124, 1  # exit codes of `wait` for a job that had none of its own

_SLURM_JOB = re.compile(r"[1-9]\d*(_\d+|_\[.*\])?")  # a token of ours begins with a 0

JobName = Annotated[str, typer.Argument(metavar="[JOB]", help="Its token or the begin of it. Default: your newest.")]
JobNames = Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Jobs, arrays. Default: your newest.")]
SomeJobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="Tokens, arrays, or the begin of each.")]


def jobs(
    names: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="These, or of these arrays.")] = None,
    everybody: Annotated[bool, typer.Option("--all-users", help="Of all users, for an admin.")] = False,
    done: Annotated[bool, typer.Option("--done", "-d", help="The newest, those that are done with them.")] = False,
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="No more than this.")] = 1000,
    socket: Socket = DEFAULT_SOCKET,
    json: Json = False,
) -> None:
    """List jobs that are not done."""
    told = [ask(socket, "jobs", job=name, everybody=everybody, done=done, most=most) for name in names or ("",)]
    once = {one["job"]: one for list_ in told for one in list_["jobs"]}  # a job may be named twice, or by its array too
    found = FedJobList(jobs=tuple(map(job_view, once.values())))
    emit_document("fed-jobs", found) if json else emit(job_lines(found.jobs))
    say_others(sum(list_.get("others", 0) for list_ in told), "job")


def show(job: JobName = "", socket: Socket = DEFAULT_SOCKET, json: Json = False) -> None:
    """Show all about one job."""
    view = job_view(ask(socket, "show", job=job))
    emit_document("fed-job", view) if json else emit(show_lines(view))


def explain(
    job: Annotated[
        str, typer.Argument(metavar="[JOB]", help="Of fed, or of the Slurm here. Default: your newest.")
    ] = "",
    socket: Socket = DEFAULT_SOCKET,
    json: Json = False,
) -> None:
    """Say why a job is where it is, and what speaks for and against each pool; of Slurm's jobs, why they stay or go."""
    if _SLURM_JOB.fullmatch(job):
        found = overflow_job_view(ask(socket, "overflow_job", job=job))
        if json:
            emit_document("fed-overflow-job", found)
            return
        emit(explained(found))
        if not found.token:
            return
        job = found.token
    view = job_view(ask(socket, "show", job=job))
    emit_document("fed-job", view) if json else emit(explain_lines(view))


def logs(
    job: JobName = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    socket: Socket = DEFAULT_SOCKET,
) -> None:
    """Print what a job has written: its stdout to stdout, its stderr to stderr, byte for byte."""
    question = {"do": "logs", "job": job, "follow": follow}
    out = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
    with asked(socket, question, patient=follow) as answer:
        for told in answer:
            if "remark" in told:
                say(printable(f"fed: {told['remark']}"))
            elif "missing" in told:
                first, count = told["offset"], told["missing"]
                say(f"fed: bytes {first} to {first + count - 1} of {told['stream']} are missing")
            else:
                out[told["stream"]].write(answer.read(told["size"]))
                out[told["stream"]].flush()


def wait(
    names: JobNames = None,
    socket: Socket = DEFAULT_SOCKET,
    json: Json = False,
) -> None:
    """Wait until jobs are over and their files are here; exits with the code of the first that was not 0."""
    with asked(socket, {"do": "wait", "jobs": names or [""]}, patient=True) as answer:
        wanted = answer.one()["waiting"]
        found = []
        for told in answer:
            if "remark" in told:
                say(printable(told["remark"]))
            else:
                found.append(job_view(told))
    if len(found) != wanted:
        raise OutcomeUnknown("the daemon ended while we waited", hint="wait again")
    if json:
        emit_document("fed-jobs", FedJobList(jobs=tuple(found)))
    codes = [code_of(view) for view in found]
    for view, code in zip(found, codes, strict=True):
        if code or view.why:
            why = f": {view.why}" if view.why not in ("", view.end) else ""
            say(printable(f"job {label(view)}: {state(view)}{why}"))
    raise typer.Exit(next((code for code in codes if code), 0))


def code_of(job: FedJobView) -> int:
    """The job's own, 128 + n for a death by signal n, and for every other end one that is not 0."""
    if job.end == "timeout":
        return TIMED_OUT
    if job.exit_code is not None and job.end == "exited":
        return job.exit_code
    if job.signal is not None and job.end == "signaled":
        return 128 + job.signal
    return OTHERWISE


def cancel(
    names: SomeJobs,
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up",
            help="What is not fetched of jobs that are over; by an admin: jobs at a site that is gone.",
        ),
    ] = False,
    socket: Socket = DEFAULT_SOCKET,
    json: Json = False,
) -> None:
    """Cancel jobs. It is tried until the far site confirms it, whatever is cut or restarted."""
    _told(_each(socket, "give_up" if give_up else "cancel", names), json)


def requeue(names: SomeJobs, socket: Socket = DEFAULT_SOCKET, json: Json = False) -> None:
    """End the attempts of jobs, and start others once that is confirmed."""
    _told(_each(socket, "requeue", names), json)


def signal(
    names: SomeJobs,
    which: Annotated[str, typer.Option("--signal", "-s", metavar="SIGNAL", help="Its name or number.")] = "TERM",
    socket: Socket = DEFAULT_SOCKET,
    json: Json = False,
) -> None:
    """Send a signal to running jobs, at most once each."""
    _told(_each(socket, "signal", names, signal=_number(which)), json)


def _number(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return int(signals.Signals[f"SIG{text.upper().removeprefix('SIG')}"])
    except KeyError:
        raise ConfigError(f"'{text}' is no signal", hint="such as USR1, or 10") from None


def _each(socket: Path, do: str, names: list[str], **what: Any) -> list[dict[str, Any]]:
    return [job for name in names for job in ask(socket, do, job=name, **what)["jobs"]]


def _told(found: list[dict[str, Any]], json: bool) -> None:
    if json:
        emit_document("fed-jobs", FedJobList(jobs=tuple(map(job_view, found))))
