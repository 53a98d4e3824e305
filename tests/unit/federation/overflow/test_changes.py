"""Many jobs in one call, and who was refused when some were."""

from collections.abc import Sequence

import pytest

from federation.errors import Unavailable
from federation.overflow.changes import MOST_BYTES, MOST_HALVES, MOST_NAMES, TRIES, Change, Changes, has_started
from slurm_plugin.errors import SlurmError, SlurmUnavailable

TO = ("partition=gpu,cloud",)


class Scontrol:
    """Refuses what holds one of these names; says first so often that it is busy."""

    def __init__(self, *bad: str, busy: int = 0) -> None:
        self.bad, self.busy = frozenset(bad), busy
        self.calls: list[Sequence[str]] = []

    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        self.calls.append(argv)
        if self.busy:
            self.busy -= 1
            raise SlurmUnavailable("scontrol update: Resource temporarily unavailable for job 1")
        wrong = self.bad & set(argv[2].removeprefix("jobid=").split(","))
        if wrong:
            raise SlurmError(f"scontrol update: Access denied for job {min(wrong)}")
        return ""


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


async def test_who_is_refused_is_found_and_the_others_are_changed() -> None:
    slurm = Scontrol("40", "7")
    names = [str(nth) for nth in range(1, 101)]
    found = await Changes(slurm).apply(changes(*names))
    assert found.refused == {"7": "Access denied for job 7", "40": "Access denied for job 40"}
    assert not found.put_off
    assert len(slurm.calls) < 30
    last = {name for call in slurm.calls for name in call[2].removeprefix("jobid=").split(",")}
    assert last == set(names)


async def test_when_all_are_refused_it_does_not_go_on_for_ever() -> None:
    names = [str(nth) for nth in range(1, MOST_NAMES + 1)]
    slurm = Scontrol(*names)
    found = await Changes(slurm).apply(changes(*names))
    assert len(slurm.calls) <= MOST_HALVES + 1
    assert found.refused
    assert set(found.refused) | found.put_off == set(names)
    assert not any(found.done(name) for name in names)


async def test_a_busy_slurmctld_is_asked_again_and_not_for_ever() -> None:
    slurm = Scontrol(busy=TRIES - 1)
    assert (await Changes(slurm, pause_s=0.0).apply(changes("1"))).done("1")
    assert len(slurm.calls) == TRIES
    with pytest.raises(Unavailable, match="temporarily"):
        await Changes(Scontrol(busy=TRIES), pause_s=0.0).apply(changes("1"))


def test_a_job_that_has_started_is_no_fault() -> None:
    assert has_started("Job is no longer pending execution for job 7")
    assert not has_started("Access denied")
