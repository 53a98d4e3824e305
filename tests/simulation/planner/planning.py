"""A pool that plans again and again while jobs come and go, with a guarantee that it never breaks."""

from collections.abc import Iterable, Sequence

from benchmarks.simulation import PROFILES, SHAPES, Gpu
from slurm_plugin.mig.geometry import Placed
from slurm_plugin.planner.place import Candidate, Job, ranked
from slurm_plugin.planner.plan import plan
from slurm_plugin.planner.problem import GpuState, Guarantee, Limits, Line, Problem


class Replanning:
    """Jobs take idle slices, placed by what they block; every tick what waits is planned for and cut."""

    def __init__(self, gpus: Sequence[Gpu], reserve: dict[str, int]) -> None:
        self._gpus, self._reserve = gpus, reserve
        self.plans = self.steps = self.destroyed = 0
        self.history: list[tuple[float, dict[str, int]]] = []  # what was idle of each profile, at every change
        self._now = 0.0
        self._cut({})

    def place(self, profile: str, now: float, end: float) -> tuple[int, Placed] | None:
        if self._idle(profile) <= self._reserve.get(profile, 0):
            return None
        candidates = [
            Candidate(gpu=f"{nth:06}", idle=tuple(gpu.idle), busy=gpu.busy)
            for nth, gpu in enumerate(self._gpus)
            if any(name == profile for name, _ in gpu.idle)
        ]
        spots = ranked(SHAPES, candidates, Job(profiles=(profile,), end=end), now)
        if not spots:
            return None
        self._now = now
        self._note({profile: -1})
        return int(spots[0].gpu), spots[0].placed

    def ended(self, gpu: int, placed: Placed) -> None:
        self._note({})

    def tick(self, now: float, waiting: dict[str, int], arrived: dict[str, int]) -> None:
        self._now = now
        if any(waiting.values()):
            self._cut(waiting)
            self._note({})

    def _idle(self, profile: str) -> int:
        return sum(name == profile for gpu in self._gpus for name, _ in gpu.idle)

    def _note(self, soon: dict[str, int]) -> None:
        """`soon`: what changes at this very moment."""
        self.history.append((self._now, {name: self._idle(name) + soon.get(name, 0) for name in PROFILES}))

    def _cut(self, waiting: dict[str, int]) -> None:
        of: dict[GpuState, list[Gpu]] = {}
        for gpu in self._gpus:
            state = GpuState(model="a100", fixed=_sorted(gpu.busy), idle=_sorted(gpu.idle))
            of.setdefault(state, []).append(gpu)
        found = plan(
            Problem(
                models={"a100": SHAPES},
                states={state: len(gpus) for state, gpus in of.items()},
                lines=tuple(Line(name=p, profiles=(p,), count=waiting.get(p, 0)) for p in PROFILES),
                guarantees=tuple(
                    Guarantee(name=p, gres_class=p, profiles=(p,), at_least=count, idle=True)
                    for p, count in self._reserve.items()
                ),
                limits=Limits(time_s=30.0),
            )
        )
        self.plans += 1
        for step in found.steps:
            for _ in range(step.gpus):
                gpu = of[step.state].pop()
                gpu.idle = (gpu.idle - set(step.destroy)) | set(step.create)
                self.steps += 1
                self.destroyed += len(step.destroy)


def _sorted(pieces: Iterable[Placed]) -> tuple[Placed, ...]:
    return tuple(sorted(pieces, key=lambda placed: placed[1]))
