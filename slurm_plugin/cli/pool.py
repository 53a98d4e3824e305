"""Commands that ask the controller: status, show, explain, plan, apply, doctor."""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_plugin.cli.options import DryRun, Json, Where
from slurm_plugin.cli.output import emit, emit_document, say, width
from slurm_plugin.cli.users import user_name
from slurm_plugin.errors import ConfigError, NotDone, RequestError

if TYPE_CHECKING:
    from slurm_plugin.cli.view import NodeView, PlanView, PoolView

APPLY_POLL_S = 0.5
SECONDS_COUNT_S = 600
HALF_A_DAY_S = 12 * 3600
MAX_JOB_ID = (1 << 32) - 1
OF_CONTROLLER = "pool.yaml"  # how the controller calls the text it was sent
FOUND = 1  # exit code of a check that found something

JOB = typer.Argument(metavar="JOBID", help="As squeue shows it: 12, 12_3, or 12_[4-9] for what waits of an array.")

show = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Everything the pool knows of one job, node or GPU."
)


def status(context: typer.Context, json: Json = False) -> None:
    """Every node and GPU, its slices, and what waits."""
    from slurm_plugin.cli.text import status_lines

    pool = _pool(context.obj)
    if json:
        emit_document("status", pool)
    else:
        emit(status_lines(pool, user_name, time.time(), local_time, width()))


@show.command("job")
def show_job(
    context: typer.Context,
    job: Annotated[str, JOB],
    json: Json = False,
) -> None:
    """The slices of a job. UUID, GPU and compute instance, placement, profile, isolation."""
    from slurm_plugin.cli.client import fetch_explanation
    from slurm_plugin.cli.target import target_of
    from slurm_plugin.cli.text import job_lines
    from slurm_plugin.cli.view import job_view

    number, element = _job_id(job)
    if element is not None:
        number = fetch_explanation(target_of(context.obj), number, element).job_id
    found = job_view(_pool(context.obj), number)
    if found is None:
        raise RequestError(f"the pool holds nothing for job {job}", hint=f"squeue -j {job} says whether Slurm knows it")
    if json:
        emit_document("job", found)
    else:
        emit(job_lines(found, user_name, time.time(), job))


@show.command("node")
def show_node(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NODE")],
    json: Json = False,
) -> None:
    """One node: Slurm's counts, every GPU, every slice, every grant."""
    from slurm_plugin.cli.text import node_lines, pool_problem_lines

    pool = _pool(context.obj)
    node = _node(pool, name)
    if json:
        emit_document("node", node)
    else:
        emit([*node_lines(node, user_name), *pool_problem_lines(pool)])


@show.command("gpu")
def show_gpu(
    context: typer.Context,
    gpu: Annotated[str, typer.Argument(metavar="NODE:INDEX|UUID")],
    json: Json = False,
) -> None:
    """One GPU, by node and index (n1:0) or by UUID."""
    from slurm_plugin.cli.text import gpu_lines

    pool = _pool(context.obj)
    node, _, index = gpu.rpartition(":")
    nodes = (_node(pool, node),) if node else pool.nodes
    for found in (each for one in nodes for each in one.gpus):
        if found.uuid == gpu or (node and str(found.index) == index):
            if json:
                emit_document("gpu", found)
            else:
                emit(gpu_lines(found))
            return
    raise RequestError(f"the pool has no GPU {gpu!r}", hint="`vgpu status` lists them; write NODE:INDEX or the UUID")


def explain(
    context: typer.Context,
    job: Annotated[str, JOB],
    json: Json = False,
) -> None:
    """Why a job waits, and what would start it."""
    from slurm_plugin.cli.client import fetch_explanation
    from slurm_plugin.cli.screen import fold
    from slurm_plugin.cli.target import target_of
    from slurm_plugin.cli.text import explanation_lines

    number, element = _job_id(job)
    told = fetch_explanation(target_of(context.obj), number, element)
    if json:
        emit_document("explanation", told)
    else:
        emit(fold(explanation_lines(told, user_name, local_time, job), width()))


def plan(
    context: typer.Context,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", envvar="VGPU_POLICY", metavar="FILE", help="Another pool.yaml to plan for."),
    ] = None,
    json: Json = False,
) -> None:
    """What `vgpu apply` would do to every GPU, and why. Changes nothing."""
    _show_plan(_planned(context.obj, policy), json=json)


def apply(
    context: typer.Context,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            envvar="VGPU_APPLY_WAIT",
            metavar="SECONDS",
            min=0,
            max=86400,
            help="Wait so long until every GPU that no running job holds up is done.",
        ),
    ] = 0,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make the controller re-read pool.yaml and drive the GPUs to it. Slices of running jobs are never touched."""
    from slurm_plugin.cli.client import fetch_plan, fetch_pool, request_apply
    from slurm_plugin.cli.screen import safe
    from slurm_plugin.cli.target import target_of

    if dry_run:
        _show_plan(_planned(context.obj, None), json=json)
        return
    target = target_of(context.obj)
    done = request_apply(target)
    if fetch_pool(target).mode == "observe":
        _show_plan(done, json=json)
        say("hint: the pool is only observed: nothing of this is done until `mode: observe` leaves pool.yaml")
        return
    deadline = time.monotonic() + wait
    while any(gpu.action == "change" for gpu in done.gpus) and time.monotonic() < deadline:
        time.sleep(APPLY_POLL_S)
        done = fetch_plan(target, "")
    _show_plan(done, json=json)
    if wait and (late := [gpu for gpu in done.gpus if gpu.action == "change"]):
        told = [line for node in fetch_pool(target).nodes for line in node.problems]
        for gpu in late:
            for line in (line for line in told if gpu.gpu in line):
                say(f"{gpu.node}:{gpu.index}: {safe(line)}")
        which = "1 GPU is" if len(late) == 1 else f"{len(late)} GPUs are"
        raise NotDone(f"{which} not done after {wait:g} s", hint="the controller goes on; see `vgpu status`")


def doctor(context: typer.Context, json: Json = False) -> None:
    """Check every invariant of the pool and every known trap of Slurm. Exit code 1 when something is found."""
    from slurm_plugin.cli.doctor import report_lines
    from slurm_plugin.cli.examine import examine

    report = examine(context.obj)
    if json:
        emit_document("doctor", report)
    else:
        emit(report_lines(report, width()))
    if report.findings:
        raise typer.Exit(FOUND)


def local_time(at: float) -> str:
    """A time on this host's clock: 14:05:10 when it is near, 14:05 within half a day, else with its date."""
    far = abs(at - time.time())
    form = "%H:%M:%S" if far < SECONDS_COUNT_S else "%H:%M" if far < HALF_A_DAY_S else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(at))


def _job_id(text: str) -> tuple[int, int | None]:
    """Of a job as squeue shows it: its number, or that of its array and which element. Raises RequestError."""
    found = re.fullmatch(r"([1-9][0-9]{0,9})(?:_([0-9]{1,9})|_\[[0-9,:%.-]+\])?", text, re.ASCII)
    if found is None or int(found[1]) > MAX_JOB_ID:
        part = re.fullmatch(r"[1-9][0-9]{0,9}\+[0-9]{1,9}", text, re.ASCII)  # of a heterogeneous job
        own = f"each part has a number of its own: squeue -h -j {text} -o %A"
        raise RequestError(
            f"{text!r} is no job id", hint=own if part else "write it as squeue shows it: 12, 12_3 or '12_[4-9]'"
        )
    return int(found[1]), int(found[2]) if found[2] else None


def _pool(where: Where) -> "PoolView":
    from slurm_plugin.cli.client import fetch_pool
    from slurm_plugin.cli.target import target_of

    return fetch_pool(target_of(where))


def _node(pool: "PoolView", name: str) -> "NodeView":
    for node in pool.nodes:
        if node.name == name:
            return node
    listed = ", ".join(node.name for node in pool.nodes[:20]) or "none"
    raise RequestError(f"the pool has no node {name!r}", hint=f"its nodes: {listed}")


def _planned(where: Where, policy: Path | None) -> "PlanView":
    """The plan for a file: the one that is asked for, else the pool's own. Raises ConfigError that names that file."""
    from slurm_plugin.cli.client import fetch_plan
    from slurm_plugin.cli.target import target_of

    path = policy or where.config
    text = _policy_text(path, optional=policy is None)
    try:
        return fetch_plan(target_of(where), text)
    except ConfigError as error:
        told = str(error)
        if not told.startswith(OF_CONTROLLER):
            raise
        raise ConfigError(f"{path}{told.removeprefix(OF_CONTROLLER)}", hint=error.hint) from None


def _policy_text(path: Path, *, optional: bool) -> str:
    """The file's text; empty, which stands for what the controller has, when an optional one is not there."""
    from slurm_plugin.document import read_file

    if optional and not path.exists():
        return ""
    text = read_file(path)
    if not text.strip():  # it would stand for what the controller has
        raise ConfigError(f"{path}: the file is empty", hint="configs/pool.yaml is a commented example")
    return text


def _show_plan(plan: "PlanView", *, json: bool) -> None:
    from slurm_plugin.cli.text import plan_lines

    if json:
        emit_document("plan", plan)
    else:
        emit(plan_lines(plan, width()))
    if not plan.gpus and sys.stderr.isatty():
        say("hint: no GPU is in the pool yet; are the agents connected? (`vgpu status`)")
