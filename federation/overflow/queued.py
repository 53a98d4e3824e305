"""PURE: what squeue says of a job that waits: what keeps it here, how it is named, and what a pool would look at.

Names of features, reservations, licences and the like are users' and admins' words: see `slurm_plugin.slurm.table` for
how none of them passes for a field.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from federation.executors.slurm_commands import MAX_DAYS, seconds
from federation.overflow.facts import Waiting, Wish
from federation.overflow.notes import mark_in, note_in
from federation.overflow.offers import Wanted
from federation.overflow.request import gres_of
from slurm_plugin.slurm import notes, queue
from slurm_plugin.slurm.hostlist import expand

MOST_NAMED = 4000  # elements of an array that are named one by one

FIELDS = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "UserID", "Reason", "Partition", "PriorityLong", "SubmitTime"),
    *("EligibleTime", "StartTime", "SchedNodes", "NumNodes", "NumTasks", "NumCPUs", "TimeLimit", "Account", "QOS"),
    *("BatchFlag", "HetJobID", "ReqNodes", "Feature", "Licenses", "Reservation", "OverSubscribe", "Container"),
    *("BurstBuffer", "tres-per-node", "admin_comment"),
)
_NOTHING = frozenset({"", "N/A", "Unknown", "None", "(null)", "NONE", "NOT_SET", "INVALID"})
_WHOLE_NODES = "NO"  # what squeue calls --exclusive: its nodes are shared with nobody
_INPUT = re.compile(r"(?:^| )fed:in=(\d{1,12})(?= |$)")  # MiB that its --stage-in names, where submit has told
_OPEN = '"open":1'
_WAITS_FOR_ROOM = ("None", "Resources", "Priority", "ReqNodeNotAvail", "Nodes_required_for_job_are_DOWN")
_PARTITION_DOWN = "PartitionDown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What of a site's names the queue is read by."""

    cloud: str
    wait_partition: str
    virtual: frozenset[str]  # nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A record that waits, with what it takes to change it."""

    job: Waiting
    wanted: Wanted
    submitted_at: int
    elements: str = ""  # what waits of an array, as Slurm writes it
    comment: str = ""  # its AdminComment
    kept_from: tuple[str, ...] = ()  # virtual nodes that it must not start on

    def name(self, tasks: int) -> str:
        """What Slurm's commands call its first `tasks` elements; "": that can't be said."""
        if not self.elements:
            return str(self.job.job_id)
        if self.elements.isdecimal():
            return f"{self.job.root}_{self.elements}"
        text = self.elements.strip("[]").split("%")[0]
        named = notes.elements(text) if tasks >= self.job.tasks else _first(text, tasks)
        return f"{self.job.root}_[{named}]" if named else ""


def queued(row: Sequence[str], excluded: Sequence[str], names: Names) -> Queued:
    """One row of FIELDS, and the nodes that the job excludes. Raises ValueError, ConfigError."""
    own, array, task, uid, reason, partition, priority, submitted, *rest = row
    eligible, start, planned, nodes, tasks, cpus, limit, account, qos, batch, *rest = rest
    het, wanted_nodes, feature, licence, reservation, shared, container, buffer, tres, comment = rest
    partitions = tuple(name for name in partition.split(",") if name)
    elements = "" if task in _NOTHING else task
    pin = mark_in(comment).partition(":")[2]
    account, comment = ("" if text in _NOTHING else text for text in (account, comment))
    lacks = (
        (_number(uid) == 0, "it is root's"),
        (_number(batch) == 0, "it is interactive: only batch jobs go"),
        (_number(het) > 0, "it is a part of a heterogeneous job"),
        (_number(nodes.split("-")[0]) > 1, f"it asks for {nodes} nodes, and a job there has one"),
        (_number(tasks) > 1, f"it asks for {tasks} tasks, and a job there has one"),
        (wanted_nodes not in _NOTHING, "it names its nodes"),
        (bool(set(excluded) - names.virtual), "it excludes nodes"),
        (feature not in _NOTHING, "it asks for features of nodes"),
        (licence not in _NOTHING, "it asks for licences"),
        (reservation not in _NOTHING, "it is for a reservation"),
        (shared == _WHOLE_NODES, "it asks for whole nodes"),
        (container not in _NOTHING, "it runs in a container"),
        (buffer not in _NOTHING, "it uses a burst buffer"),
    )
    job = Waiting(
        job_id=_number(own),
        root=_number(array) if elements else _number(own),
        tasks=queue.array_tasks(elements) if elements else 1,
        uid=_number(uid),
        account=account,
        qos="" if qos in _NOTHING else qos,
        priority=_number(priority),
        partitions=partitions,
        since=max(_number(submitted), _number(eligible)),
        starts_at=_expected(start, planned, partitions, names),
        wish=Wish(mark_in(comment).partition(":")[0]),
        pin=pin,
        obstacle=next((why for is_so, why in lacks if is_so), ""),
        held=_held(reason, partitions, names),
        open=_OPEN in note_in(comment),
        input_bytes=_input_bytes(comment),
        slices=tres not in _NOTHING,
    )
    limit_s = 0 if limit in _NOTHING else seconds(limit)
    return Queued(
        job=job,
        wanted=Wanted(
            gres=gres_of(tres),
            cpus=max(1, _number(cpus)),
            limit_s=limit_s if limit_s <= MAX_DAYS * 86_400 else 0,
            account=account,
            pin=pin,
        ),
        submitted_at=_number(submitted),
        elements=elements,
        comment=comment,
        kept_from=tuple(sorted(set(excluded) & names.virtual)),
    )


def _expected(start: str, planned: str, partitions: Sequence[str], names: Names) -> float | None:
    """When Slurm expects it to start here. Of a widened job, only when it says on which nodes, and those are ours."""
    if start in _NOTHING or not _number(start):
        return None
    nodes = set(expand("" if planned in _NOTHING else planned))
    if nodes & names.virtual or (names.cloud in partitions and not nodes):
        return None
    return float(_number(start))


def _held(reason: str, partitions: Sequence[str], names: Names) -> str:
    """Why room would not start it. The last partition that Slurm looks at may be the DOWN one, which is ours."""
    if reason.startswith(_WAITS_FOR_ROOM) or (reason == _PARTITION_DOWN and names.wait_partition in partitions):
        return ""
    return f"more room would not start it: {reason}"


def _input_bytes(comment: str) -> int:
    found = _INPUT.findall(comment)
    return int(found[-1]) << 20 if found else 0


def _first(text: str, most: int) -> str:
    """The first elements of an array expression, as one; "" when that can't be told."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part)
        if match is None:
            return ""
        found += range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1)))[: most - len(found)]
        if len(found) >= min(most, MOST_NAMED):
            break
    return ",".join(_ranges(found))


def _ranges(numbers: Sequence[int]) -> list[str]:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ["-".join(map(str, part)) for part in parts]


def excluded(rows: Sequence[Sequence[str]]) -> Mapping[int, tuple[str, ...]]:
    """Rows of a job's id and the nodes that it excludes. Raises ValueError, ConfigError."""
    return {int(own): expand(text) for own, text in rows if text not in _NOTHING}


def _number(text: str) -> int:
    return 0 if text in _NOTHING else int(text)
