"""GPUs, jobs and time that is counted, not waited for: what policies of placing and cutting come to.

A job asks for a profile, comes at a moment and runs for so long. It waits until a policy finds it a place, or is lost
at once (`patient`). A policy sees the GPUs as they are and says where a job starts; what it cuts takes a moment, and an
idle instance that goes for it is counted.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from typing import Protocol

from slurm_plugin.mig.geometry import Placed, Shapes, mask
from slurm_plugin.mig.products import product_named

PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
SHAPES: Shapes = {name: product_named("a100-40gb").profiles[name] for name in PROFILES}
COMPUTE = {name: shape.compute_slices for name, shape in SHAPES.items()}
INFINITY = float("inf")
CUT_S = 4.0  # a GPU's slices go and come
BITS = {(name, start): mask(start, shape.size) for name, shape in SHAPES.items() for start in shape.starts}


@dataclass(frozen=True, slots=True)
class Job:
    at: float
    profile: str
    lasts: float


@dataclass(slots=True)
class Gpu:
    """What runs, with its end, and what lies idle. Only the profiles of PROFILES."""

    busy: dict[Placed, float] = field(default_factory=dict)
    idle: set[Placed] = field(default_factory=set)
    taken: int = 0  # by what runs, as bits


class Policy(Protocol):
    def place(self, profile: str, now: float, end: float) -> tuple[int, Placed] | None:
        """Where a job starts now: the GPU and the placement; None to let it wait."""

    def ended(self, gpu: int, placed: Placed) -> None:
        """A job ended there."""

    def tick(self, now: float, waiting: dict[str, int], arrived: dict[str, int]) -> None:
        """Some time went by, in which so many came."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    utilisation: float = 0.0  # compute in use, of all
    stranded: float = 0.0  # compute not in use while something waits, of all
    served: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROFILES, 0))
    lost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROFILES, 0))
    waits: list[float] = field(default_factory=list)
    completions: list[float] = field(default_factory=list)  # from coming to end
    destroyed: int = 0
    cuts: int = 0
    makespan: float = 0.0

    @property
    def mean_completion(self) -> float:
        return sum(self.completions) / max(1, len(self.completions))

    @property
    def accepted(self) -> float:
        served, lost = sum(self.served.values()), sum(self.lost.values())
        return served / max(1, served + lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    gpus: int
    patient: bool = True
    tick_s: float = 600.0
    warm_s: float = 0.0  # what happens before is not counted
    until_s: float | None = None  # None: until the last job ended


class Simulation:
    def __init__(self, run: Run, gpus: list[Gpu], policy: Policy) -> None:
        self._run, self._gpus, self._policy = run, gpus, policy
        self._ends: list[tuple[float, int, int, Placed, int]] = []
        self._waiting: dict[str, deque[Job]] = {name: deque() for name in PROFILES}
        self._now = self._used = self._area = self._stranded = 0.0
        self._number = 0
        self._outcome = Outcome()

    def outcome(self, jobs: Sequence[Job]) -> Outcome:
        arrived = dict.fromkeys(PROFILES, 0)
        tick, nth = 0.0, 0
        while nth < len(jobs) or self._ends:
            at = min(
                jobs[nth].at if nth < len(jobs) else float("inf"), self._ends[0][0] if self._ends else float("inf")
            )
            if self._run.until_s is not None and at > self._run.until_s:
                self._pass(self._run.until_s)
                break
            if tick <= at:
                self._pass(tick)
                self._policy.tick(tick, {name: len(queue) for name, queue in self._waiting.items()}, arrived)
                arrived = dict.fromkeys(PROFILES, 0)
                tick += self._run.tick_s
                self._start()
                continue
            self._pass(at)
            if self._ends and self._ends[0][0] <= at:
                self._end()
                self._start()
            else:
                job, nth = jobs[nth], nth + 1
                arrived[job.profile] += 1
                self._waiting[job.profile].append(job)
                self._start()
                if not self._run.patient and self._waiting[job.profile]:
                    self._waiting[job.profile].pop()
                    self._outcome.lost[job.profile] += self._counts()
        span = 7 * self._run.gpus * max(1e-9, self._now - self._run.warm_s)
        self._outcome.utilisation, self._outcome.stranded = self._area / span, self._stranded / span
        self._outcome.makespan = self._now
        return self._outcome

    def _counts(self) -> int:
        return int(self._now >= self._run.warm_s)

    def _pass(self, at: float) -> None:
        spent = max(0.0, at - max(self._now, self._run.warm_s))
        self._area += spent * self._used
        if any(self._waiting.values()):
            self._stranded += spent * (7 * self._run.gpus - self._used)
        self._now = max(self._now, at)

    def _end(self) -> None:
        _, _, nth, placed, asked = heappop(self._ends)
        gpu = self._gpus[nth]
        del gpu.busy[placed]
        gpu.taken &= ~BITS[placed]
        gpu.idle.add(placed)
        self._used -= asked
        self._policy.ended(nth, placed)

    def _start(self) -> None:
        """Start what can, the oldest first; what of a profile finds no place, none behind it does."""
        heads = [(queue[0].at, name) for name, queue in self._waiting.items() if queue]
        heads.sort(reverse=True)
        while heads:
            _, name = heads.pop()
            queue = self._waiting[name]
            job = queue[0]
            found = self._policy.place(name, self._now, self._now + job.lasts)
            if found is None:
                continue
            queue.popleft()
            self._begin(job, *found)
            if queue:
                heads.append((queue[0].at, name))
                heads.sort(reverse=True)

    def _begin(self, job: Job, nth: int, placed: Placed) -> None:
        gpu = self._gpus[nth]
        if gpu.taken & BITS[placed]:
            raise RuntimeError(f"{placed} is in use")
        end = self._now + job.lasts
        if placed in gpu.idle:
            gpu.idle.discard(placed)
        else:
            gone = {one for one in gpu.idle if BITS[one] & BITS[placed]}
            gpu.idle -= gone
            self._outcome.destroyed += len(gone)
            self._outcome.cuts += 1
            end += CUT_S
        gpu.busy[placed] = end
        gpu.taken |= BITS[placed]
        asked = COMPUTE[job.profile]  # of a larger slice the rest is wasted
        self._used += asked
        self._number += 1
        heappush(self._ends, (end, self._number, nth, placed, asked))
        if self._counts():
            self._outcome.served[job.profile] += 1
            self._outcome.waits.append(self._now - job.at)
            self._outcome.completions.append(end - job.at)


def stream(seed: int, rates: dict[str, float], mean_s: float, until_s: float, from_s: float = 0.0) -> list[Job]:
    """Jobs that come by chance at these rates a second, and last by chance; every seed gives the same ones."""
    rng = random.Random(seed)
    names = list(rates)
    sums = list(accumulate(rates[name] for name in names))
    jobs: list[Job] = []
    at = from_s
    while True:
        at += rng.expovariate(sums[-1])
        if at >= until_s:
            return jobs
        drawn = rng.random() * sums[-1]
        name = next(name for name, upto in zip(names, sums, strict=True) if drawn < upto)
        jobs.append(Job(at, name, rng.expovariate(1.0 / mean_s)))


def rates_for(mix: Iterable[float], load: float, gpus: int, mean_s: float) -> dict[str, float]:
    """Rates of a mix (by profile, any scale) that ask for `load` times the GPUs' compute."""
    weights = dict(zip(PROFILES, mix, strict=True))
    asked = sum(weight * COMPUTE[name] for name, weight in weights.items())
    return {name: load * 7 * gpus * weight / asked / mean_s for name, weight in weights.items()}
