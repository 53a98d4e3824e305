"""A site whose Slurm is the test's own: a real journal and Runner, a backend whose jobs run until they are told."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from federation.errors import Refused, Unavailable
from federation.model.job import Job
from federation.model.spec import JobSpec
from federation.model.states import End, Origin, Outcome
from federation.model.token import Key
from federation.overflow.arrivals import Arrival
from federation.overflow.burst import Burst, Claim, SlurmJob, same_job
from federation.overflow.bursts import by_token
from federation.overflow.reconcile import Place, Reconcile
from federation.overflow.slurm_side import SlurmSide
from federation.overflow.slurm_site import SlurmSite
from federation.ports import Now, Seen, Sight, now
from federation.runner import Runner
from tests.integration.federation.site import SPEC, Backend, Net, Site, until

POOL = "hpc/batch"
LONGEST_WAIT_S = 86_400
ASKED = ("gpu", "vgpu-wait", "cloud")
JOB = SlurmJob(
    job_id=12,
    uid=1000,
    state="RUNNING",
    partitions=("cloud",),
    nodes=("cloud-aws-1",),
    submitted_at=100,
    started_at=110,
    limit_s=3600,
)


class FakeSlurm(SlurmSite):
    """Slurm's records as the test sets them, and what it was told."""

    def __init__(self) -> None:
        self.records: dict[int, SlurmJob] = {}
        self.told: list[tuple[str, ...]] = []
        self.away = False

    def put(self, job: SlurmJob) -> SlurmJob:
        self.records[job.job_id] = job
        return job

    def requeued(self, job: SlurmJob, at: int) -> SlurmJob:
        """Back in the queue, with all that it asked for."""
        more = replace(job, restarts=job.restarts + 1, submitted_at=at, started_at=0)
        return self.put(replace(more, state="PENDING", reason="BeginTime", nodes=(), partitions=ASKED))

    def started(self, job_id: int, at: int, node: str = "cloud-aws-1") -> SlurmJob:
        job = self.records[job_id]
        return self.put(replace(job, state="RUNNING", reason="None", nodes=(node,), started_at=at))

    def _answer(self, *told: str) -> None:
        if self.away:
            raise Unavailable("slurmctld does not answer")
        if told:
            self.told.append(told)

    def _change(self, name: str, **changes: Any) -> None:
        job = next((one for one in self.records.values() if one.name == name), None)
        if job is None or job.over:
            raise Refused(f"Job has already finished for job {name}")
        self.put(replace(job, **changes))

    async def job(self, job_id: int) -> SlurmJob | None:
        self._answer()
        return self.records.get(job_id)

    async def jobs(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        self._answer()
        return {job_id: self.records[job_id] for job_id in job_ids if job_id in self.records}

    async def jobs_on(self, partition: str) -> tuple[SlurmJob, ...]:
        self._answer()
        return tuple(self.records.values())

    async def set_limit(self, name: str, limit_s: int) -> None:
        self._answer("limit", name, str(limit_s))
        self._change(name, limit_s=limit_s)

    async def set_end(self, name: str, at: int) -> None:
        self._answer("end", name, str(at))
        self._change(name)

    async def requeue(self, job: SlurmJob) -> None:
        self._answer("requeue", job.name)
        self._change(job.name, state="COMPLETING", requeue=True)

    async def cancel(self, name: str) -> None:
        self._answer("cancel", name)
        self._change(name, state="COMPLETING")

    async def release(self, name: str) -> None:
        self._answer("release", name)
        self._change(name, reason="None")

    async def widen(self, names: Sequence[str], partitions: Sequence[str]) -> tuple[str, ...]:
        self._answer("partitions", ",".join(names), ",".join(partitions))
        for name in names:
            self._change(name, partitions=tuple(partitions))
        return ()

    async def note(self, burst: Burst, json_text: str) -> None:
        self._answer("note", str(burst.job_id), json_text)
        job = self.records.get(burst.job_id)
        if job is not None and job.lives and same_job(burst, job):
            self._change(job.name, note=json_text)

    async def signal_request(self, job_id: int) -> str:
        self._answer()
        return ""


class Patient(Backend):
    """Its jobs run until `end` or a stop."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[Key, Outcome] = {}
        self.signals: list[int] = []

    async def look(self, keys: Sequence[Key]) -> Mapping[Key, Seen]:
        return {key: self._seen(key) for key in keys}

    def _seen(self, key: Key) -> Seen:
        if key not in self.ran:
            return Seen(sight=Sight.FENCED if key in self.claims else Sight.ABSENT)
        if key in self.ends:
            return Seen(sight=Sight.EXITED, outcome=self.ends[key])
        return Seen(sight=Sight.RUNNING, started_at=1.0)

    def end(self, key: Key, outcome: Outcome) -> None:
        self.ends.setdefault(key, replace(outcome, started_at=1.0, ended_at=2.0))
        self.changed(key)

    async def stop(self, key: Key) -> None:
        self.end(key, Outcome(end=End.SIGNALED, signal=15))

    async def signal(self, key: Key, signal: int) -> None:
        self.signals.append(signal)


@dataclass
class Clock:
    """Runs with the real one, and can be put ahead."""

    ahead_s: float = 0.0

    def __call__(self) -> Now:
        real = now()
        return Now(wall=real.wall + self.ahead_s, mono=real.mono + self.ahead_s)


@dataclass
class Stand:
    site: Site
    backend: Patient
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    clock: Clock = field(default_factory=Clock)
    attended: bool = True  # a proxy is there

    @property
    def runner(self) -> Runner:
        assert self.site.runner is not None
        return self.site.runner

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        """A daemon's life; only the journal, the backend and Slurm know of the one before."""
        async with self.site.up():
            place = Place(
                partition="cloud", serves=lambda node: node.startswith("cloud-"), attended=lambda _: self.attended
            )
            self.side = SlurmSide(self.runner, self.slurm, LONGEST_WAIT_S, self.clock)
            self.reconcile = Reconcile(self.runner, self.slurm, self.side, place, self.clock)
            yield

    async def arrive(
        self, job: SlurmJob, restarts: int | None = None, began_at: int = 0, script: bytes = b""
    ) -> tuple[Claim, Burst | None]:
        return await self.side.arrived(
            Arrival(
                job=job,
                restarts=job.restarts if restarts is None else restarts,
                node=job.nodes[0] if job.nodes else "cloud-aws-1",
                pool=POOL,
                user="ann",
                began_at=began_at,
                script=script,
            )
        )

    async def attach(self, job: SlurmJob, spec: JobSpec = SPEC) -> Burst:
        """As the gateway does for a proxy that may have something to run."""
        what, burst = await self.arrive(job)
        assert burst is not None
        assert what in (Claim.NEW, Claim.REATTACH)
        await self.side.accept(burst.token, spec)
        return burst

    async def running(self, job: SlurmJob = JOB) -> Burst:
        burst = await self.attach(self.slurm.put(job))
        await until(lambda: self.is_in(burst.token, Origin.RUNNING))
        return burst

    async def burst(self, token: UUID) -> Burst:
        found = await self.runner.read(lambda store: by_token(store, token))
        assert found is not None
        return found

    async def fed(self, token: UUID) -> Job:
        found = await self.runner.read(lambda store: store.job(token))
        assert found is not None
        return found

    async def is_in(self, token: UUID, *states: Origin) -> bool:
        return (await self.fed(token)).state in states

    async def over(self, token: UUID) -> None:
        await until(lambda: self.is_in(token, Origin.DONE))

    def ran(self, token: UUID) -> int:
        """How often its code has run, in all attempts."""
        return sum(count for key, count in self.backend.ran.items() if key.token == token)

    async def passes(self, count: int = 1) -> None:
        for _ in range(count):
            with suppress(Unavailable) if self.slurm.away else nullcontext():
                await self.reconcile.look()


def stand(folder: Path) -> Stand:
    site = Net(folder).site("hpc")
    backend = Patient()
    site.backend = backend
    return Stand(site=site, backend=backend)
