"""What no static layout can beat: a bound on the end of a stream of jobs, for every way to cut the same GPUs for good.

A job may take any slice that is at least what it asked for, and nobody loses time between two jobs: more than a pool
whose layout never changes could ever have.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from math import inf

from benchmarks.mix import full_layouts
from slurm_plugin.mig.geometry import Shapes
from slurm_plugin.mig.layouts import counts_of

Counts = tuple[int, ...]  # slices of each profile, smallest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job whose length is known."""

    at: float
    profile: str
    lasts: float


def every_static(shapes: Shapes, names: Sequence[str], gpus: int) -> set[Counts]:
    """What so many GPUs come to in slices, for all combinations of layouts that leave no room."""
    each = {tuple(counts_of(layout).get(name, 0) for name in names) for layout in full_layouts(shapes, names)}
    found = {(0,) * len(names)}
    for _ in range(gpus):
        found = {tuple(a + b for a, b in zip(some, more, strict=True)) for some in found for more in each}
    return found


class Bound:
    """`names`: profiles, each of which is enough for what is asked of those before it."""

    def __init__(self, jobs: Sequence[Asked], names: Sequence[str]) -> None:
        self._of = [[job for job in jobs if names.index(job.profile) >= nth] for nth in range(len(names))]
        self._known: dict[tuple[int, int], float] = {}

    def end(self, counts: Counts) -> float:
        """No schedule on these slices ends sooner."""
        return max(self._with(nth, sum(counts[nth:])) for nth in range(len(counts)))

    def _with(self, nth: int, slices: int) -> float:
        """What asks for the nth profile or more, on the slices that are enough for it."""
        if (nth, slices) not in self._known:
            self._known[nth, slices] = _end(self._of[nth], slices)
        return self._known[nth, slices]


def _end(jobs: Sequence[Asked], slices: int) -> float:
    """What came at some moment or later shares the slices from then on; and one slice has at least the mean of them."""
    if not jobs or not slices:
        return inf if jobs else 0.0
    late = sorted(jobs, key=lambda job: -job.at)
    work = accumulate(job.lasts for job in late)
    shared = max(job.at + done / slices for job, done in zip(late, work, strict=True))
    shortest = accumulate((job.lasts for job in late), min)
    in_turn = (
        job.at + -(-(nth + 1) // slices) * least for nth, (job, least) in enumerate(zip(late, shortest, strict=True))
    )
    return max(shared, *in_turn)


def end_of_run(jobs: Sequence[Asked], names: Sequence[str], counts: Counts) -> float:
    """When all are done that come to these slices: each takes the smallest idle one that is enough, the oldest first.

    Infinite when a job is never served.
    """
    free, waiting = list(counts), [deque[Asked]() for _ in names]
    coming, ends = deque(sorted(jobs, key=lambda job: job.at)), list[tuple[float, int]]()
    now = 0.0
    while coming or ends:
        now = min(coming[0].at if coming else inf, ends[0][0] if ends else inf)
        while ends and ends[0][0] <= now:
            free[heappop(ends)[1]] += 1
        while coming and coming[0].at <= now:
            job = coming.popleft()
            waiting[names.index(job.profile)].append(job)
        for nth in sorted((nth for nth, queue in enumerate(waiting) if queue), key=lambda nth: waiting[nth][0].at):
            while waiting[nth] and (able := [at for at in range(nth, len(names)) if free[at]]):
                free[able[0]] -= 1
                heappush(ends, (now + waiting[nth].popleft().lasts, able[0]))
    return inf if any(waiting) else now


def told(names: Sequence[str], counts: Counts) -> Mapping[str, int]:
    return {name: count for name, count in zip(names, counts, strict=True) if count}
