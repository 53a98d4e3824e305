"""Which layouts a group of GPUs should be cut into, for a load that is expected.

Greedy cutting loses to a good fixed mix: whatever is freed goes to the next small job, and no large one ever finds its
place. So the mix is planned first, and jobs are placed into it. A slice more of a profile is worth how often it would
be used: that falls with every slice (Erlang's loss formula), so the best mix is a linear program over layouts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.mig.geometry import Layout, Shapes, mask
from slurm_plugin.mig.layouts import counts_of
from slurm_plugin.planner.columns import frame_of, packings
from slurm_plugin.planner.highs import Highs, Matrix

SEGMENTS_MAX = 60  # steps in which the worth of a profile's slices is drawn
SPARE = 2.0  # slices beyond this multiple of the load are worth nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    layout: Layout
    gpus: int


def mix(shapes: Shapes, loads: Mapping[str, float], gpus: int, time_s: float = 5.0) -> tuple[Share, ...] | None:
    """The layouts that serve most compute, and how many GPUs have each; None when the time was over before.

    `loads`: by profile, how many slices would be in use at once were there always one free.
    """
    names = sorted(name for name, load in loads.items() if load > 0 and name in shapes)
    full = full_layouts(shapes, names)
    if not names or not full:
        return ()
    matrix = Matrix()
    for layout in full:
        counts = counts_of(layout)
        matrix.add(
            [*((nth, -counts[name]) for nth, name in enumerate(names) if name in counts), (len(names), 1)], 0, gpus
        )
    for nth, name in enumerate(names):
        for slices, used in _segments(loads[name], gpus * sum(1 for _ in shapes[name].starts)):
            matrix.add([(nth, 1)], shapes[name].compute_slices * used / slices, slices)
    solver = Highs(matrix.columns(), [0.0] * len(names) + [float(gpus)], time_s)
    solver.restrict([0.0] * len(full), [float(gpus)] * len(full), len(full))
    found = solver.run([matrix.cost])
    if found is None:
        return None
    return tuple(
        Share(layout=layout, gpus=round(count))
        for layout, count in zip(full, found.columns.tolist(), strict=False)
        if round(count)
    )


def carried(load: float, slices: int) -> list[float]:
    """How many of so many slices (0, 1, ...) are in use on average when jobs that find none are lost."""
    lost, found = 1.0, [0.0]
    for count in range(1, slices + 1):
        lost = load * lost / (count + load * lost)
        found.append(load * (1.0 - lost))
    return found


def _segments(load: float, most: int) -> list[tuple[int, float]]:
    """(slices, how much more is in use with them), each worth less a slice than the one before."""
    most = min(most, int(SPARE * load) + 10)
    step = -(-most // SEGMENTS_MAX)
    used = carried(load, most)
    return [(min(step, most - at), used[min(at + step, most)] - used[at]) for at in range(0, most, step)]


def full_layouts(shapes: Shapes, names: Sequence[str]) -> list[Layout]:
    """One full layout of these profiles for each multiset."""
    frame = frame_of(shapes)
    usable = tuple(profile for profile in frame.axis if profile[0] in names)
    each: dict[tuple[tuple[str, int], ...], Layout] = {}
    for layout in packings(usable, mask(0, frame.slices), frame.limit):
        each.setdefault(tuple(sorted(counts_of(layout).items())), layout)
    return [each[key] for key in sorted(each)]
