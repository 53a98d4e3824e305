"""What the two daemons need of the world, as protocols. Adapters: `slurm_plugin.slurm` and `slurm_plugin.nvml`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_plugin.model import Gpu, RunKey, Step

VIRTUAL = "cloud-"  # what the names of virtual nodes, whose jobs run elsewhere, begin with


@dataclass(frozen=True, slots=True, kw_only=True)
class GresItem:
    """One element of a GRES list: `vgpu:m20:1` is (vgpu, m20, 1). An untyped one has type ""."""

    name: str
    type: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run of a job as Slurm sees it now. No text of a user's is in it."""

    key: RunKey
    state: str  # Slurm's long name: RUNNING, COMPLETING, SUSPENDED, ...
    gres: tuple[GresItem, ...]  # asked per node, as job_submit rewrote it
    batch: bool
    requeue: bool  # Slurm would accept a requeue of it
    limit_s: int = 0  # its time limit; 0: none, or not known
    batch_host: str = ""  # where its batch script runs; empty: it has none of its own
    submitted_at: int = 0  # Unix seconds; of the requeue when it was requeued; told by `run_of` only
    elsewhere: bool = False  # it may be running at another site; told by `run_of` only

    @property
    def ends_at(self) -> int:
        """When its time limit ends it, Unix seconds; 0 when it does not run or has none."""
        return self.key.started_at + self.limit_s if self.key.started_at and self.limit_s else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job that asks for vgpu, in any state but ended. An array's pending elements are one entry with `tasks` > 1."""

    job_id: int
    uid: int
    priority: int
    state: str
    reason: str  # Slurm's Reason
    gres: tuple[GresItem, ...]
    nodes: int  # how many it needs (pending) or has
    tasks: int  # array elements of this entry that may start now (an array's %N limit counted); 1 for other jobs
    partitions: tuple[str, ...]
    wanted_nodes: tuple[str, ...]  # -w, expanded; () for any
    on_nodes: tuple[str, ...]  # where it runs, expanded; () while pending
    cpus: int  # in all
    started_at: int  # Unix seconds; 0 while pending
    eligible: bool  # not held, no dependency, begin time reached, under no limit
    array_id: int = 0  # of the array it is an element of, or its own
    excluded_nodes: tuple[str, ...] = ()  # -x, expanded
    features: tuple[frozenset[str], ...] = ()  # -C: a node must have one of these whole; () for any, or not known
    reserved: bool = False  # it asks for a reservation
    account: str = ""  # empty: Slurm keeps none
    qos: str = ""
    submitted_at: int = 0  # Unix seconds; of the requeue when it was requeued
    limit_s: int = 0  # its time limit; 0: none
    array_limit: int = 0  # most elements of its array that may run at once; 0: no limit
    first_task: int = -1  # the first element that waits; -1: it is no array
    elements: str = ""  # of its array, as Slurm writes them: `3`, `[2-5,9%2]`; empty: it is no array

    @property
    def launch_failed(self) -> bool:
        """A node refused it, or its prolog failed: Slurm has put it back, and holds it."""
        held = not self.priority and not self.on_nodes
        return held and self.reason.replace("_", " ") == "launch failed requeued held"

    @property
    def ends_at(self) -> int:
        """When its time limit ends it, Unix seconds; 0 when it does not run or has none."""
        return self.started_at + self.limit_s if self.started_at and self.limit_s else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    name: str
    state: str  # as scontrol prints it: IDLE, MIXED+DRAIN, ...
    reason: str
    gres: tuple[GresItem, ...]  # configured now
    gres_used: tuple[GresItem, ...]
    cpus: int
    cpus_used: int
    memory_mib: int
    partitions: tuple[str, ...]
    slurmd_started_at: int  # Unix seconds; 0 when not known
    features: frozenset[str] = frozenset()  # active ones
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The pool's notes in jobs' AdminComment, by job id."""

    by_job: Mapping[int, str]
    private: bool = False  # Slurm keeps jobs from other users: PrivateData has `jobs`


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIds:
    following: int  # what the next job gets
    most: int  # MaxJobId: after it Slurm begins anew


class Slurm(Protocol):
    """Every call raises SlurmError (Slurm refused) or SlurmUnavailable (no answer: the outcome is unknown)."""

    async def run_of(self, job_id: int) -> JobRun | None:
        """This job's present run, or None when Slurm says it does not know the id.

        Raises SlurmError too when what it asks for can't be read: that is not to ask for nothing.
        """

    async def runs_on(self, node: str) -> tuple[JobRun, ...]:
        """Every job that holds something on this node: running, suspended, completing.

        One request that can't be read hides no other run: its `gres` is empty here, and `run_of` tells.
        """

    async def step_gres(self, job_id: int) -> dict[str, tuple[GresItem, ...]]:
        """What each running step of a job asked for, by step id text ("12.0")."""

    async def requeue(self, run: RunKey, *, lift: bool = False) -> None:
        """Send this run back into the queue. Does nothing when it is over, whatever has its job id now.

        `lift`: its user said --no-requeue, and that is to hold no more.
        """

    async def cancel(self, run: RunKey, why: str) -> None:
        """End this run, and tell its owner why. Does nothing when it is over, whatever has its job id now."""

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]: ...

    async def vgpu_jobs(self, partitions: Sequence[str] = ()) -> tuple[QueuedJob, ...]:
        """Those that wait or run in one of these partitions, or in any."""

    async def partitions(self) -> Mapping[str, Mapping[str, str]]:
        """The fields of every partition, hidden ones too, as `scontrol show partition` names them."""

    async def started_at(self) -> int:
        """When the slurmctld that answers was started, Unix seconds."""

    async def job_ids(self) -> JobIds: ...

    async def private_jobs(self) -> bool:
        """Does Slurm keep jobs from other users (PrivateData has `jobs`)?"""

    async def resume(self, node: str) -> None:
        """End a drain."""

    async def release(self, run: RunKey, reason: str = "") -> None:
        """Let a held job wait like any other. Does nothing when its id is another job's by now, or it runs.

        With a reason: nor when Slurm gives another one by now, such as that somebody holds it.
        """

    async def put_first(self, run: RunKey, priority: int, task: int = -1) -> None:
        """Give a job that waits this priority; of an array, only this element. Nothing when it does not wait any more.

        Slurm works out no priority of its own for it from then on.
        """

    async def notes(self, partitions: Sequence[str]) -> Notes:
        """Of the jobs in these partitions."""

    async def note(self, run: RunKey, note: str) -> None:
        """Have the job's AdminComment end with this note in the place of any before; with none when it is empty.

        Other words there stay. Does nothing when the run is over, or the job can't be named without splitting an array.
        """

    async def set_gres(self, nodes: Sequence[str], gres: str) -> None:
        """Set the whole Gres string of these nodes, live."""


class Gpus(Protocol):
    """The GPUs of this node. Blocking calls, made from one thread. Raise NvmlError and its kinds."""

    def inventory(self) -> tuple[Gpu, ...]:
        """Everything as it is now, read anew."""

    def apply(self, step: Step) -> Gpu:
        """Make one step and read it back. Crash: instances may be half made; inventory() then shows them with ci -1.

        Raises GpuBusy, NoRoom, ReadBackError, NvmlError.
        """

    def enable_mig(self, gpu: str, *, may_reset: bool = False) -> Gpu:
        """Switch this GPU (its UUID) to MIG. One whose reset did not come about comes back with `mig` PENDING.

        Raises GpuBusy when somebody has it open, NvmlError when it has no MIG, needs a reset that it may not or can't
        have from here, or the driver refuses.
        """

    def processes(self, slice_uuid: str) -> tuple[int, ...]:
        """Pids that compute on this slice."""
