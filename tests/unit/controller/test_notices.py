"""Which lines are due on which jobs: few, in order, and only where they differ."""

from dataclasses import replace

import pytest

from slurm_plugin.controller.decide import decide
from slurm_plugin.controller.notices import A_ROUND, AFTER_S, CALM_S, FIRST, Known, due
from slurm_plugin.controller.state import State
from slurm_plugin.ports import QueuedJob
from tests.unit.controller import pools
from tests.unit.controller.pools import SEVEN, gpu, grant, node, pending, running

NOW = 10_000.0
WAITED = round(NOW - AFTER_S)
BUSY = tuple(grant(10 + nth, "1g.10gb", f"MIG-a-1g.10gb-{nth}") for nth in range(7))
RUNNING = tuple(running(10 + nth, "1g.10gb") for nth in range(7))


def waiting(job_id: int, *, priority: int = 1, submitted_at: int = WAITED) -> QueuedJob:
    return replace(pending(job_id, "1g.10gb", priority=priority), submitted_at=submitted_at)


def world(*jobs: QueuedJob, now: float = NOW, notices: bool = True) -> State:
    busy = node("n1", gpu("a", SEVEN), grants=BUSY)
    return State(
        config=replace(pools.config("n1"), notices=notices),
        serving=pools.serving(),
        nodes={"n1": busy},
        jobs=(*RUNNING, *jobs),
        now=now,
    )


def notes(state: State, known: Known) -> dict[int, str]:
    return {one.run.job_id: one.note for one in due(state, decide(state), known)}


def written(state: State, known: Known) -> dict[int, str]:
    """Those that are due, as if they were written."""
    found = notes(state, known)
    for job_id, note in found.items():
        known.wrote(job_id, note, state.now)
    return found


def test_a_job_that_waited_long_enough_is_told_and_a_new_one_is_not() -> None:
    found = notes(world(waiting(1), waiting(2, submitted_at=WAITED + 1)), Known())
    assert list(found) == [1]
    assert found[1].startswith("waits: n1 GPU 0 is free when job 10 ends")


def test_those_that_come_first_are_looked_at_first_and_again_only_after_a_while() -> None:
    jobs = [waiting(100 + nth, priority=nth) for nth in range(FIRST + 10)]
    known, seen = Known(), []
    for _ in range(FIRST):
        found = written(world(*jobs), known)
        assert len(found) <= A_ROUND
        seen += list(found)
    assert seen == [job.job_id for job in reversed(jobs)][:FIRST]
    assert list(notes(world(*jobs, now=NOW + CALM_S), known)) == seen[:A_ROUND]


def test_a_job_that_starts_is_told_what_it_got_and_only_if_it_was_told_why_it_waits() -> None:
    known = Known(notes={10: "waits: x"})
    assert written(world(), known) == {10: "got 1g.10gb on n1 GPU 0"}
    assert written(world(), known) == {}


def test_a_job_whose_slices_are_not_told_yet_is_left_as_it_is() -> None:
    late = replace(running(30, "1g.10gb"), started_at=200)
    assert notes(world(late), Known(notes={30: "waits: x"})) == {}


def test_an_element_of_an_array_took_its_line_along_and_older_ones_have_none() -> None:
    array = waiting(50)
    element = replace(RUNNING[0], array_id=50)
    state = replace(world(array), jobs=(element, *RUNNING[1:], array))
    late, soon = Known(), Known()
    late.wrote(50, "waits: x", element.started_at + 1.0)
    soon.wrote(50, "waits: x", element.started_at + 0.5)
    assert notes(replace(state, now=NOW), late).keys() == {50}
    assert notes(replace(state, now=NOW), soon)[10] == "got 1g.10gb on n1 GPU 0"


@pytest.mark.parametrize("note", ["waits: x", "got 1g.10gb on n1 GPU 0"])
def test_a_line_goes_when_slurm_keeps_the_job_back(note: str) -> None:
    held = replace(waiting(1), eligible=False, priority=0, reason="JobHeldUser")
    known = Known(notes={1: note})
    assert written(world(held), known) == {1: ""}
    assert (known.notes, written(world(held), known)) == ({}, {})


def test_a_job_that_was_sent_back_does_not_keep_what_it_got() -> None:
    new = waiting(1, submitted_at=round(NOW))
    assert notes(world(new), Known(notes={1: "got 1g.10gb on n1 GPU 0"})) == {1: ""}


def test_switched_off_every_line_goes_and_none_comes() -> None:
    known = Known(notes={1: "waits: x", 10: "got x"})
    off = world(waiting(1), waiting(2), notices=False)
    assert written(off, known) == {1: "", 10: ""}
    assert written(off, known) == {}


def test_what_is_known_of_jobs_that_are_over_is_forgotten() -> None:
    known = Known()
    for job_id in (1, 2, 50):
        known.wrote(job_id, "waits: x", NOW)
    known.keep({1: waiting(1), 60: replace(running(60, "1g.10gb"), array_id=50)})
    assert known.notes.keys() == known.since.keys() == known.looked_at.keys() == {1, 50}
