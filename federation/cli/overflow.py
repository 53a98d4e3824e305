"""`fed overflow`: which jobs of the Slurm here may run elsewhere, which do, and why the others stay."""

import pwd
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

import typer

from federation.cli.client import ask
from federation.cli.options import DEFAULT_SOCKET, DryRun, Json, Socket
from federation.cli.render import clock, printable, reason_lines, table
from federation.desk.view import OverflowJobView, OverflowRuleView, OverflowView, ReasonView
from slurm_plugin.cli.output import emit, emit_document

_STATES = {"to_widen": "may go", "to_recall": "to be taken back", "asked": "asked to go"}
_PHRASES = {
    "stays": "stays",
    "asked": "may run elsewhere",
    "widened": "may run elsewhere",
    "to_widen": "may go",
    "to_recall": "is to be taken back",
}


def overflow(
    dry_run: DryRun = False,
    stays: Annotated[bool, typer.Option("--all", "-a", help="With the jobs that stay, each with its reason.")] = False,
    socket: Socket = DEFAULT_SOCKET,
    json: Json = False,
) -> None:
    """Show which jobs of the Slurm here may run elsewhere, which do, what is spent, and why the others stay."""
    found = overflow_view(ask(socket, "overflow", dry=dry_run))
    emit_document("fed-overflow", found) if json else emit(overflow_lines(found, stays=stays or dry_run))


def overflow_view(told: dict[str, Any]) -> OverflowView:
    """What a newer daemon adds is left out."""
    known = {name: told[name] for name in OverflowView.__dataclass_fields__}
    known["rules"] = tuple(OverflowRuleView(**_known(OverflowRuleView, one)) for one in told["rules"])
    known["jobs"] = tuple(overflow_job_view(one) for one in told["jobs"])
    return OverflowView(**known)


def overflow_job_view(told: dict[str, Any]) -> OverflowJobView:
    known = _known(OverflowJobView, told) | {"reasons": tuple(ReasonView(**one) for one in told["reasons"])}
    return OverflowJobView(**known)


def _known(kind: type[Any], told: dict[str, Any]) -> dict[str, Any]:
    return {name: told[name] for name in kind.__dataclass_fields__}


def overflow_lines(found: OverflowView, *, stays: bool) -> Iterator[str]:
    did = "would do, looked" if found.dry else "looked"
    yield f"cluster {found.cluster}, partition {found.partition}: {did} at the queue at {clock(found.at)}"
    if found.problem:
        yield f"wrong: {printable(found.problem)}"
    if not found.rules:
        yield "no partition has a rule: only jobs that ask for it go"
    yield from table(("PARTITION", "WAIT", "WIDENED", "RUN THERE", "OF", "SPENT TODAY", "OF"), map(_rule, found.rules))
    listed = [job for job in found.jobs if stays or job.state != "stays"]
    if listed:
        yield ""
        head = ("JOB", "USER", "PARTITION", "STATE", "WAITED", "WHY")
        yield from table(
            head, ((j.job, _user(j.uid), j.partition or "-", _state(j), _waited(j, found.at), j.why) for j in listed)
        )
    if found.more:
        yield f"and {found.more} more"
    if not stays:
        yield from _reasons(found)


def _rule(rule: OverflowRuleView) -> tuple[object, ...]:
    spent = f"{rule.spent:.2f}" + (f" and {rule.reserved:.2f} reserved" if rule.reserved else "")
    per_day = "any" if rule.spend_per_day is None else f"{rule.spend_per_day:.2f}"
    return rule.partition, rule.waiting, rule.widened, rule.running, rule.most_jobs, spent, per_day


def _state(job: OverflowJobView) -> str:
    state = _STATES.get(job.state, job.state)
    return f"{state} ({job.elements})" if job.elements > 1 else state


def _waited(job: OverflowJobView, at: float) -> str:
    return f"{max(0.0, at - job.since):.0f}s" if job.since else "-"


def _reasons(found: OverflowView) -> Iterator[str]:
    """Of those that stay, the first of each partition: --all has every one."""
    left = [job for job in found.jobs if job.state == "stays"]
    if left:
        yield ""
        yield f"{len(left)} stay (fed overflow --all), such as {left[0].job}: {printable(left[0].why)}"


def explained(job: OverflowJobView) -> Iterator[str]:
    """What is so, then what each pool says to it."""
    why = printable(job.why)
    said = why if job.token else f"{_PHRASES.get(job.state, job.state)}: {why}"
    yield f"job {job.job} of {_user(job.uid)} {said}"
    yield from reason_lines(job.reasons)


@lru_cache
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
