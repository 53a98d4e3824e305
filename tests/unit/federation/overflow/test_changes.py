"""Many jobs in one call, and who was refused when some were."""

import re
from collections.abc import Sequence

import pytest

from federation.errors import Unavailable
from federation.overflow.changes import MOST_BYTES, MOST_NAMES, TRIES, Change, Changes, has_started, is_busy
from slurm_plugin.slurm.process import judge

TO = ("partition=gpu,cloud",)


class Scontrol:
    """Refuses what has one of these names; says first so often that it is busy with one."""

    def __init__(self, *bad: str, busy: int = 0) -> None:
        self.bad, self.busy = frozenset(bad), busy
        self.calls: list[Sequence[str]] = []

    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        self.calls.append(argv)
        names = re.findall(r"\d+(?:_\[[^]]*\])?", argv[2])
        lines = [f"Access denied for job {name}" for name in names if name in self.bad]
        if self.busy and "1" in names:
            self.busy -= 1
            lines.append("Resource temporarily unavailable for job 1")
        return judge(argv, 1 if lines else 0, "", "\n".join(lines))


class Saying:
    """Fails with these words."""

    def __init__(self, said: str) -> None:
        self.said = said

    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        return judge(argv, 1, "", self.said)


def changes(*names: str, to: tuple[str, ...] = TO) -> list[Change]:
    return [Change(name=name, to=to) for name in names]


async def test_jobs_with_the_same_change_go_in_one_call_in_their_order() -> None:
    slurm = Scontrol()
    mixed = [*changes("3", "1_[0-4]"), *changes("9", to=("partition=cpu,cloud",)), *changes("2")]
    found = await Changes(slurm).apply(mixed)
    assert slurm.calls == [
        ["scontrol", "update", "jobid=3,1_[0-4],2", "partition=gpu,cloud"],
        ["scontrol", "update", "jobid=9", "partition=cpu,cloud"],
    ]
    assert all(found.done(change.name) for change in mixed)


async def test_no_call_names_more_than_it_may() -> None:
    slurm = Scontrol()
    await Changes(slurm).apply(changes(*map(str, range(1, 2 * MOST_NAMES + 2))))
    assert [call[2].count(",") + 1 for call in slurm.calls] == [MOST_NAMES, MOST_NAMES, 1]
    slurm = Scontrol()
    long = "1_[" + "5," * 20_000 + "6]"
    await Changes(slurm).apply(changes(long, long, "7"))
    assert [len(call[2]) < MOST_BYTES for call in slurm.calls] == [True, True]
    assert len(slurm.calls) == 2


async def test_who_is_refused_is_told_by_one_call_however_many_they_are() -> None:
    names = [str(nth) for nth in range(1, MOST_NAMES + 1)]
    slurm = Scontrol(*names[5:])
    found = await Changes(slurm).apply(changes(*names))
    assert found.refused == dict.fromkeys(names[5:], "Access denied")
    assert [found.done(name) for name in names[4:6]] == [True, False]
    assert len(slurm.calls) == 1


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("12_1: Job is no longer pending execution\n12_[0,2-3]: Success", {"12_[0-3]"}),
        ("12_0: Access denied (fed: this site says no)", {"12_[0-3]"}),
        ("Invalid job id specified for job 13", {"13"}),
        ("No partition specified or system default partition for job 7\n13: Success", {"7"}),
        ("something that no release has said yet", {"7", "12_[0-3]", "13"}),
    ],
)
async def test_what_slurm_says_of_a_job_or_of_an_array(said: str, refused: set[str]) -> None:
    found = await Changes(Saying(said)).apply(changes("7", "12_[0-3]", "13"))
    assert found.refused.keys() == refused
    assert all(found.refused.values())


async def test_what_a_busy_slurmctld_did_not_do_is_asked_again_alone_and_not_for_ever() -> None:
    slurm = Scontrol("3", busy=TRIES - 1)
    found = await Changes(slurm, pause_s=0.0).apply(changes("1", "2", "3"))
    assert found.refused == {"3": "Access denied"}
    assert [call[2] for call in slurm.calls] == ["jobid=1,2,3"] + ["jobid=1"] * (TRIES - 1)
    found = await Changes(Scontrol(busy=TRIES), pause_s=0.0).apply(changes("1", "2"))
    assert is_busy(found.refused["1"])
    assert found.done("2")


@pytest.mark.parametrize("said", ["Unable to contact slurm controller (connect failure)", "Socket timed out for job 2"])
async def test_without_an_answer_nobody_knows_what_was_done(said: str) -> None:
    with pytest.raises(Unavailable):
        await Changes(Saying(said)).apply(changes("1", "2"))


def test_a_job_that_has_started_is_no_fault() -> None:
    assert has_started("Job is no longer pending execution for job 7")
    assert not has_started("Access denied")
