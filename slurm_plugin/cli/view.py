"""PURE: what the commands show, as values. The JSON output is these fields; the tables are drawn from them."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

ISOLATION = "mig"  # the least every grant has: memory and compute of a slice are separate in hardware


class SliceState(StrEnum):
    IDLE = "idle"
    WITHHELD = "withheld"  # idle, but offered as nothing: it is kept for a waiting job or about to be re-cut
    BUSY = "busy"
    HELD = "held"  # no job has it, but somebody has not left it: withheld until he goes
    FOREIGN = "foreign"  # not of the pool's shape: never touched, never offered
    UNKNOWN = "unknown"  # its agent is away: whether a job has it is not known
    HALF_MADE = "half-made"  # a GPU instance with no compute instance


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceView:
    uuid: str  # MIG-...; empty for a half-made one
    profile: str
    start: int  # memory slices
    size: int  # memory slices
    gi: int
    ci: int
    state: SliceState
    offered_as: str  # the class an idle slice serves now
    jobs: tuple[int, ...]  # who holds it; more than one is a fault
    held_by: str  # the processes that use it though no job has it
    unused_since: float  # Unix seconds: its job holds it and no process computes there; 0: one does, or none holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    index: int
    uuid: str
    name: str
    mig: str
    memory_mib: int
    memory_slices: int  # length of the placement axis; 0 when the GPU told no profile
    fault: str
    slices: tuple[SliceView, ...]
    differs: tuple[str, ...] = ()  # how the GPU contradicts the table of products; the GPU is right


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantView:
    """What one run of a job holds on one node. `gres_class` is empty for a job that asked for no slice."""

    job_id: int
    started_at: int  # Unix seconds
    uid: int
    gres_class: str
    count: int
    slices: tuple[str, ...]  # MIG UUIDs
    made_at: float  # Unix seconds
    isolation: str = ISOLATION


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingView:
    """A prolog that waits for a slice."""

    job_id: int
    gres_class: str
    count: int
    since: float  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    name: str
    slurm_state: str
    gres: str  # Slurm's text
    gres_used: str
    agent_connected: bool
    agent_version: str
    unconfined: str  # why jobs here are in no device cgroup; empty when they are
    unseen: str  # what a look at who has left a slice can't see on this kernel
    gpus: tuple[GpuView, ...]
    grants: tuple[GrantView, ...]
    waiting: tuple[WaitingView, ...]
    garbled: tuple[int, ...]  # jobs whose grants can't be read: what they have is held
    wait_s: float  # longest wait of a prolog for a slice; 0 when the agent does not tell
    problems: tuple[str, ...]
    clock_ahead_s: float  # against the controller's


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingView:
    job_id: int
    uid: int
    priority: int
    gres_class: str
    count: int  # slices a node
    nodes: int
    reason: str
    back_at: float = (
        0.0  # Unix seconds; until then other jobs come first, since Slurm did not start it; 0: it has its turn
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseView:
    """While there is one nothing is re-cut."""

    since: float  # Unix seconds
    uid: int  # who asked for it
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseState:
    pause: PauseView | None
    changed: bool  # false: it was so before, or nothing was to be changed


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    pool: str
    controller_version: str
    started_at: float  # Unix seconds, of the controller
    passes: int
    last_pass_s: float
    nodes: tuple[NodeView, ...]
    pending: tuple[PendingView, ...]
    problems: tuple[str, ...]
    mode: str  # manage | observe
    catalogue_sha256: str  # of the catalogue as the controller has it; empty while it has none
    pause: PauseView | None
    plan: str  # what the last plan for the queue came to; empty when there was none
    others: int = 0  # further jobs that wait, of users that Slurm keeps from the caller


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeView:
    profile: str
    start: int  # memory slices


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlanView:
    node: str
    gpu: str
    index: int
    action: str  # keep | change | wait | leave
    keep: tuple[ShapeView, ...]
    destroy: tuple[ShapeView, ...]
    create: tuple[ShapeView, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    gpus: tuple[GpuPlanView, ...]
    problems: tuple[str, ...]
    why: str  # what the plan for the queue comes to
    waiting: tuple[str, ...]  # whom it does not serve, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlice:
    """A slice of a job, with everything that names it."""

    node: str
    gpu: int
    gpu_uuid: str
    gpu_name: str
    uuid: str
    profile: str
    start: int
    size: int
    gi: int
    ci: int
    isolation: str = ISOLATION


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGrant:
    node: str
    grant: GrantView
    slices: tuple[HeldSlice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    job_id: int
    grants: tuple[NodeGrant, ...]
    waiting_on: tuple[str, ...]  # nodes whose prolog waits for a slice for it
    pending: PendingView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabView:
    name: str
    folder: str
    nodes: int
    gpus: int  # a node
    products: tuple[str, ...]
    changed: bool  # false after a dry run


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlace:
    name: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LabList:
    labs: tuple[LabPlace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonView:
    daemon: str
    wanted: bool
    pid: int  # 0 when it does not run
    restarts: int
    last_exit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatusView:
    name: str
    folder: str
    supervisor: int  # pid; 0 when it is gone
    lacks: str  # what keeps the lab from being usable; empty when it is ready
    daemons: tuple[DaemonView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabEnvironment:
    variables: dict[str, str]


def job_view(pool: PoolView, job_id: int) -> JobView | None:
    """Everything the pool knows of one job, or None when that is nothing."""
    grants = tuple(
        NodeGrant(node=node.name, grant=grant, slices=tuple(_held(node, grant)))
        for node in pool.nodes
        for grant in node.grants
        if grant.job_id == job_id
    )
    waiting_on = tuple(node.name for node in pool.nodes if any(w.job_id == job_id for w in node.waiting))
    pending = next((job for job in pool.pending if job.job_id == job_id), None)
    if not grants and not waiting_on and pending is None:
        return None
    return JobView(job_id=job_id, grants=grants, waiting_on=waiting_on, pending=pending)


def _held(node: NodeView, grant: GrantView) -> Iterator[HeldSlice]:
    for gpu in node.gpus:
        for piece in gpu.slices:
            if piece.uuid and piece.uuid in grant.slices:
                yield HeldSlice(
                    node=node.name,
                    gpu=gpu.index,
                    gpu_uuid=gpu.uuid,
                    gpu_name=gpu.name,
                    uuid=piece.uuid,
                    profile=piece.profile,
                    start=piece.start,
                    size=piece.size,
                    gi=piece.gi,
                    ci=piece.ci,
                    isolation=grant.isolation,
                )
