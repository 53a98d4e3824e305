"""One table tells all that may happen to a job; whatever else happens raises, and changes nothing."""

from itertools import product
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import IllegalEvent
from federation.model.job import Attempt, Job
from federation.model.spec import Lease
from federation.model.states import (
    AT_TARGET,
    NEW_ATTEMPT,
    OPEN,
    ORIGIN,
    TARGET,
    Origin,
    OriginEvent,
    Target,
    TargetEvent,
    after,
    after_at_target,
    diagram,
)
from federation.model.token import Key

JOB = Job(token=UUID(int=1), user="ann", lease=Lease(), accepted_at=0.0, due_at=0.0, site="hpc", pool="gpu", revision=7)


@pytest.mark.parametrize(("state", "event"), list(product(Origin, OriginEvent)))
def test_every_event_in_every_state_at_the_origin(state: Origin, event: OriginEvent) -> None:
    job = Job(token=JOB.token, state=state, user="ann", lease=Lease(), accepted_at=0.0, due_at=None)
    if (state, event) in ORIGIN:
        assert job.on(event).state is after(state, event) is ORIGIN[state, event]
    else:
        with pytest.raises(IllegalEvent, match=state.value):
            job.on(event)
    assert job.state is state


@pytest.mark.parametrize(("state", "event"), list(product(Target, TargetEvent)))
def test_every_event_in_every_state_at_the_target(state: Target, event: TargetEvent) -> None:
    attempt = Attempt(key=Key(UUID(int=1), 1), origin="edge", pool="gpu", state=state)
    if (state, event) in TARGET:
        assert attempt.on(event).state is after_at_target(state, event) is TARGET[state, event]
    else:
        with pytest.raises(IllegalEvent, match=state.value):
            attempt.on(event)
    assert attempt.state is state


@given(st.lists(st.sampled_from(OriginEvent), max_size=40))
def test_no_story_brings_a_job_back_or_gives_an_attempt_twice(events: list[OriginEvent]) -> None:
    job, sent = JOB, set()
    for event in events:
        try:
            following = job.on(event)
        except IllegalEvent:
            continue
        assert job.state is not Origin.DONE
        assert following.attempt in (job.attempt, job.attempt + 1)
        if event is OriginEvent.CHOSEN:
            assert following.attempt not in sent
            sent.add(following.attempt)
        if following.state is Origin.QUEUED:
            assert event in NEW_ATTEMPT
            assert (following.site, following.pool, following.revision, following.attempt) == (
                "",
                "",
                0,
                job.attempt + 1,
            )
        job = following


@given(st.lists(st.sampled_from(TargetEvent), max_size=40))
def test_no_story_runs_an_attempt_after_its_end(events: list[TargetEvent]) -> None:
    attempt = Attempt(key=Key(UUID(int=1), 1), origin="edge", pool="gpu", state=Target.STAGING)
    was_open = True
    for event in events:
        try:
            attempt = attempt.on(event)
        except IllegalEvent:
            continue
        assert was_open or attempt.state not in OPEN
        was_open = attempt.state in OPEN


def test_silence_is_no_event_but_for_a_lease() -> None:
    """What an origin hears nothing of stays with the target: only an answer, an order or a lease changes that."""
    for state in AT_TARGET:
        leaves = {event for (one, event), following in ORIGIN.items() if one is state and following not in AT_TARGET}
        assert leaves <= {OriginEvent.ENDED, OriginEvent.REFUSED, OriginEvent.REPLACE, OriginEvent.GIVEN_UP}


def test_from_everywhere_there_is_a_way_to_the_end() -> None:
    for table, last in ((ORIGIN, Origin.DONE), (TARGET, Target.RELEASED)):
        reach = {last}
        while more := {state for (state, _), following in table.items() if following in reach} - reach:
            reach |= more
        assert reach == set(type(last))


def test_the_diagram_has_each_arrow_of_the_tables() -> None:
    text = diagram()
    assert "origin_queued --> origin_sending: chosen" in text
    assert "target_stopping --> target_ended: exited, lost, fenced" in text
    assert text.count("-->") == len({(a, b) for (a, _), b in ORIGIN.items()}) + len(
        {(a, b) for (a, _), b in TARGET.items()}
    )


def test_the_document_shows_the_tables_as_they_are() -> None:
    text = (Path(__file__).parents[4] / "docs/federation_jobs.md").read_text()
    assert f"```mermaid\n{diagram()}```" in text
    for state in (*Origin, *Target):
        assert f"`{state.value}`" in text
