"""PURE: jobs that Slurm counts as running and that do not: nobody carries their prologs on, or they have ended.

A slurmd that is killed in a prolog forgets it. The prolog itself may live on and even get a slice: the next slurmd does
not know that it ended, and Slurm shows the job as RUNNING, for the reason Prolog, until somebody requeues it.

A slurmd that started later than the job shows that. Else the job may be in a long prolog of the site's own.

A slurmctld that is killed forgets what it learned in its last seconds, and so takes a job that has ended since for one
that runs. The agent of its first node has no grant of its run any more. Slurm finds out when a slurmd registers, half
an hour later.
"""

from dataclasses import replace

from slurm_plugin.controller.state import Agent, LostProlog, NodeState, State
from slurm_plugin.ports import QueuedJob

IN_PROLOG = "Prolog"  # Slurm's reason, until the prolog has ended on every node of the job
# After a start of slurmd: Slurm tries for 10 s to reach a slurmd, so the new one may have been told to run the prolog.
RESTARTED_S = 20.0
LONGEST_S = 300.0  # for the site's own part of a prolog, before ours or after it
ENDED_S = 30.0  # a job past its prolog that no agent knows; one that comes late is bound by its first task or sent back
ENDED_IN_PROLOG_S = 60.0  # one that slurmctld remembers in its prolog: that may be the site's own still


def lost_prologs(state: State) -> tuple[LostProlog, ...]:
    """Oldest first. Not those that an agent keeps waiting, or on a node whose agent is away or can't tell of them.

    That a job has ended is only likely: slurmctld must have started later than it, which is for who acts to ask.
    """
    found = (_lost(state, job) for job in state.jobs if _is_ours(state, job))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: (one.started_at, one.job_id)))


def _is_ours(state: State, job: QueuedJob) -> bool:
    """In a partition of the pool, with a class that job_submit has written."""
    if job.state != "RUNNING" or not job.on_nodes:
        return False
    names = state.config.gres
    classes = {item.type for item in job.gres if item.name == names.name and item.count}
    return bool(classes & state.serving.profiles.keys()) and set(job.partitions) <= set(state.config.partitions)


def _lost(state: State, job: QueuedJob) -> LostProlog | None:
    nodes = [state.nodes.get(name) for name in job.on_nodes]
    there = [node for node in nodes if node is not None and _tells(node, job)]
    if len(there) < len(nodes):
        return None
    in_prolog = job.reason == IN_PROLOG
    lost = tuple(node.name for node in there if _is_lost(node, job, state.now)) if in_prolog else ()
    if lost:
        return _told(job, lost)
    known = (job.job_id, job.started_at) in there[0].view.bound  # on the first one its batch script runs
    ended = state.now - job.started_at >= (ENDED_IN_PROLOG_S if in_prolog else ENDED_S)
    return replace(_told(job, job.on_nodes), ended=True) if ended and not known else None


def _told(job: QueuedJob, nodes: tuple[str, ...]) -> LostProlog:
    return LostProlog(job_id=job.job_id, started_at=job.started_at, uid=job.uid, nodes=nodes)


def _tells(node: NodeState, job: QueuedJob) -> bool:
    return node.agent is Agent.CONNECTED and not node.fault and job.job_id not in node.view.waiting | node.view.garbled


def _is_lost(node: NodeState, job: QueuedJob, now: float) -> bool:
    slurmd_at = node.slurm.slurmd_started_at if node.slurm is not None else 0
    bound_at = node.view.bound.get((job.job_id, job.started_at), 0.0)
    limit_s = RESTARTED_S if slurmd_at > job.started_at else LONGEST_S
    return now - max(job.started_at, slurmd_at, bound_at) >= limit_s
