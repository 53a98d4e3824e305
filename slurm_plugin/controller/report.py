"""What the controller tells the command line."""

import hashlib
import time
from dataclasses import dataclass
from importlib.metadata import version

from slurm_plugin.controller.demand import wants
from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.loans import Loans
from slurm_plugin.controller.wire import pause_message
from slurm_plugin.ports import QueuedJob
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.slurm.gres import format_gres

MAX_PENDING = 10_000  # jobs listed in one answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How the controller itself does."""

    started_at: float  # Unix seconds
    passes: int
    last_pass_s: float


def status(desk: Desk, life: Life) -> pb.PoolStatus:
    name = desk.config.gres.name
    waiting = sorted((j for j in desk.books.jobs if not j.on_nodes), key=lambda j: (-j.priority, j.job_id))
    return pb.PoolStatus(
        pool=desk.config.pool,
        nodes=[_node(desk, node) for node in desk.roster],
        pending=[_pending(job, name, _back_at(desk, job)) for job in waiting[:MAX_PENDING]],
        problems=[*_problems(desk).values(), *desk.shop.problems],
        controller_version=version("vgpu-pool"),
        started_at=life.started_at,
        passes=life.passes,
        last_pass_s=life.last_pass_s,
        mode=desk.config.mode,
        pause=pause_message(desk.pause),
        plan=desk.decision.recuts.why if desk.decision else "",
        catalogue_sha256=hashlib.sha256(text.encode()).hexdigest() if (text := desk.shop.text) else "",
    )


def _problems(desk: Desk) -> dict[str, str]:
    problems, silent_s = dict(desk.problems), desk.books.silent_s
    if rival := desk.books.rivals.problem(time.monotonic()):
        problems["rival"] = rival
    if refused := desk.books.refusals.problem(time.monotonic()):
        problems["refused"] = refused
    if not silent_s:
        return problems
    said = problems.get("slurm", "")
    old = f"Slurm does not answer since {silent_s:.0f} s, and what is told of its nodes and jobs is as old"
    return {**problems, "slurm": f"{old}: {said}" if said else old}


def _node(desk: Desk, name: str) -> pb.NodeStatus:
    member, decision, slurm = desk.roster[name], desk.decision, desk.books.nodes.get(name)
    offers = decision.offers.get(name, ()) if decision else ()
    problems = decision.problems.get(name, ()) if decision else ()
    twins = member.twins.problem(desk.tick())
    return pb.NodeStatus(
        node=name,
        slurm_state=slurm.state if slurm else "",
        slurm_gres=format_gres(slurm.gres) if slurm else "",
        slurm_gres_used=format_gres(slurm.gres_used) if slurm else "",
        agent_connected=member.outbox is not None,
        inventory=member.inventory,
        offers=[pb.Offer(slice=o.slice, gres_class=o.gres_class, ask=o.ask) for o in offers],
        problems=[
            *([twins] if twins else ()),
            *problems,
            *desk.steps.problems(name),
            *(member.inventory.alarms if member.inventory else ()),
        ],
        clock_ahead_s=member.clock_ahead_s,
    )


def _back_at(desk: Desk, job: QueuedJob) -> float:
    """Until when a job is passed over."""
    loans, now = desk.decision.loans if desk.decision else Loans(), desk.clock()
    if not job.eligible or (job.job_id not in loans.jobs and job.uid not in loans.users):
        return 0.0
    asked = (loans.ranked(demand, now) for demand in wants(job, desk.config))
    return max((loans.passed_over_until(demand, now) for demand in asked), default=0.0)


def _pending(job: QueuedJob, name: str, back_at: float) -> pb.PendingJob:
    item = next(item for item in job.gres if item.name == name)
    return pb.PendingJob(
        job_id=job.job_id,
        uid=job.uid,
        priority=job.priority,
        gres_class=item.type,
        count=item.count,
        nodes=job.nodes,
        reason=job.reason,
        back_at=back_at,
    )
