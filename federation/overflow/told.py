"""PURE: what Slurm has to be told of its virtual nodes: counts, comments, and who is in the partition."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from federation.config_overflow import OverflowConfig, VirtualNodes
from federation.overflow.published import Here, Taking, Want, offered, spread, taking
from federation.policy.choose import Pool
from slurm_plugin.controller.counts import publish, same
from slurm_plugin.controller.demand import takes_jobs
from slurm_plugin.pool import GresNames
from slurm_plugin.ports import JobRun, QueuedJob, SlurmNode
from slurm_plugin.slurm.gres import format_gres
from slurm_plugin.slurm.hostlist import compress, expand

OURS = "fed: "  # what a comment of ours begins with
OPEN, CLOSED = "UP", "DOWN"
MOST_COMMENT = 150  # characters; another site's words are in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """What is known of the far side: pools by SITE/POOL, and how far our jobs have come, by JobId."""

    pools: Mapping[str, Pool]
    open: Mapping[int, str] = field(default_factory=dict)  # what runs there or may -> its pool
    sent: frozenset[int] = frozenset()  # the pool's room counts it
    begun: frozenset[int] = frozenset()  # the pool's slices count it


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """What Slurm says."""

    nodes: Mapping[str, SlurmNode]
    partition: Mapping[str, str]
    running: Sequence[JobRun] = ()  # on virtual nodes
    waiting: Sequence[QueuedJob] = ()  # for them, and for slices
    unsettled: Collection[str] = ()  # nodes of which Slurm has only just learnt what is there


@dataclass(slots=True)
class Changes:
    """What to tell Slurm."""

    gres: dict[str, str] = field(default_factory=dict)  # node -> its whole Gres
    comments: dict[str, str] = field(default_factory=dict)  # node -> why it takes nothing; empty: it does
    partition: dict[str, str] = field(default_factory=dict)  # fields of the partition
    opens: bool = False  # that lets more jobs start than before


def decide(config: OverflowConfig, gres: GresNames, near: Near, far: Far, *, draining: bool = False) -> Changes:
    """Nothing, when Slurm has it all.

    A job that lost its gateway and is not over at the far side comes back to its node, whatever the pool takes.
    """
    changes = Changes()
    running = {run.key.job_id for run in near.running}
    returning = {job_id: pool for job_id, pool in far.open.items() if job_id not in running}
    wants = _wants((job for job in near.waiting if job.eligible and job.job_id not in returning), gres)
    open_nodes: list[str] = []
    for some in config.nodes.values():
        pool, here = far.pools.get(some.pool), _here(some, gres, near, far)
        what = Taking(jobs=0, why="this site is draining") if draining else taking(pool, here)
        up = [name for name in some.names if name in near.nodes and takes_jobs(near.nodes[name])]
        if what.jobs or some.pool in returning.values():
            open_nodes += [name for name in some.names if name not in near.unsettled]
        tasks = offered(pool, what.jobs, here, wants) if pool is not None else Counter[tuple[str, int]]()
        for want in _wants((job for job in near.waiting if returning.get(job.job_id) == some.pool), gres):
            tasks[want.gres_class, want.count] += want.tasks
        offers = spread(tasks, sorted(up, key=lambda name: _used(near.nodes[name], gres)))
        for name in some.names:
            if (node := near.nodes.get(name)) is not None:
                _count(changes, node, gres, offers.get(name, {}))
                _explain(changes, node, f"{some.pool}: {what.why}" if what.why else "")
    changes.partition = _door(near.partition, open_nodes)
    more = set(open_nodes) - set(expand(near.partition.get("Nodes", "")))
    changes.opens = changes.partition.get("State") == OPEN or ("Nodes" in changes.partition and bool(more))
    return changes


def _wants(jobs: Iterable[QueuedJob], gres: GresNames) -> list[Want]:
    return [
        Want(gres_class=item.type, count=item.count, tasks=job.tasks, priority=job.priority)
        for job in jobs
        if not job.on_nodes and job.nodes <= 1
        for item in job.gres
        if item.name == gres.name and item.type and item.count
    ]


def _here(some: VirtualNodes, gres: GresNames, near: Near, far: Far) -> Here:
    runs = [run for run in near.running if run.batch_host in some.names]
    unbegun: Counter[str] = Counter()
    for run in runs:
        if run.key.job_id not in far.begun:
            unbegun.update({item.type: item.count for item in run.gres if item.name == gres.name and item.type})
    unsent = sum(run.key.job_id not in far.sent for run in runs)
    return Here(most_jobs=some.most_jobs, running=len(runs), unsent=unsent, unbegun=unbegun)


def _used(node: SlurmNode, gres: GresNames) -> int:
    return sum(item.count for item in node.gres_used if item.name == gres.name and item.type != gres.pad)


def _count(changes: Changes, node: SlurmNode, gres: GresNames, offers: Mapping[str, int]) -> None:
    wanted = publish(gres, node.gres, node.gres_used, offers, {})
    if wanted is not None and not same(wanted.items, node.gres):
        changes.gres[node.name] = format_gres(wanted.items)


def _explain(changes: Changes, node: SlurmNode, why: str) -> None:
    """A comment of an admin's is left alone."""
    text = OURS + _plain(why) if why else ""
    if node.comment != text and (not node.comment or node.comment.startswith(OURS)):
        changes.comments[node.name] = text


def _plain(why: str) -> str:
    """Another site's words end up in what Slurm prints as fields and lines."""
    return "".join(one if one.isprintable() and one not in "=[]" else " " for one in why)[:MOST_COMMENT].strip()


def _door(partition: Mapping[str, str], nodes: Collection[str]) -> dict[str, str]:
    """The partition's nodes are those whose pools take jobs; without any it is closed, and keeps those it has."""
    state = partition.get("State", "")
    if state not in (OPEN, CLOSED):
        return {}
    if not nodes:
        return {"State": CLOSED} if state == OPEN else {}
    fields = {} if set(expand(partition.get("Nodes", ""))) == set(nodes) else {"Nodes": compress(nodes)}
    return fields if state == OPEN else {**fields, "State": OPEN}
