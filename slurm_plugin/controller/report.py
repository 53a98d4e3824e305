"""What the controller tells the command line."""

import hashlib
from importlib.metadata import version
from typing import Protocol

from slurm_plugin.controller.books import Books
from slurm_plugin.controller.offered import Offered
from slurm_plugin.controller.roster import Roster
from slurm_plugin.controller.state import Decision
from slurm_plugin.controller.steps import Steps
from slurm_plugin.pool import PoolConfig
from slurm_plugin.ports import QueuedJob
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb
from slurm_plugin.slurm.gres import format_gres

MAX_PENDING = 10_000  # jobs listed in one answer


class Running(Protocol):
    """What of the engine is told."""

    config: PoolConfig
    roster: Roster
    books: Books
    steps: Steps
    decision: Decision | None
    offered: Offered | None
    problems: dict[str, str]
    started_at: float
    passes: int
    last_pass_s: float

    @property
    def catalogue_text(self) -> str: ...


def status(engine: Running) -> pb.PoolStatus:
    name = engine.config.gres.name
    waiting = sorted((j for j in engine.books.jobs if not j.on_nodes), key=lambda j: (-j.priority, j.job_id))
    return pb.PoolStatus(
        pool=engine.config.pool,
        nodes=[_node(engine, node) for node in engine.roster],
        pending=[_pending(job, name) for job in waiting[:MAX_PENDING]],
        problems=[*engine.problems.values(), *(engine.offered.problems if engine.offered else ())],
        controller_version=version("vgpu-pool"),
        started_at=engine.started_at,
        passes=engine.passes,
        last_pass_s=engine.last_pass_s,
        mode=engine.config.mode,
        catalogue_sha256=hashlib.sha256(text.encode()).hexdigest() if (text := engine.catalogue_text) else "",
    )


def _node(engine: Running, name: str) -> pb.NodeStatus:
    member, decision, slurm = engine.roster[name], engine.decision, engine.books.nodes.get(name)
    offers = decision.offers.get(name, ()) if decision else ()
    problems = decision.problems.get(name, ()) if decision else ()
    return pb.NodeStatus(
        node=name,
        slurm_state=slurm.state if slurm else "",
        slurm_gres=format_gres(slurm.gres) if slurm else "",
        slurm_gres_used=format_gres(slurm.gres_used) if slurm else "",
        agent_connected=member.outbox is not None,
        inventory=member.inventory,
        offers=[pb.Offer(slice=o.slice, gres_class=o.gres_class, ask=o.ask) for o in offers],
        problems=[*problems, *engine.steps.problems(name), *(member.inventory.alarms if member.inventory else ())],
        clock_ahead_s=member.clock_ahead_s,
    )


def _pending(job: QueuedJob, name: str) -> pb.PendingJob:
    item = next(item for item in job.gres if item.name == name)
    return pb.PendingJob(
        job_id=job.job_id,
        uid=job.uid,
        priority=job.priority,
        gres_class=item.type,
        count=item.count,
        nodes=job.nodes,
        reason=job.reason,
    )
