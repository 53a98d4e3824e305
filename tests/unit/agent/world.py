"""A node's GPUs, and fakes of the two ports: typed against them, and without branches."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from slurm_plugin.agent.session import Stream
from slurm_plugin.agent.terms import Terms
from slurm_plugin.errors import LinkError
from slurm_plugin.model import Gpu, GpuProfile, Grant, Instance, MigMode, RunKey, Step
from slurm_plugin.ports import GresItem, JobIds, JobRun, Notes, QueuedJob, SlurmNode

H100 = tuple(
    GpuProfile(name=name, gi_profile_id=number, compute_slices=compute, memory_mib=0, starts=starts, size=size)
    for name, number, compute, starts, size in (
        ("1g.10gb", 19, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.20gb", 15, 1, (0, 2, 4, 6), 2),
        ("2g.20gb", 14, 2, (0, 2, 4), 2),
        ("3g.40gb", 9, 3, (0, 4), 4),
        ("4g.40gb", 5, 4, (0,), 4),
        ("7g.80gb", 0, 7, (0,), 8),
    )
)
SIZES = {profile.name: profile.size for profile in H100}
CLASSES = {
    "1g.10gb": ("1g.10gb",),
    "3g.40gb": ("3g.40gb",),
    "m20": ("1g.20gb", "2g.20gb", "3g.40gb"),
    "m40": ("3g.40gb", "4g.40gb"),
}


def uuid(gpu: str, profile: str, start: int) -> str:
    return f"MIG-{gpu}-{profile}-{start}"


def instance(gpu: str, profile: str, start: int, **more: Any) -> Instance:
    facts: dict[str, Any] = {
        "gi": start,
        "ci": 0,
        "uuid": uuid(gpu, profile, start),
        "caps": (10 * start, 10 * start + 1),
    }
    return Instance(profile=profile, start=start, size=SIZES[profile], **(facts | more))


def gpu(name: str = "A", *shapes: tuple[str, int], index: int = 0, **more: Any) -> Gpu:
    facts: dict[str, Any] = {
        "instances": tuple(instance(name, profile, start) for profile, start in shapes),
        "mig": MigMode.ENABLED,
        "profiles": H100,
    }
    return Gpu(uuid=name, index=index, minor=index, name="H100", memory_mib=81920, **(facts | more))


def terms(*gpus: str, **more: Any) -> Terms:
    return Terms(gpus=frozenset(gpus), classes=CLASSES, **more)


def grant(job_id: int, *slices: str, uid: int = 1000, started_at: int = 100, gres_class: str = "m20") -> Grant:
    key = RunKey(job_id=job_id, started_at=started_at, uid=uid)
    return Grant(run=key, gres_class=gres_class, count=len(slices), slices=slices, made_at=1.0)


def run(job_id: int, gres_class: str = "m20", count: int = 1, **more: Any) -> JobRun:
    facts: dict[str, Any] = {"state": "RUNNING", "batch": True, "requeue": True}
    key = RunKey(job_id=job_id, started_at=more.pop("started_at", 100), uid=more.pop("uid", 1000))
    items = (GresItem(name="vgpu", type=gres_class, count=count), GresItem(name="vgpu_mem", count=2))
    return JobRun(key=key, gres=items if gres_class else (), **(facts | more))


class FakeGpus:
    """An exact NVML: a step does what it says, unless `before` raises."""

    def __init__(self, *gpus: Gpu) -> None:
        self.now = {one.uuid: one for one in gpus}
        self.steps: list[Step] = []
        self.there: dict[str, tuple[int, ...]] = {}  # pids by slice
        self.before: Callable[[Step], None] = lambda step: None

    def inventory(self) -> tuple[Gpu, ...]:
        return tuple(self.now.values())

    def apply(self, step: Step) -> Gpu:
        self.before(step)
        self.steps.append(step)
        there = self.now[step.gpu]
        kept = [one for one in there.instances if (one.profile, one.start) not in step.destroy]
        made = [instance(step.gpu, profile, start) for profile, start in step.create]
        self.now[step.gpu] = replace(there, instances=tuple(kept + made))
        return self.now[step.gpu]

    def enable_mig(self, gpu: str, *, may_reset: bool = False) -> Gpu:
        self.now[gpu] = replace(self.now[gpu], mig=MigMode.ENABLED)
        return self.now[gpu]

    def processes(self, slice_uuid: str) -> tuple[int, ...]:
        return self.there.get(slice_uuid, ())


class FakeSlurm:
    """A Slurm that knows the runs in `runs`, and answers unless `answer` raises."""

    def __init__(self) -> None:
        self.runs: dict[int, JobRun] = {}
        self.steps: dict[str, tuple[GresItem, ...]] = {}
        self.requeued: list[int] = []
        self.cancelled: list[tuple[int, str]] = []
        self.elsewhere: set[int] = set()  # jobs that have left this node and go on on others
        self.answer: Callable[[], None] = lambda: None
        self.booted_at: Callable[[], int] = lambda: 0
        self.nodes_of = {"gpu": "n1", "cloud": "n9,cloud-a-[1-2]"}  # of each partition

    async def run_of(self, job_id: int) -> JobRun | None:
        self.answer()
        return self.runs.get(job_id)

    async def runs_on(self, node: str) -> tuple[JobRun, ...]:
        self.answer()
        return tuple(run for job_id, run in self.runs.items() if job_id not in self.elsewhere)

    async def step_gres(self, job_id: int) -> dict[str, tuple[GresItem, ...]]:
        self.answer()
        return self.steps

    async def requeue(self, run: RunKey, *, lift: bool = False) -> None:
        self.answer()
        assert lift is not self.runs[run.job_id].requeue
        self.requeued.append(run.job_id)

    async def cancel(self, run: RunKey, why: str) -> None:
        self.answer()
        self.cancelled.append((run.job_id, why))

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]:
        return ()

    async def vgpu_jobs(self, partitions: Sequence[str] = ()) -> tuple[QueuedJob, ...]:
        return ()

    async def partitions(self) -> dict[str, dict[str, str]]:
        return {name: {"Nodes": nodes} for name, nodes in self.nodes_of.items()}

    async def set_gres(self, nodes: Sequence[str], gres: str) -> None:
        return None

    async def started_at(self) -> int:
        return self.booted_at()

    async def job_ids(self) -> JobIds:
        return JobIds(following=1, most=1)

    async def private_jobs(self) -> bool:
        return False

    async def resume(self, node: str) -> None:
        return None

    async def put_first(self, run: RunKey, priority: int, task: int = -1) -> None:
        return None

    async def release(self, run: RunKey, reason: str = "") -> None:
        return None

    async def notes(self, partitions: Sequence[str]) -> Notes:
        return Notes(by_job={})

    async def note(self, run: RunKey, note: str) -> None:
        return None


@asynccontextmanager
async def nobody() -> AsyncIterator[Stream]:
    """A controller that is not there."""
    raise LinkError("nobody is there")
    yield
