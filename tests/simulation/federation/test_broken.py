"""Each invariant is broken on purpose, and the simulation finds it: a check that can't fail would hold nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from federation.engine import origin, owing, sites, target
from federation.engine.attempts import ended
from federation.engine.effects import Effect, Forget, HandOver
from federation.engine.follower import Follower
from federation.engine.origin import OriginSide, done
from federation.engine.target import TargetSide
from federation.model.job import Attempt, Job
from federation.model.messages import Cancel, Changes, Submit
from federation.model.states import End, Origin, OriginEvent, Outcome, Target, TargetEvent
from federation.policy.admit import Verdict, admit
from federation.ports import Now
from federation.store import convert
from federation.store.store import Kind, Store
from tests.simulation.federation.story import QUIET_S, Scale, Story

TINY = Scale(sites=8, jobs=160, trouble_s=250.0, crashes=16, cuts=60, slots=4, most_in_pool=6)
SEEDS = 6  # one of these stories has what it takes

Patch = pytest.MonkeyPatch


def i1_gives_up(patch: Patch) -> None:
    """A submit without an answer is taken for refused."""
    due = OriginSide._due

    def wrong(side: OriginSide, store: Store, job: Job, now: Now) -> list[Effect]:
        if job.state is Origin.UNKNOWN:
            store.save_job(job.on(OriginEvent.REFUSED, due_at=now.wall), was=job)
            return []
        return due(side, store, job, now)

    patch.setattr(OriginSide, "_due", wrong)


def i1_believes_a_new_journal(patch: Patch) -> None:
    """A target whose journal is new refuses what runs there."""
    patch.setattr(
        TargetSide,
        "_doubt",
        lambda side, store, attempt, submit, now: side._saved(
            store, replace(attempt, state=Target.RELEASED, outcome=Outcome(end=End.NO_ROOM), ended_at=now.wall), None
        ),
    )


def i2_invents_an_end(patch: Patch) -> None:
    """What is gone has exited with 0."""

    def wrong(side: TargetSide, store: Store, known: Attempt, now: Now) -> list[Effect]:
        good = Outcome(end=End.EXITED, exit_code=0, started_at=known.started_at, ended_at=now.wall)
        return side._saved(store, ended(known, TargetEvent.EXITED, good, now), known)

    patch.setattr(TargetSide, "_lost", wrong)


def i3_forgets_a_cancel(patch: Patch) -> None:
    """It is said once, and not written down."""
    owe = owing.owe

    def wrong(store: Store, job: Job, kind: Kind, now: Now, **more: int) -> Effect:
        effect = owe(store, job, kind, now, **more)
        if kind is Kind.CANCEL:
            store.drop_command(job.key, kind)
        return effect

    patch.setattr(origin, "owe", wrong)


def i3_cancels_the_next(patch: Patch) -> None:
    """A cancel is of a job, and not of one attempt."""
    cancel, submit = TargetSide._cancel, TargetSide._submit
    cancelled: set[tuple[UUID, UUID]] = set()  # where, and what

    def remembers(side: TargetSide, store: Store, site: str, message: Cancel, now: Now) -> list[Effect]:
        cancelled.add((store.journal, message.key.token))
        return cancel(side, store, site, message, now)

    def wrong(side: TargetSide, store: Store, site: str, message: Submit, now: Now) -> list[Effect]:
        effects = submit(side, store, site, message, now)
        known = store.attempt(message.key)
        if known is None or known.state is not Target.READY or (store.journal, message.key.token) not in cancelled:
            return effects
        return [*effects, *side._stop(store, known, End.CANCELLED, now)]

    patch.setattr(TargetSide, "_cancel", remembers)
    patch.setattr(TargetSide, "_submit", wrong)


def i4_done_without_its_output(patch: Patch) -> None:
    def wrong(side: Follower, store: Store, pending: Job, was: Job, now: Now, spec: object) -> list[Effect]:
        done(store, pending.on(OriginEvent.FETCHED), was, now)
        return [owing.owe(store, pending, Kind.RELEASE, now)]

    patch.setattr(Follower, "_results", wrong)


def i5_names_are_text(patch: Patch) -> None:
    read = convert.spec_from_blob

    def wrong(blob: bytes) -> Any:
        spec = read(blob)
        return replace(spec, name=spec.name.decode("utf-8", "replace").encode())

    patch.setattr(convert, "spec_from_blob", wrong)


def i6_waiting_is_charged(patch: Patch) -> None:
    """The limit counts from when it was let in."""
    hand_over = TargetSide._hand_over

    def wrong(side: TargetSide, store: Store, attempt: Attempt, now: Now) -> list[Effect]:
        effects = hand_over(side, store, attempt, now)
        return [
            replace(one, spec=replace(one.spec, time_limit_s=5)) if isinstance(one, HandOver) else one
            for one in effects
        ]

    patch.setattr(TargetSide, "_hand_over", wrong)


def _admits(patch: Patch, no: End) -> None:
    def wrong(submit: Any, *rest: Any) -> Verdict:
        verdict = admit(submit, *rest)
        return Verdict(user="nobody", spec=submit.spec) if verdict.no is no else verdict

    patch.setattr(target, "admit", wrong)


def i7_lets_anybody_in(patch: Patch) -> None:
    _admits(patch, End.REFUSED)


def i8_counts_nothing(patch: Patch) -> None:
    _admits(patch, End.NO_ROOM)


def i9_output_goes_with_the_end(patch: Patch) -> None:
    saved = TargetSide._saved

    def wrong(side: TargetSide, store: Store, attempt: Attempt, was: Attempt | None, **more: bool) -> list[Effect]:
        effects = saved(side, store, attempt, was, **more)
        over = attempt.state is Target.ENDED
        return [*effects, Forget(pool=attempt.pool, key=attempt.key)] if over else effects

    patch.setattr(TargetSide, "_saved", wrong)


def i10_does_not_see_a_gap(patch: Patch) -> None:
    """What was not heard is taken for heard."""
    changes = Follower._changes

    def wrong(side: Follower, store: Store, site: str, message: Changes, now: Now) -> list[Effect]:
        known = store.followed(site)
        return changes(side, store, site, replace(message, after=known.cursor) if known else message, now)

    patch.setattr(Follower, "_changes", wrong)


def i10_counts_a_signal_before_it_is_delivered(patch: Patch) -> None:
    """A job that was suspended, and whose CONT got lost, stays so for ever."""
    patch.setattr(target, "STATES", frozenset())


def i10_leaves_what_is_over_to_a_lost_journal(patch: Patch) -> None:
    at_target = Store.at_target

    def wrong(store: Store, site: str, after: UUID, most: int) -> list[Job]:
        return [job for job in at_target(store, site, after, most) if job.state is not Origin.RESULTS_PENDING]

    patch.setattr(Store, "at_target", wrong)


def i10_never_believes_in_another_new_journal(patch: Patch) -> None:
    patch.setattr(sites, "JOURNAL_S", 1e9)


def i11_delivers_until_it_is_sure(patch: Patch) -> None:
    """What was delivered, though the backend did not say so, is delivered again."""
    patch.setattr(target, "STATES", frozenset(range(1, 65)))


BREAKS: tuple[Callable[[Patch], None], ...] = (
    i1_gives_up,
    i1_believes_a_new_journal,
    i2_invents_an_end,
    i3_forgets_a_cancel,
    i3_cancels_the_next,
    i4_done_without_its_output,
    i5_names_are_text,
    i6_waiting_is_charged,
    i7_lets_anybody_in,
    i8_counts_nothing,
    i9_output_goes_with_the_end,
    i10_does_not_see_a_gap,
    i10_counts_a_signal_before_it_is_delivered,
    i10_leaves_what_is_over_to_a_lost_journal,
    i10_never_believes_in_another_new_journal,
    i11_delivers_until_it_is_sure,
)


def broken(seed: int) -> set[str]:
    story = Story(seed=seed, scale=TINY)
    story.tell()
    story.world.run(story.over, TINY.trouble_s + QUIET_S / 4)
    return {one.partition(":")[0] for one in story.judged()}


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_what_is_whole_is_found_to_be(seed: int) -> None:
    """In each story: a false alarm would count as a find below."""
    assert broken(seed) == set()


@pytest.mark.parametrize("breaks", BREAKS, ids=lambda one: one.__name__)
def test_what_is_broken_is_found(breaks: Callable[[Patch], None], monkeypatch: Patch) -> None:
    breaks(monkeypatch)
    name = breaks.__name__.partition("_")[0].upper()
    assert any(name in broken(seed) for seed in range(1, SEEDS + 1))
