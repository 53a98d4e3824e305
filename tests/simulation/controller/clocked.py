"""A pool over hours: jobs come, start, end and are followed, as the controller decides, on a clock that is counted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from slurm_plugin.controller.state import Decision, Part
from slurm_plugin.guarantees import Margin
from tests.simulation.planner.static import Asked
from tests.unit.controller.world import World

PASSES_MAX = 12  # at one moment
LIMIT = 2.0  # time limits are so many times what jobs take
STIRS_S = (1.5, 61.5)  # after a batch window, and after what was re-cut has rested


@dataclass
class Clocked(World):
    """Everything that a moment asks for happens at once; only jobs and the controller's own waits take time."""

    lasts: dict[int, float] = field(default_factory=dict)
    ends: list[tuple[float, int]] = field(default_factory=list)
    stirs: list[float] = field(default_factory=list)
    last: Decision | None = None
    history: list[tuple[float, dict[str, int]]] = field(default_factory=list)  # what kept each promise, at every change
    told: list[Margin] = field(default_factory=list)  # the same as the controller has it, from decision to decision
    done: int = 0
    recut: int = 0

    def run(self, jobs: Sequence[Asked], account: str = "") -> float:
        """Until all have ended: when that is. Every tenth job is the account's."""
        coming = list(reversed(jobs))
        self._passes()
        while coming or self.ends:
            self.now = min(
                [*(job.at for job in coming[-1:]), *(at for at, _ in self.ends[:1]), *(at for at in self.stirs[:1])]
            )
            happened = False
            while self.ends and self.ends[0][0] <= self.now:
                self._end(heappop(self.ends)[1])
                happened = True
            while coming and coming[-1].at <= self.now:
                self._come(coming.pop(), account if len(coming) % 10 == 0 else "")
                happened = True
            while self.stirs and self.stirs[0] <= self.now:
                heappop(self.stirs)
            self._passes()
            if happened and self.waiting:
                for after in STIRS_S:
                    heappush(self.stirs, self.now + after)
        assert not self.waiting
        return self.now

    def _come(self, job: Asked, account: str) -> None:
        self.lasts[self.next_job] = job.lasts
        self.submit(job.profile)
        self.waiting[self.next_job - 1] = replace(self.waiting[self.next_job - 1], account=account)

    def _end(self, job_id: int) -> None:
        """Its epilog waits for the verdict on what it frees."""
        self.done += 1
        ((node, _),) = [key for key in self.grants if key[1] == job_id]
        self.end(job_id)
        queue = self.queue()
        freed = frozenset(self.grants[node, job_id].slices)
        del self.grants[node, job_id]
        self._note()
        assert self.last is not None
        part = Part(freed=freed, waiting=self.last.waiting)
        verdict = self.decide({node: self.views()[node]}, queue, part)
        self.carry_out(verdict)
        self.last = self.last.with_part(verdict)
        self.completing.pop(job_id)

    def _passes(self) -> None:
        for _ in range(PASSES_MAX):
            decision = self.decide(self.views())
            self.recut += sum(event.what == "changed" for event in decision.recuts.events)
            self.told += decision.margins
            moved = bool(decision.gres or decision.steps) or decision.offers != (self.last and self.last.offers)
            self.carry_out(decision)
            self.last, self.loans = decision, decision.loans
            self._note()
            if not (self._start() or moved):
                return
        raise AssertionError(f"no rest after {PASSES_MAX} passes at {self.now:.0f} s")

    def _start(self) -> int:
        """Slurm starts what it can, and prologs bind."""
        accounts = {job_id: job.account for job_id, job in self.waiting.items()}
        started = self.schedule()
        for job_id, job in list(self.jobs.items()):
            if job_id in accounts:
                at = int(self.now)
                limit_s = int(LIMIT * self.lasts[job_id]) + 1
                self.jobs[job_id] = replace(job, started_at=at, account=accounts[job_id], limit_s=limit_s)
                (node,) = job.on_nodes
                assert self.bind(job_id, node), "Slurm started a job that finds no slice"
                grant = self.grants[node, job_id]
                self.grants[node, job_id] = replace(grant, run=replace(grant.run, started_at=at))
                heappush(self.ends, (self.now + self.lasts[job_id], job_id))
        self._note()
        return started

    def _note(self) -> None:
        had: dict[str, int] = {}
        profiles = {one.uuid: one.profile for gpus in self.gpus.values() for gpu in gpus for one in gpu.instances}
        for promise in self.promises:
            able, account = promise.served.profiles, promise.guarantee.account
            idle = sum(profiles[uuid] in able for node in self.gpus for uuid in self.idle(node))
            jobs = {**self.jobs, **self.completing}
            held = sum(
                len(grant.slices)
                for (_, job_id), grant in self.grants.items()
                if job_id in jobs and jobs[job_id].account == account and grant.gres_class == promise.served.name
            )
            had[promise.guarantee.text] = idle + (0 if promise.guarantee.idle else held)
        self.history.append((self.now, had))
