"""PURE: what Slurm's queue and its nodes' states mean to the pool."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_plugin.choice import Slice
from slurm_plugin.controller.counts import is_base
from slurm_plugin.controller.held import ANYBODY, Held
from slurm_plugin.controller.state import Agent, NodeState, State
from slurm_plugin.controller.wants import Asked, Demand, OfferNode
from slurm_plugin.planning import Order
from slurm_plugin.pool import PoolConfig
from slurm_plugin.ports import GresItem, QueuedJob, SlurmNode

_RUNS = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED"})
_CLOSED = re.compile(
    r"DOWN|DRAIN(ED|ING)?|FAIL(ING)?|FUTURE|UNKNOWN|INVAL(ID_REG)?|NOT_RESPONDING|NO_RESPOND|POWER(ED|ING)?_DOWN|"
    r"REBOOT_ISSUED|.*\*"
)
_FLAGS = "~#!%$@^-"  # marks behind a state that do not close a node by themselves


def demands(state: State) -> list[Demand]:
    """The pending jobs that more slices would start; for a part of the pool, those that did not find them elsewhere."""
    return asked(state)[0]


def asked(state: State) -> tuple[list[Demand], Asked]:
    """The same, and what the next pass may know of it: a job that is read as before is the same object, and asks so."""
    terms = _Terms.of(state.config)
    known = state.asked.by_job if state.asked.terms == terms else {}
    made: dict[int, tuple[QueuedJob, tuple[Demand, ...]]] = {}
    found = []
    for job in state.jobs:
        if job.eligible and not job.on_nodes and (state.part is None or job.job_id in state.part.waiting):
            one = known.get(job.job_id)
            if one is None or one[0] is not job:
                one = (job, tuple(_demands(job, terms)))
            made[job.job_id] = one
            for demand in one[1]:
                if demand.gres_class in state.serving.profiles:
                    found.append(state.loans.ranked(demand, state.now))
    return found, Asked(terms=terms, by_job=made)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What of a pool.yaml demands depend on."""

    gres: str
    partitions: frozenset[str]
    first_come: bool

    @classmethod
    def of(cls, config: PoolConfig) -> "_Terms":
        return cls(
            gres=config.gres.name,
            partitions=frozenset(config.partitions),
            first_come=config.planning.order is Order.FIRST_COME,
        )


def wants(job: QueuedJob, config: PoolConfig) -> Iterator[Demand]:
    """What one job asks for, whether it may start or not."""
    return _demands(job, _Terms.of(config))


def _demands(job: QueuedJob, terms: _Terms) -> Iterator[Demand]:
    return (_demand(job, item, terms) for item in job.gres if item.name == terms.gres and item.type and item.count)


def _demand(job: QueuedJob, item: GresItem, terms: _Terms) -> Demand:
    return Demand(
        job_id=job.job_id,
        array_id=job.array_id or job.job_id,
        uid=job.uid,
        priority=job.priority,
        gres_class=item.type,
        count=item.count,
        nodes=max(1, job.nodes),
        tasks=max(1, job.tasks),
        partitions=tuple(name for name in job.partitions if name in terms.partitions),
        wanted_nodes=job.wanted_nodes,
        excluded_nodes=job.excluded_nodes,
        features=job.features,
        reserved=job.reserved,
        cpus=job.cpus,
        account=job.account,
        qos=job.qos,
        submitted_at=job.submitted_at,
        limit_s=job.limit_s,
        array_limit=job.array_limit,
        first_come=terms.first_come,
    )


def _has(node: SlurmNode, token: str) -> bool:
    return any(part.rstrip(_FLAGS) == token for part in node.state.split("+"))


def takes_jobs(node: SlurmNode) -> bool:
    """Would Slurm start a job there at all? "IDLE+DRAIN", "DOWN*" and the like would not."""
    return not any(_CLOSED.fullmatch(token.rstrip(_FLAGS)) for token in node.state.split("+"))


def is_open(node: NodeState) -> bool:
    """May a job of the pool start there?"""
    return node.agent is Agent.CONNECTED and not node.fault and node.slurm is not None and takes_jobs(node.slurm)


def offer_node(node: NodeState, idle: tuple[Slice, ...] = (), busy: tuple[tuple[Slice, str], ...] = ()) -> OfferNode:
    """What jobs look for in a node, as Slurm has it."""
    slurm = node.slurm
    if slurm is None:
        return OfferNode(name=node.name)
    return OfferNode(
        name=node.name,
        partitions=slurm.partitions,
        features=slurm.features,
        maintained=_has(slurm, "MAINTENANCE"),
        closing=_has(slurm, "COMPLETING"),
        cpus=slurm.cpus,
        cpus_free=slurm.cpus - slurm.cpus_used,
        idle=idle,
        busy=busy,
    )


def unbound(state: State) -> dict[str, list[QueuedJob]]:
    """The running jobs of each node that have no grant of this run there."""
    found: dict[str, list[QueuedJob]] = {}
    for job in state.jobs:
        if job.state not in _RUNS:
            continue
        for name in job.on_nodes:
            node = state.nodes.get(name)
            if node is not None and (job.job_id, job.started_at) not in node.view.bound:
                found.setdefault(name, []).append(job)
    return found


def held(state: State) -> Held:
    """By what agents have told. Where one is not there, as after the controller has started, by Slurm's jobs too."""
    if not state.promises:
        return Held()
    accounts = {(job.job_id, job.started_at): job.account for job in state.jobs if job.started_at}
    slices: dict[str, Counter[str]] = {}
    unseen: dict[str, Counter[str]] = {}
    for node in state.nodes.values():
        for run, profile in node.view.held:
            for account in {ANYBODY, accounts.get(run, ANYBODY)}:
                slices.setdefault(account, Counter())[profile] += 1
    if any(node.agent is not Agent.CONNECTED for node in state.nodes.values()):
        for name, jobs in unbound(state).items():
            for job in jobs if state.nodes[name].agent is not Agent.CONNECTED else ():
                for item in (item for item in job.gres if item.name == state.config.gres.name):
                    for account in {ANYBODY, job.account}:
                        unseen.setdefault(account, Counter())[item.type] += item.count
    return Held(slices=slices, unseen=unseen)


def forgotten(state: State) -> frozenset[str]:
    """The nodes with a grant of a job that waits, or whose id one that waits has, since slurmctld was restarted.

    Slurm drains a node where it starts an id that runs there.
    An agent that was heard before the queue was read may have one of a job that was just put back, too.
    """
    waiting: set[int] | None = None
    found = []
    for name, node in state.nodes.items():
        if not node.view.holder or node.slurm is None:
            continue
        if name in state.forgotten or is_base(state.config.gres, node.slurm.gres):
            if waiting is None:
                waiting = {job.job_id for job in state.jobs if job.state == "PENDING"}
            if any(grant.run.job_id in waiting for grant in node.view.holder.values()):
                found.append(name)
    return frozenset(found)


def over(state: State) -> frozenset[tuple[int, int]]:
    """The runs whose epilogs are under way."""
    return frozenset((job.job_id, job.started_at) for job in state.jobs if job.state == "COMPLETING")
