from dataclasses import replace

import pytest

from slurm_plugin.mig.compare import differences
from slurm_plugin.mig.products import product_named
from slurm_plugin.model import GpuProfile

H100 = product_named("h100-80gb")
ANSWER = tuple(
    GpuProfile(
        name=row.name,
        gi_profile_id=row.gi_profile_id,
        compute_slices=row.compute_slices,
        memory_mib=row.memory_mib,
        starts=row.starts,
        size=row.size,
        engines=row.engines,
    )
    for row in H100.profiles.values()
)
FIRST, REST = ANSWER[0], ANSWER[1:]


def test_a_gpu_like_the_table_differs_in_nothing() -> None:
    assert differences(H100, ANSWER) == ()


def test_memory_within_two_percent_and_unasked_engines_are_no_difference() -> None:
    assert differences(H100, (replace(FIRST, memory_mib=9856, engines=(), starts=FIRST.starts[::-1]), *REST)) == ()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (REST, "1g.10gb: the table has it, the GPU does not offer it"),
        ((*ANSWER, replace(FIRST, name="1g.12gb")), "1g.12gb: the GPU offers it, the table has no such profile"),
        ((replace(FIRST, gi_profile_id=9), *REST), "1g.10gb: driver id 9, the table has 19"),
        ((replace(FIRST, size=2), *REST), "1g.10gb: memory slices 2, the table has 1"),
        ((replace(FIRST, compute_slices=2), *REST), "1g.10gb: compute slices 2, the table has 1"),
        ((replace(FIRST, starts=(0, 1)), *REST), "1g.10gb: starts [0, 1], the table has [0, 1, 2, 3, 4, 5, 6]"),
        ((replace(FIRST, memory_mib=9000), *REST), "1g.10gb: 9000 MiB, the table has 9984"),
        (
            (replace(FIRST, engines=(1, 0, 0, 1, 0)), *REST),
            "1g.10gb: engines (1, 0, 0, 1, 0), the table has (1, 1, 0, 1, 0)",
        ),
    ],
)
def test_each_difference_is_one_line(answer: tuple[GpuProfile, ...], line: str) -> None:
    assert differences(H100, answer) == (line,)
