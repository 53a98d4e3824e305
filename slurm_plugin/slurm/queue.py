"""What squeue says of jobs and steps: which fields are asked for, and what they mean. Pure.

A user writes in no field but those of _QUEUE_FIELDS_FREE, and their like; `table` keeps them in their place.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from slurm_plugin.errors import ConfigError, SlurmError
from slurm_plugin.model import RunKey
from slurm_plugin.ports import GresItem, JobRun, QueuedJob
from slurm_plugin.slurm.gres import parse_gres
from slurm_plugin.slurm.hostlist import expand

RUN_FIELDS = (
    *("JobID", "UserID", "StartTime", "State", "BatchFlag", "BatchHost", "HetJobID", "Requeue", "TimeLimit"),
    "tres-per-node",
)
START_FIELDS = (*RUN_FIELDS, "SubmitTime", "admin_comment")  # of one job that starts
# In the AdminComment of a job that runs at another site, or may: so the note of a federation's daemon begins.
ELSEWHERE = 'fed:{"open":1'
# By the letters of `squeue -o`: `-O` has no word for the nodes that a job excludes. Slurm alone writes in these ...
_QUEUE_FIELDS_PLAIN = {
    **{"JobID": "A", "ArrayJobID": "F", "ArrayTaskID": "K", "UserID": "U", "PriorityLong": "Q", "State": "T"},
    **{"NumNodes": "D", "NumCPUs": "C", "Partition": "P", "ReqNodes": "n", "ExcNodes": "x", "NodeList": "N"},
    **{"StartTime": "S", "SubmitTime": "V", "TimeLimit": "l"},
}
# ... and in these a user may: without accounting, Slurm takes any text for an account.
_QUEUE_FIELDS_FREE = {
    **{"Reason": "r", "Feature": "f", "Reservation": "v", "Account": "a", "QOS": "q", "tres-per-node": "b"},
}
QUEUE_FIELDS = _QUEUE_FIELDS_PLAIN | _QUEUE_FIELDS_FREE
QUEUE_PLAIN = len(_QUEUE_FIELDS_PLAIN)
TARGET_FIELDS = ("JobID", "UserID", "StartTime", "State", "ArrayJobID", "ArrayTaskID", "HetJobID")
STEP_FIELDS = ("StepID", "JobID", "tres-per-node", "tres-per-task", "NumTasks", "Nodes")

# Waiting for resources that the pool can bring; every other reason means that more slices would not start the job.
# PartitionDown is ours: the last partition Slurm looks at is the DOWN one that keeps the job's class legal.
_WAITS_FOR_RESOURCES = frozenset({"None", "Resources", "Priority"})
_PARTITION_DOWN = "PartitionDown"
# In these states a job holds nothing on any node.
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
# In these a job can be sent back or ended. One that ends already, such as by its owner, would come back by a requeue.
_ALIVE = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"})
# A long queue says the same few requests and host lists again and again.
_TEXTS_KEPT = 1024
_NUMBER = re.compile(r"\d+")
_ARRAY_LIMIT = re.compile(r"%(\d+)$")
_NOTHING = frozenset({"", "N/A", "(null)", "None"})
_YEAR_S = 365 * 24 * 3600  # what Slurm gives a job that it starts without a limit
_DURATION = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
# Names joined by one kind of sign: all of them, or any one. Counts, brackets and the like may mean anything.
_ALL_OF = re.compile(r"[\w.-]+(?:&[\w.-]+)*")
_ANY_OF = re.compile(r"[\w.-]+(?:\|[\w.-]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What of a site's names the queue is read by."""

    gres: str = "vgpu"
    wait_partition: str = "vgpu-wait"


def job_runs(rows: Iterable[Sequence[str]]) -> list[JobRun]:
    """Rows of RUN_FIELDS. Jobs that wait have started_at 0 (Slurm then prints when it expects them to start)."""
    return [_job_run(row, _gres_or_nothing(row[-1])) for row in rows]


def run_of(rows: Iterable[Sequence[str]], job_id: int) -> JobRun | None:
    """Rows of START_FIELDS: the run of this job. Raises SlurmError when what it asks for can't be read."""
    for *row, submitted, comment in rows:
        if _number(row[0]) == job_id:
            run = _job_run(row, parse_gres(row[-1]))
            return replace(run, submitted_at=_number(submitted), elsewhere=ELSEWHERE in comment)
    return None


def _job_run(row: Sequence[str], gres: tuple[GresItem, ...]) -> JobRun:
    job_id, uid, start, state, batch, host, heterogeneous, requeue, limit, _ = row
    is_batch = _number(batch) > 0
    own_script = is_batch and _number(heterogeneous) in (0, _number(job_id))
    return JobRun(
        key=_run_key(job_id, uid, start, state),
        state=state,
        gres=gres,
        batch=is_batch,
        requeue=is_batch and _number(requeue) > 0,
        limit_s=_seconds(limit),
        batch_host=host if own_script else "",
    )


def _run_key(job_id: str, uid: str, start: str, state: str) -> RunKey:
    started_at = 0 if state in _WAITING else _number(start)
    return RunKey(job_id=_number(job_id), started_at=started_at, uid=_number(uid))


def holds_something(run: JobRun) -> bool:
    return run.state not in _WAITING


def queued_job(row: Sequence[str], pool: Pool) -> QueuedJob | None:
    """One row of QUEUE_FIELDS, an array's elements as if its limit let them all run; None when it asks for no vgpu."""
    job_id, array, task_text, uid, priority, state, nodes, cpus, partitions, wanted, excluded, held, *rest = row
    start, submitted, limit, reason, features, reservation, account, qos, gres = rest
    items = _gres_or_nothing(gres) if pool.gres in gres else ()
    if not any(item.name == pool.gres for item in items):
        return None
    waiting = state in _WAITING
    names = _names(partitions)
    hosts = _hosts(wanted if waiting else held)
    return QueuedJob(
        job_id=_number(job_id),
        array_id=_number(array),
        uid=_number(uid),
        priority=_number(priority),
        state=state,
        reason=reason,
        gres=items,
        nodes=_number(nodes.split("-")[0]),
        tasks=array_tasks(task_text) if waiting else 1,
        array_limit=_array_limit(task_text) if waiting else 0,
        first_task=int(first[0]) if waiting and (first := _NUMBER.search(task_text)) else -1,
        elements="" if task_text in _NOTHING else task_text,
        partitions=names,
        wanted_nodes=hosts if waiting else (),
        excluded_nodes=_hosts(excluded) if waiting and excluded not in _NOTHING else (),
        features=_features(features),
        reserved=reservation not in _NOTHING,
        on_nodes=() if waiting else hosts,
        cpus=_number(cpus),
        started_at=0 if waiting else _number(start),
        account="" if account in _NOTHING else account,
        qos="" if qos in _NOTHING else qos,
        submitted_at=_number(submitted),
        limit_s=_seconds(limit),
        eligible=waiting and _number(priority) > 0 and _is_eligible(reason, names, pool),
    )


def limited(jobs: Iterable[QueuedJob]) -> tuple[QueuedJob, ...]:
    """The same, with only so many elements of an array as its limit lets start beside those that run."""
    jobs = tuple(jobs)
    arrays = {job.array_id for job in jobs if job.array_limit}
    if not arrays:
        return jobs
    running = Counter(job.array_id for job in jobs if job.array_id in arrays and job.state not in _WAITING)
    return tuple(_limited(job, running[job.array_id]) if job.array_limit else job for job in jobs)


def _limited(job: QueuedJob, running: int) -> QueuedJob:
    tasks = min(job.tasks, max(0, job.array_limit - running))
    return replace(job, tasks=tasks, eligible=job.eligible and tasks > 0)


@lru_cache(_TEXTS_KEPT)
def _gres_or_nothing(text: str) -> tuple[GresItem, ...]:
    """One user's odd request must not hide everybody else's: what cannot be read asks for nothing the pool knows."""
    try:
        return parse_gres(text)
    except SlurmError:
        return ()


@lru_cache(_TEXTS_KEPT)
def _hosts(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except ConfigError as error:
        raise SlurmError(f"squeue printed '{text[:80]}' where a host list belongs") from error


@lru_cache(_TEXTS_KEPT)
def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


@lru_cache(_TEXTS_KEPT)
def _seconds(text: str) -> int:
    """A time limit: `MM:SS`, `HH:MM:SS`, `D-HH:MM:SS`; 0 for none, as is what says no time (UNLIMITED, NOT_SET)."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    limit_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return limit_s if limit_s < _YEAR_S else 0


@lru_cache(_TEXTS_KEPT)
def _features(text: str) -> tuple[frozenset[str], ...]:
    """Sets of which a node must have one whole; () when any node may do, or that can't be told so simply."""
    if text in _NOTHING:
        return ()
    if _ALL_OF.fullmatch(text):
        return (frozenset(text.split("&")),)
    if _ANY_OF.fullmatch(text):
        return tuple(frozenset({name}) for name in text.split("|"))
    return ()


def _is_eligible(reason: str, partitions: Sequence[str], pool: Pool) -> bool:
    if reason == _PARTITION_DOWN:
        return pool.wait_partition in partitions
    return reason in _WAITS_FOR_RESOURCES or reason.startswith(("ReqNodeNotAvail", "Nodes_required_for_job_are_DOWN"))


def array_tasks(text: str) -> int:
    """How many elements an array expression stands for: `0-9,20-28:2%4` is 15.

    `N/A`, a single index and an expression that is not understood count as 1.
    """
    if text == "N/A" or text.isdecimal():
        return 1
    return max(1, sum(_range_size(part) for part in _ARRAY_LIMIT.sub("", text.strip("[]")).split(",") if part))


def _array_limit(text: str) -> int:
    limit = _ARRAY_LIMIT.search(text.strip("[]"))
    return int(limit[1]) if limit else 0


def has_element(text: str, element: int) -> bool:
    """Does an array expression stand for this one?"""
    parts = _ARRAY_LIMIT.sub("", text.strip("[]")).split(",")
    return any(element in some for part in parts if (some := _range(part)) is not None)


def _range_size(part: str) -> int:
    some = _range(part)
    return 1 if some is None else max(1, len(some))


def _range(part: str) -> range | None:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part)
    return match and range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1)))


def target(rows: Iterable[Sequence[str]], run: RunKey) -> str | None:
    """Rows of TARGET_FIELDS: how to name exactly this run's job to scancel and scontrol, or None when it is over.

    A run that started at 0 is a job that waits.

    The last element of an array to start has the array's own number as its id: named plainly, the whole array goes.
    A component of a heterogeneous job can only go as a whole, by its leader.
    """
    for own, uid, start, state, array, task, het in rows:
        if state in (_ALIVE if run.started_at else _WAITING) and _run_key(own, uid, start, state) == run:
            if het.isdecimal() and int(het):
                return het
            return f"{array}_{task}" if task.isdecimal() else own
    return None


def step_gres(rows: Iterable[Sequence[str]], job_id: int) -> dict[str, tuple[GresItem, ...]]:
    """Rows of STEP_FIELDS: what each step of this job asked for on a node, by `<job id>.<step>`.

    A step without a request of its own has its job's; one with `--gres=none` and the batch step have none. What a step
    asked for each task (`--tres-per-task`) is given as for a node with the most tasks, were they spread evenly.
    """
    steps: dict[str, tuple[GresItem, ...]] = {}
    for name, job, per_node, per_task, tasks, nodes in rows:
        step = name.partition(".")[2]  # before the dot an array's element is written <array>_<index>
        if job == str(job_id) and step:
            tasks_a_node = -(-_number(tasks) // max(1, len(_hosts(nodes))))
            steps[f"{job_id}.{step}"] = parse_gres(per_node) or _times(_only_gres(per_task), max(1, tasks_a_node))
    return steps


def _only_gres(tres: str) -> tuple[GresItem, ...]:
    """`cpu=2,gres/vgpu:1g.10gb:1,cpu:2`: the GRES among the TRES. On 23.02 and before they are `gres:`."""
    return parse_gres(",".join(part for part in tres.split(",") if part.startswith(("gres/", "gres:"))))


def _times(items: tuple[GresItem, ...], tasks: int) -> tuple[GresItem, ...]:
    return tuple(replace(item, count=item.count * tasks) for item in items)


def _number(text: str) -> int:
    """`N/A`, `Unknown` and an empty field are 0."""
    if text.isdecimal():
        return int(text)
    if text in ("", "N/A", "Unknown", "None", "(null)"):
        return 0
    raise SlurmError(f"squeue printed '{text[:80]}' where a number belongs")
