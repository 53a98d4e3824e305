"""Open bursts against Slurm: nothing runs twice, nothing that Slurm gave up runs on, and what is over is closed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from federation.errors import Refused, Unavailable
from federation.model.states import End, Origin, Outcome
from federation.model.token import Key
from federation.overflow import reconcile
from federation.overflow.burst import LOOKS, Burst, Claim, Heard, Phase, SlurmJob
from federation.overflow.notes import note
from federation.overflow.pacing import SHARE
from tests.integration.federation.overflow.stand import ASKED, JOB, LONGEST_WAIT_S, Stand, stand
from tests.integration.federation.site import SPEC, until

TAKES_S = 0.2
GONE = ("CANCELLED", "NODE_FAIL", "FAILED", "TIMEOUT", "COMPLETED", "PREEMPTED")


@pytest.fixture
def here(tmp_path: Path) -> Stand:
    return stand(tmp_path)


async def test_a_job_runs_once_and_is_closed_when_slurm_has_its_end(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        await here.passes(2)
        assert (await here.burst(burst.token)).phase is Phase.OPEN
        here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=3))
        await here.over(burst.token)
        await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.OPEN  # Slurm may start it again until it knows the end
        here.slurm.put(replace(here.slurm.records[12], state="FAILED"))
        await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.CLOSED
        assert here.ran(burst.token) == 1


async def test_the_note_is_open_before_anything_is_handed_over(here: Stand) -> None:
    async with here.up():
        here.slurm.put(JOB)
        _, burst = await here.arrive(JOB)
        assert burst is not None
        assert here.slurm.records[12].note == note(burst, None)
        assert await here.runner.read(lambda store: store.job(burst.token)) is None


async def test_a_lost_note_is_written_again(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        await here.passes()
        here.slurm.put(replace(here.slurm.records[12], note=""))
        await here.passes()
        assert '"open":1' in here.slurm.records[12].note
        assert str(burst.token) in here.slurm.records[12].note
        before = len(here.slurm.told)
        await here.passes(3)
        assert len(here.slurm.told) == before  # nothing is told twice


async def test_a_lost_gateway_is_pinned_and_reattaches_and_nothing_runs_twice(here: Stand) -> None:
    """The second run finds what the first began, though a local slice was free all the time."""
    async with here.up():
        burst = await here.running()
        waiting = here.slurm.requeued(here.slurm.records[12], at=500)
        await here.passes()
        assert here.slurm.records[12].partitions == ("cloud",)
        assert (await here.burst(burst.token)).partitions == ASKED
        again = here.slurm.started(12, at=620, node="cloud-aws-2")
        assert (await here.attach(again)).token == burst.token
        assert waiting.restarts == 1
        here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=0))
        await here.over(burst.token)
        here.slurm.put(replace(here.slurm.records[12], state="COMPLETED"))
        await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.CLOSED
        assert here.ran(burst.token) == 1


async def test_a_requeue_that_is_heard_while_a_pass_looks_is_not_forgotten(
    here: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with here.up():
        burst = await here.running()
        whole = here.slurm.jobs

        async def jobs(job_ids: Sequence[int]) -> dict[int, SlurmJob]:
            here.slurm.put(replace(here.slurm.records[12], state="COMPLETING", restarts=1, submitted_at=500))
            await here.side.heard(12, Heard(signal=15, from_stepd=True, restarts=0))
            here.slurm.requeued(replace(here.slurm.records[12], restarts=0), at=500)
            return await whole(job_ids)

        monkeypatch.setattr(here.slurm, "jobs", jobs)
        await here.passes()
        monkeypatch.undo()
        found = await here.burst(burst.token)
        assert (found.phase, found.partitions) == (Phase.STOPPING, ASKED)
        await here.over(burst.token)
        await here.passes()
        assert here.slurm.records[12].partitions == ASKED


def meanwhile(here: Stand, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[object]]) -> None:
    """In the next pass, once the journal was looked at and before Slurm is asked."""
    whole = here.slurm.jobs

    async def jobs(job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        monkeypatch.undo()
        await happens()
        return await whole(job_ids)

    monkeypatch.setattr(here.slurm, "jobs", jobs)


async def test_what_is_accepted_while_a_pass_finds_its_job_over_is_not_left_to_nobody(
    here: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with here.up():
        _, burst = await here.arrive(here.slurm.put(JOB))
        assert burst is not None

        async def is_accepted_and_its_proxy_killed() -> None:
            await here.side.accept(burst.token, SPEC)
            here.slurm.put(replace(here.slurm.records[12], state="CANCELLED"))

        meanwhile(here, monkeypatch, is_accepted_and_its_proxy_killed)
        await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.OPEN
        await here.passes()
        await here.over(burst.token)
        await here.passes()
        found, fed = await here.burst(burst.token), await here.fed(burst.token)
        assert (found.phase, fed.outcome and fed.outcome.end) == (Phase.CLOSED, End.CANCELLED)


async def test_one_that_was_sent_back_and_reattached_while_a_pass_looks_is_not_requeued(
    here: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would end what runs elsewhere: a pass over many takes a while."""
    async with here.up():
        burst = await here.running()
        here.slurm.requeued(here.slurm.records[12], at=500)
        astray = here.slurm.started(12, at=620, node="n1")

        async def jobs(job_ids: Sequence[int]) -> dict[int, SlurmJob]:
            here.slurm.requeued(astray, at=630)
            await here.attach(here.slurm.started(12, at=750))
            return {12: astray}

        monkeypatch.setattr(here.slurm, "jobs", jobs)
        await here.passes()
        assert not [told for told in here.slurm.told if told[0] == "requeue"]
        assert (await here.burst(burst.token)).phase is Phase.OPEN


async def test_an_end_that_was_read_before_another_run_came_stops_nothing(here: Stand) -> None:
    async with here.up():
        seen = await here.running()
        here.slurm.requeued(here.slurm.records[12], at=500)
        now = await here.attach(here.slurm.started(12, at=620))
        await here.side.stop(seen, "it is FAILED in Slurm")
        await here.side.written(seen)
        found = await here.burst(seen.token)
        assert (found.phase, found.written) == (Phase.OPEN, False)
        await here.side.stop(now, "it is FAILED in Slurm")
        assert (await here.burst(seen.token)).phase is Phase.STOPPING


async def test_a_burst_that_was_closed_while_a_pass_looks_takes_no_note_from_the_next(
    here: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note is what keeps a job that runs elsewhere from starting here."""
    async with here.up():
        old = await here.running()
        await here.side.stop(old, "requeued by its user")
        await here.over(old.token)

        async def begins_anew_and_loses_its_gateway() -> None:
            assert (await here.arrive(here.slurm.records[12]))[0] is Claim.NEW
            here.slurm.requeued(here.slurm.records[12], at=500)

        meanwhile(here, monkeypatch, begins_anew_and_loses_its_gateway)
        await here.passes()
        assert (await here.burst(old.token)).phase is Phase.CLOSED
        assert '"open":1' in here.slurm.records[12].note


async def test_what_a_run_that_waits_on_a_virtual_node_asked_for_is_its_next_bursts(here: Stand) -> None:
    """It has been there for longer than its own limit, which would end it; it gets that back when it waits again."""
    async with here.up():
        old = await here.running()
        here.slurm.requeued(here.slurm.records[12], at=500)
        await here.passes()
        here.slurm.started(12, at=620)
        await here.side.stop(old, "requeued by its user")
        again = here.slurm.put(replace(here.slurm.records[12], restarts=2, submitted_at=700, started_at=820))
        told = here.slurm.records[12].limit_s
        await here.over(old.token)
        await here.passes()
        assert (await here.burst(old.token)).phase is Phase.CLOSED
        assert here.slurm.records[12].limit_s == told != JOB.limit_s
        here.clock.ahead_s = 10.0
        new = await here.attach(replace(again, note=here.slurm.records[12].note))
        assert (new.token != old.token, new.limit_s, new.partitions) == (True, JOB.limit_s, ASKED)
        here.slurm.put(replace(here.slurm.records[12], state="COMPLETING", restarts=3, submitted_at=900))
        await here.side.heard(12, Heard(signal=15, from_stepd=True, restarts=2))
        here.slurm.put(replace(here.slurm.records[12], state="PENDING", nodes=(), started_at=0))
        await here.over(new.token)
        await here.passes()
        assert (here.slurm.records[12].limit_s, here.slurm.records[12].partitions) == (JOB.limit_s, ASKED)


async def test_a_limit_that_an_admin_has_set_meanwhile_is_the_next_bursts(here: Stand) -> None:
    async with here.up():
        old = await here.running()
        await here.side.stop(old, "requeued by its user")
        again = here.slurm.put(replace(here.slurm.records[12], restarts=1, submitted_at=700, started_at=820))
        await here.over(old.token)
        await here.passes()
        here.clock.ahead_s = 10.0
        assert (await here.attach(here.slurm.put(replace(again, limit_s=7200)))).limit_s == 7200


async def test_a_job_that_ended_while_its_gateway_was_lost_is_not_run_again(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.slurm.requeued(here.slurm.records[12], at=500)
        here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=7))
        await here.over(burst.token)
        await here.passes(LOOKS)
        assert (await here.burst(burst.token)).phase is Phase.OPEN
        again = await here.attach(here.slurm.started(12, at=620))
        assert (again.token, (await here.fed(again.token)).state) == (burst.token, Origin.DONE)
        assert here.ran(burst.token) == 1


async def test_one_that_slurm_has_started_here_all_the_same_is_sent_back(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.slurm.requeued(here.slurm.records[12], at=500)
        here.slurm.started(12, at=620, node="n1")
        await here.passes()
        assert ("requeue", "12") in here.slurm.told
        assert (await here.burst(burst.token)).phase is Phase.OPEN


async def test_a_slurmctld_that_forgot_the_start_has_it_started_again_once(here: Stand) -> None:
    """Killed before it saved the start: the job waits, with no more restarts, and is started later."""
    async with here.up():
        burst = await here.running()
        here.slurm.put(replace(here.slurm.records[12], state="PENDING", nodes=(), started_at=0, partitions=ASKED))
        await here.passes()
        assert here.slurm.records[12].partitions == ("cloud",)
        assert (await here.attach(here.slurm.started(12, at=400))).token == burst.token
        assert here.ran(burst.token) == 1


@pytest.mark.parametrize("state", GONE)
async def test_what_slurm_ended_without_a_proxy_is_stopped(here: Stand, state: str) -> None:
    async with here.up():
        burst = await here.running()
        here.slurm.put(replace(here.slurm.records[12], state=state))
        await here.passes()
        await here.over(burst.token)
        await here.passes()
        found, fed = await here.burst(burst.token), await here.fed(burst.token)
        assert (found.phase, fed.outcome and fed.outcome.end) == (Phase.CLOSED, End.CANCELLED)
        assert state in found.why


async def test_a_job_that_waits_elsewhere_and_is_cancelled_never_runs(here: Stand) -> None:
    here.backend.full = True
    async with here.up():
        burst = await here.attach(here.slurm.put(JOB))
        here.slurm.put(replace(JOB, state="CANCELLED"))
        await here.passes()
        await here.over(burst.token)
        await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.CLOSED
        assert here.ran(burst.token) == 0


async def test_a_job_that_slurmctld_forgot_leaves_nothing_running_and_the_log_says_which(
    here: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    async with here.up():
        burst = await here.running()
        del here.slurm.records[12]
        await here.passes(LOOKS - 1)
        assert (await here.burst(burst.token)).phase is Phase.OPEN
        with caplog.at_level(logging.WARNING):
            await here.passes()
        await here.over(burst.token)
        await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.CLOSED
        (line,) = [one for one in caplog.records if one.message == "burst.forgotten"]
        assert (line.__dict__["job"], line.__dict__["token"]) == ("12", str(burst.token))
        assert "does not know it" in line.__dict__["why"]


async def test_looks_that_did_not_find_it_count_only_in_a_row(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        known = here.slurm.records[12]
        for _ in range(LOOKS):
            del here.slurm.records[12]
            await here.passes(LOOKS - 1)
            here.slurm.put(known)
            await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.OPEN


async def test_a_slurmctld_that_does_not_answer_decides_nothing(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        del here.slurm.records[12]
        here.slurm.away = True
        await here.passes(3 * LOOKS)
        assert (await here.burst(burst.token)).phase is Phase.OPEN
        assert await here.is_in(burst.token, Origin.RUNNING)


async def test_an_id_that_another_job_got_is_not_its_to_run_until_the_first_is_stopped(here: Stand) -> None:
    async with here.up():
        first = await here.running()
        other = here.slurm.put(replace(JOB, uid=1001, submitted_at=900, started_at=901))
        what, _ = await here.arrive(other)
        assert what is Claim.WAIT
        await here.over(first.token)
        await here.passes()
        assert (await here.burst(first.token)).phase is Phase.CLOSED
        assert here.slurm.records[12] == other  # nothing of the first's was written on it
        assert (await here.arrive(other))[0] is Claim.WAIT  # what Slurm said may be a moment old
        here.clock.ahead_s = -3600.0  # as far as this clock says, that was in an hour
        assert (await here.arrive(other))[0] is Claim.NEW
        here.clock.ahead_s = 10.0
        second = await here.attach(other)
        assert second.token != first.token
        assert (here.ran(first.token), (await here.burst(second.token)).uid) == (1, 1001)


@pytest.mark.parametrize("requeue", [True, False])
async def test_one_that_is_over_elsewhere_and_whose_proxy_was_lost_is_started_again_to_tell_it(
    here: Stand, requeue: bool
) -> None:
    """Slurm would not miss its slurmstepd for half an hour."""
    async with here.up():
        burst = await here.running(replace(JOB, requeue=requeue))
        here.attended = False
        here.clock.ahead_s += 2 * reconcile.ALONE_S
        await here.passes(2)
        here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=7))
        await here.over(burst.token)
        await here.passes(2)
        here.attended = True
        here.clock.ahead_s += reconcile.ALONE_S
        await here.passes(2)
        here.attended = False
        await here.passes(2)
        assert ("requeue", "12") not in here.slurm.told
        here.clock.ahead_s += reconcile.ALONE_S
        await here.passes()
        assert here.slurm.told.count(("requeue", "12")) == 1
        here.slurm.requeued(here.slurm.records[12], 900)
        what, again = await here.arrive(here.slurm.started(12, 901))
        assert (what, again and again.token) == (Claim.REATTACH, burst.token)


async def test_an_end_that_slurmctld_forgot_is_told_again_and_nothing_runs_again(
    here: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed before it has written down what it just heard: to it the job runs, and nobody is there."""
    monkeypatch.setattr(reconcile, "SAVED_S", 10.0)
    async with here.up():
        burst = await here.running()
        here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=7))
        await here.over(burst.token)
        running = here.slurm.records[12]
        here.slurm.put(replace(running, state="FAILED"))
        await here.passes(2)
        assert (await here.burst(burst.token)).phase is Phase.OPEN
        here.slurm.put(running)
        here.attended = False
        await here.passes()
        here.clock.ahead_s += reconcile.ALONE_S
        await here.passes()
        assert ("requeue", "12") in here.slurm.told
        here.slurm.requeued(here.slurm.records[12], 900)
        what, again = await here.arrive(here.slurm.started(12, 901))
        assert (what, again and again.token) == (Claim.REATTACH, burst.token)
        here.slurm.put(replace(here.slurm.records[12], state="FAILED"))
        await here.passes()
        here.clock.ahead_s += 10.0
        await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.CLOSED


@pytest.mark.parametrize("partitions", [("cloud",), ("gpu", "cloud")])
async def test_a_job_that_slurm_lets_nobody_change_runs_where_it_can_start_nowhere_else(
    here: Stand, monkeypatch: pytest.MonkeyPatch, partitions: tuple[str, ...]
) -> None:
    async def refused(*_: object) -> None:
        raise Unavailable("Job update not available right now, the DB index is being set, try again in a bit")

    monkeypatch.setattr(here.slurm, "note", refused)
    monkeypatch.setattr(here.slurm, "set_limit", refused)
    async with here.up():
        job = here.slurm.put(replace(JOB, partitions=partitions))
        if len(partitions) > 1:
            with pytest.raises(Unavailable):
                await here.arrive(job)
            return
        burst = await here.attach(job)
        here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=7))
        await here.over(burst.token)
        here.attended = False
        await here.passes()
        here.clock.ahead_s += reconcile.ALONE_S
        await here.passes()
        assert ("requeue", "12") in here.slurm.told


async def test_one_that_its_user_requeues_just_after_its_end_begins_anew(
    here: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "SAVED_S", 10.0)
    async with here.up():
        burst = await here.running()
        here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=7))
        await here.over(burst.token)
        here.slurm.put(replace(here.slurm.records[12], state="FAILED"))
        await here.passes()
        here.slurm.requeued(here.slurm.records[12], 900)
        with monkeypatch.context() as patch:

            async def away(*_: object) -> None:
                raise Unavailable("slurmctld does not answer")

            patch.setattr(here.slurm, "note", away)
            await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.OPEN
        await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.CLOSED
        here.clock.ahead_s += 10.0
        assert (await here.arrive(here.slurm.started(12, 1000)))[0] is Claim.NEW


async def test_an_id_that_another_job_got_and_that_was_requeued_since_is_known_by_its_script(here: Stand) -> None:
    async with here.up():
        what, first = await here.arrive(here.slurm.put(JOB), script=b"first")
        assert first is not None
        await here.side.accept(first.token, SPEC)
        await until(lambda: here.is_in(first.token, Origin.RUNNING))
        here.slurm.requeued(here.slurm.put(replace(JOB, submitted_at=900)), 1000)
        other = here.slurm.started(12, 1001)
        assert (await here.arrive(other, script=b"other"))[0] is Claim.WAIT
        await here.over(first.token)
        await here.passes()
        here.clock.ahead_s = 10.0
        what, second = await here.arrive(other, script=b"other")
        assert what is Claim.NEW
        assert second is not None
        assert second.token != first.token


async def test_the_proxy_of_a_job_that_had_the_id_before_does_not_get_the_other_job(here: Stand) -> None:
    """From 23.02 on Slurm tells each run when it began."""
    async with here.up():
        first = await here.running()
        other = here.slurm.put(replace(JOB, submitted_at=900, started_at=901))
        assert (await here.arrive(other, began_at=901))[0] is Claim.WAIT
        await here.over(first.token)
        await here.passes()
        here.clock.ahead_s = 10.0
        assert (await here.arrive(other, began_at=JOB.started_at))[0] is Claim.STALE
        assert (await here.arrive(other, began_at=901))[0] is Claim.NEW
        assert (await here.arrive(other, began_at=JOB.started_at))[0] is Claim.STALE
        assert (await here.arrive(other, began_at=12345))[0] is Claim.REATTACH  # a variable of the submitter's


async def test_a_pass_alone_finds_that_an_id_is_another_jobs(here: Stand) -> None:
    async with here.up():
        first = await here.running()
        here.slurm.put(replace(JOB, submitted_at=900, state="PENDING", nodes=(), partitions=ASKED))
        await here.passes()
        await here.over(first.token)
        await here.passes()
        assert (await here.burst(first.token)).phase is Phase.CLOSED
        assert here.slurm.records[12].partitions == ASKED


async def test_a_closed_burst_is_accepted_for_nobody(here: Stand) -> None:
    """The proxy was about to be served when Slurm had ended its job."""
    async with here.up():
        _, burst = await here.arrive(here.slurm.put(JOB))
        assert burst is not None
        here.slurm.put(replace(JOB, state="CANCELLED"))
        await here.passes()
        with pytest.raises(Refused):
            await here.side.accept(burst.token, SPEC)
        assert here.ran(burst.token) == 0


async def test_time_counts_from_the_start_elsewhere(here: Stand) -> None:
    here.backend.full = True
    async with here.up():
        burst = await here.attach(here.slurm.put(JOB))
        assert ("limit", "12", str(3600 + LONGEST_WAIT_S)) in here.slurm.told
        here.backend.full = False
        await here.runner.tell_rooms()
        await until(lambda: here.is_in(burst.token, Origin.RUNNING))
        await here.passes()
        began = int(here.clock().wall)
        (end,) = [int(at) for what, _, at in here.slurm.told if what == "end"]
        assert began + 3600 <= end <= began + 3600 + 10
        assert abs((await here.burst(burst.token)).began_at - began) <= 2


async def test_a_new_gateway_gets_the_same_end(here: Stand) -> None:
    async with here.up():
        await here.running()
        await here.passes()
        here.slurm.requeued(here.slurm.records[12], at=500)
        await here.passes()
        here.clock.ahead_s = 300.0
        await here.attach(here.slurm.started(12, at=620))
        ends = [at for what, _, at in here.slurm.told if what == "end"]
        assert len(ends) == 2
        assert len(set(ends)) == 1


def ends(here: Stand) -> list[int]:
    return [int(told[-1]) for told in here.slurm.told if told[0] == "end"]


@pytest.mark.parametrize("over", [False, True])
async def test_slurm_does_not_end_a_job_whose_end_elsewhere_is_not_known_or_not_written(
    here: Stand, over: bool
) -> None:
    """Its site was not heard since its limit, or what it wrote is still on its way: the limit is kept to there."""
    async with here.up():
        burst = await here.running()
        await here.passes()
        (planned,) = ends(here)
        if over:
            here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=0))
            await here.over(burst.token)
        for ahead_s in (3600.0 - 30, 3600.0 + 250):
            here.clock.ahead_s = ahead_s
            await here.passes(2)
        assert [at > planned + 200 for at in ends(here)] == [False, True, True]
        here.clock.ahead_s = 10.0 * LONGEST_WAIT_S
        await here.passes()
        assert ends(here)[-1] == planned + LONGEST_WAIT_S


async def test_slurm_ends_a_job_that_runs_on_over_its_limit_elsewhere(here: Stand) -> None:
    async with here.up():
        await here.running()
        await here.passes()
        here.clock.ahead_s = 3600.0 + 15
        here.runner.engine.sites["hpc"].heard = here.clock().mono
        await here.passes()
        assert len(ends(here)) == 1


async def test_a_job_without_a_limit_gets_none(here: Stand) -> None:
    async with here.up():
        await here.running(replace(JOB, limit_s=0))
        await here.passes()
        assert not [told for told in here.slurm.told if told[0] in ("limit", "end")]


async def test_all_of_it_goes_on_after_a_restart_of_the_daemon(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        await here.passes()
    here.slurm.requeued(here.slurm.records[12], at=500)
    async with here.up():
        await here.passes()
        assert here.slurm.records[12].partitions == ("cloud",)
        assert (await here.attach(here.slurm.started(12, at=620))).token == burst.token
    here.slurm.put(replace(here.slurm.records[12], state="CANCELLED"))
    async with here.up():
        await here.passes()
        await here.over(burst.token)
        await here.passes()
        assert (await here.burst(burst.token)).phase is Phase.CLOSED
        assert here.ran(burst.token) == 1


async def test_one_that_fails_takes_no_other_with_it(here: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    async with here.up():
        bad = await here.running()
        good = await here.running(replace(JOB, job_id=13))
        here.slurm.put(replace(here.slurm.records[13], state="CANCELLED"))
        whole = here.side.tell_time

        async def tell_time(burst: object, job: object, fed: object) -> None:
            raise ZeroDivisionError("a slip")

        monkeypatch.setattr(here.side, "tell_time", tell_time)
        assert await here.reconcile.look() == "job 12: a fault of the daemon's: ZeroDivisionError: a slip"
        monkeypatch.setattr(here.side, "tell_time", whole)
        assert (await here.burst(good.token)).phase is Phase.STOPPING
        assert (await here.burst(bad.token)).phase is Phase.OPEN


async def test_closed_ones_are_remembered_as_long_as_jobs(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=0))
        await here.over(burst.token)
        here.slurm.put(replace(here.slurm.records[12], state="COMPLETED"))
        await here.passes()
        await here.reconcile.forget()
        assert (await here.burst(burst.token)).phase is Phase.CLOSED
        here.clock.ahead_s = here.runner.engine.origin.rules.keep_s + 10
        await here.reconcile.forget()
        assert await here.runner.read(lambda store: store.rows("burst", token=burst.token.bytes)) == []


@pytest.mark.parametrize(("answers", "slips"), [(True, False), (True, True), (False, False)])
async def test_a_long_queue_is_looked_at_less_often(
    here: Stand, monkeypatch: pytest.MonkeyPatch, answers: bool, slips: bool
) -> None:
    """Also when somebody asks for a look all the time; not one of which Slurm does not tell."""
    monkeypatch.setattr(reconcile, "APART_S", 0.0)
    began: list[float] = []

    async def jobs(job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        began.append(time.monotonic())
        here.reconcile.poke()
        await asyncio.sleep(TAKES_S)
        if not answers:
            raise Unavailable("slurmctld does not answer")
        return dict(here.slurm.records)

    async with here.up():
        await here.running()
        monkeypatch.setattr(here.slurm, "jobs", jobs)
        if slips:
            monkeypatch.setattr(reconcile, "without_proxy", None)
        loop = asyncio.create_task(here.reconcile.loop.run())
        async with asyncio.timeout(20):
            while len(began) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        loop.cancel()
        with suppress(asyncio.CancelledError):
            await loop
    assert (began[1] - began[0] >= TAKES_S * (1 + SHARE)) is answers


async def test_the_loop_looks_again_and_soon_when_it_is_asked_to(here: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "APART_S", 0.01)
    monkeypatch.setattr(reconcile, "EVERY_S", 600.0)
    async with here.up():
        burst = await here.running()
        loop = asyncio.create_task(here.reconcile.loop.run())
        await until(lambda: is_noted(here))
        here.slurm.put(replace(here.slurm.records[12], state="CANCELLED"))
        here.reconcile.poke()
        await here.over(burst.token)
        here.reconcile.poke()
        await until(lambda: closed(here, burst))
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def test_the_loop_outlives_a_slurmctld_and_a_journal_that_are_away(
    here: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "APART_S", 0.01)
    monkeypatch.setattr(reconcile, "EVERY_S", 0.02)
    async with here.up():
        burst = await here.running()
        with monkeypatch.context() as away:

            async def read(call: object, **_: bool) -> object:
                away.undo()
                raise Unavailable("too much waits for the journal's disk")

            away.setattr(here.runner, "read", read)
            here.slurm.away = True
            loop = asyncio.create_task(here.reconcile.loop.run())
            await until(lambda: reads_again(here, read))
        here.slurm.put(replace(here.slurm.records[12], state="CANCELLED"))
        here.slurm.away = False
        await until(lambda: closed(here, burst))
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def is_noted(here: Stand) -> bool:
    return '"state":"running"' in here.slurm.records[12].note


async def closed(here: Stand, burst: Burst) -> bool:
    return (await here.burst(burst.token)).phase is Phase.CLOSED


async def reads_again(here: Stand, broken: object) -> bool:
    return here.runner.read is not broken


async def test_why_one_waits_is_said_once(
    here: Stand, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def note(burst: Burst, text: str) -> None:
        raise Refused("Access/permission denied")

    async with here.up():
        await here.running()
        monkeypatch.setattr(here.slurm, "note", note)
        await here.passes(3)
        assert [one.__dict__["why"] for one in caplog.records if one.message == "burst.waits"] == [
            "Access/permission denied"
        ]
