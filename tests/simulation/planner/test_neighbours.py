"""Jobs take idle slices as an agent gives them: where ends are known, less lies stranded beside jobs that go on."""

from statistics import fmean

import pytest

from benchmarks.simulation import PROFILES, SHAPES, Gpu, Job, Outcome, Run, Simulation, rates_for, stream
from slurm_plugin import model
from slurm_plugin.choice import Span, in_order, slices_of
from slurm_plugin.mig.geometry import Placed
from tests.simulation.planner.planning import Replanning

GPUS, MEAN_S, JOBS, TICK_S = 8, 900.0, 600, 30.0
MIX, LOAD = (6.0, 2.0, 0.0, 1.0, 2.0), 0.8  # many small jobs, and large ones that want a GPU whole
OFFERED = tuple(
    model.GpuProfile(
        name=name,
        gi_profile_id=nth,
        compute_slices=SHAPES[name].compute_slices,
        memory_mib=0,
        starts=SHAPES[name].starts,
        size=SHAPES[name].size,
    )
    for nth, name in enumerate(PROFILES)
)


class Choosing(Replanning):
    """`told`: so many times their length are jobs' time limits; None: they have none."""

    def __init__(self, gpus: list[Gpu], told: float | None) -> None:
        super().__init__(gpus, {})
        self._told = told
        self._limits: dict[str, float] = {}

    def place(self, profile: str, now: float, end: float) -> tuple[int, Placed] | None:
        limit = now + (end - now) * (self._told or 0.0)
        held = {_uuid(nth, placed) for nth, gpu in enumerate(self._gpus) for placed in gpu.busy}
        ends = {uuid: at for uuid, at in self._limits.items() if uuid in held}
        span = Span(begin=now, end=limit, ends=ends) if self._told else None
        idle = [
            piece
            for nth, gpu in enumerate(self._gpus)
            for piece in slices_of(_seen(nth, gpu), held, span)
            if piece.profile == profile and piece.uuid not in held
        ]
        for piece in in_order(idle, profile, (profile,), {}):
            self._limits[piece.uuid] = limit
            return int(piece.gpu), (piece.profile, int(piece.order[-1]))
        return None


def _uuid(nth: int, placed: Placed) -> str:
    return f"{nth}/{placed[0]}/{placed[1]}"


def _seen(nth: int, gpu: Gpu) -> model.Gpu:
    return model.Gpu(
        uuid=str(nth),
        index=nth,
        minor=nth,
        name="",
        mig=model.MigMode.ENABLED,
        memory_mib=0,
        profiles=OFFERED,
        instances=tuple(
            model.Instance(
                profile=placed[0], start=placed[1], size=SHAPES[placed[0]].size, gi=0, ci=0, uuid=_uuid(nth, placed)
            )
            for placed in sorted([*gpu.busy, *gpu.idle], key=lambda placed: placed[1])
        ),
    )


def run(jobs: list[Job], told: float | None) -> Outcome:
    gpus = [Gpu() for _ in range(GPUS)]
    return Simulation(Run(gpus=GPUS, tick_s=TICK_S), gpus, Choosing(gpus, told)).outcome(jobs)


@pytest.mark.parametrize(
    ("told", "seeds"),
    [
        pytest.param(1.0, range(2), id="exact limits"),
        pytest.param(1.0, range(12), id="exact limits, many", marks=pytest.mark.soak),
        pytest.param(3.0, range(12), id="limits of three times the length", marks=pytest.mark.soak),
    ],
)
def test_less_lies_stranded_and_jobs_wait_less_where_ends_are_known(told: float, seeds: range) -> None:
    rates = {name: rate for name, rate in rates_for(MIX, LOAD, GPUS, MEAN_S).items() if rate}
    streams = [stream(seed, rates, MEAN_S, JOBS * MEAN_S)[:JOBS] for seed in seeds]
    with_ends, without = [run(jobs, told) for jobs in streams], [run(jobs, None) for jobs in streams]
    stranded = fmean(one.stranded for one in with_ends) / fmean(one.stranded for one in without)
    waits = fmean(wait for one in with_ends for wait in one.waits) / fmean(
        wait for one in without for wait in one.waits
    )
    print(f"stranded {stranded:.2f}, waits {waits:.2f} of what they are without ends")
    assert stranded < 1.0
    assert waits < 1.0
