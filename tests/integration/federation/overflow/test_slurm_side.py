"""A proxy's signals and its job's end: what runs elsewhere gets what Slurm meant, and Slurm says what it was told."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from federation.errors import Refused, Unavailable
from federation.model.states import End, Origin, Outcome
from federation.model.token import Key
from federation.overflow import arrivals, slurm_side
from federation.overflow.burst import Burst, Claim, Ending, Ends, Heard, Phase, Way
from tests.integration.federation.overflow.stand import ASKED, JOB, LONGEST_WAIT_S, Stand, stand
from tests.integration.federation.site import SPEC, until

TERM, USR1, CONT, TSTP, STOP = 15, 10, 18, 20, 19


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(slurm_side, "ASK_S", 0.01)
    monkeypatch.setattr(slurm_side, "ASKS", 3)
    monkeypatch.setattr(arrivals, "JUST_S", 0)
    return stand(tmp_path)


def heard(signal: int, *, from_stepd: bool = True, restarts: int = 0) -> Heard:
    return Heard(signal=signal, from_stepd=from_stepd, restarts=restarts)


async def test_scancel_stops_what_runs(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.slurm.put(replace(here.slurm.records[12], state="COMPLETING"))
        assert await here.side.heard(12, heard(TERM)) is Ends.CANCEL
        await here.over(burst.token)
        here.slurm.put(replace(here.slurm.records[12], state="CANCELLED"))
        await here.passes()
        fed = await here.fed(burst.token)
        assert ((await here.burst(burst.token)).phase, fed.outcome and fed.outcome.end) == (Phase.CLOSED, End.CANCELLED)


async def test_a_native_timeout_stops_what_runs(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.slurm.put(replace(here.slurm.records[12], state="COMPLETING", reason="TimeLimit"))
        assert await here.side.heard(12, heard(TERM)) is Ends.TIMEOUT
        await here.over(burst.token)
        assert "time limit" in (await here.burst(burst.token)).why


async def test_a_requeue_by_the_user_fences_the_old_attempt_before_the_new_one_begins(here: Stand) -> None:
    async with here.up():
        old = await here.running()
        await here.passes()
        now = here.slurm.records[12]
        here.slurm.put(replace(now, state="COMPLETING", restarts=1, submitted_at=500))
        assert await here.side.heard(12, heard(TERM)) is Ends.REQUEUE
        assert (await here.burst(old.token)).phase is Phase.STOPPING
        waiting = here.slurm.requeued(now, at=500)
        assert waiting.limit_s != JOB.limit_s
        await here.over(old.token)
        await here.passes()
        assert (await here.burst(old.token)).phase is Phase.CLOSED
        back = here.slurm.records[12]
        assert (back.partitions, back.limit_s, "open" in back.note) == (ASKED, JOB.limit_s, False)
        new = await here.running(here.slurm.started(12, at=620))
        assert (new.token != old.token, new.limit_s) == (True, JOB.limit_s)
        assert (here.ran(old.token), here.ran(new.token)) == (1, 1)


async def test_a_new_run_waits_while_the_old_attempt_cannot_be_stopped(here: Stand) -> None:
    """Its site is away: the run that Slurm starts in the meantime is pinned, and its proxy waits."""
    async with here.up():
        old = await here.running()
        now = here.slurm.records[12]
        here.backend.ends[Key(old.token, 1)] = Outcome(end=End.EXITED)  # a stop that nothing is heard of
        here.backend.changed = lambda key: None
        await here.side.stop(old, "requeued in Slurm: the next run begins anew")
        here.slurm.requeued(now, at=500)
        await here.passes()
        assert here.slurm.records[12].partitions == ("cloud",)
        assert (await here.arrive(here.slurm.started(12, at=620)))[0] is Claim.WAIT
        await here.over(old.token)
        await here.passes()
        assert (await here.arrive(here.slurm.records[12]))[0] is Claim.NEW


async def test_what_a_pin_took_is_given_back(here: Stand) -> None:
    async with here.up():
        old = await here.running()
        here.slurm.requeued(here.slurm.records[12], at=500)
        await here.passes()
        await here.side.stop(old, "for this test")
        await here.over(old.token)
        await here.passes()
        assert here.slurm.records[12].partitions == ASKED


async def test_a_plain_signal_reaches_what_runs_and_ends_nothing(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        assert await here.side.heard(12, heard(USR1)) is Ends.SIGNAL
        assert await here.side.heard(12, heard(TERM)) is Ends.SIGNAL
        await until(lambda: _signals(here, [USR1, TERM]))
        assert (await here.burst(burst.token)).phase is Phase.OPEN


async def _signals(here: Stand, wanted: list[int]) -> bool:
    return sorted(here.backend.signals) == sorted(wanted)


async def test_a_shutdown_of_the_gateway_ends_nothing(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.slurm.put(replace(here.slurm.records[12], state="COMPLETING"))
        assert await here.side.heard(12, heard(TERM, from_stepd=False)) is Ends.NOTHING
        assert (await here.burst(burst.token)).phase is Phase.OPEN


async def test_the_end_of_a_run_that_slurmctld_forgot_is_no_signal_to_what_runs(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.slurm.put(replace(here.slurm.records[12], started_at=400))  # started again, before it cleared the node
        assert await here.side.heard(12, heard(TERM)) is Ends.NOTHING
        assert await here.side.heard(12, heard(USR1)) is Ends.NOTHING
        assert (await here.burst(burst.token)).phase is Phase.OPEN


async def test_suspend_and_resume_once_each_whatever_is_heard_again(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.slurm.put(replace(here.slurm.records[12], state="SUSPENDED"))
        assert await here.side.heard(12, heard(TSTP)) is Ends.SUSPEND
        await here.passes(2)
        await until(lambda: _signals(here, [TSTP, STOP]))
        assert (await here.burst(burst.token)).suspended
        here.slurm.put(replace(here.slurm.records[12], state="RUNNING"))
        assert await here.side.heard(12, heard(CONT)) is Ends.RESUME
        await here.passes(2)
        await until(lambda: _signals(here, [TSTP, STOP, CONT]))


async def test_a_suspension_that_no_proxy_told_of_is_seen(here: Stand) -> None:
    async with here.up():
        await here.running()
        here.slurm.put(replace(here.slurm.records[12], state="SUSPENDED"))
        await here.passes(3)
        await until(lambda: _signals(here, [TSTP, STOP]))
        requeued = here.slurm.requeued(here.slurm.records[12], at=500)
        assert requeued.restarts == 1
        await here.passes()
        await here.attach(here.slurm.started(12, at=620))
        await here.passes(2)
        await until(lambda: _signals(here, [TSTP, STOP, CONT]))


async def test_slurm_is_asked_again_about_a_signal_and_then_nothing_is_decided(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.slurm.away = True
        assert await here.side.heard(12, heard(TERM)) is Ends.NOTHING
        assert await here.side.heard(12, heard(USR1)) is Ends.SIGNAL
        assert (await here.burst(burst.token)).phase is Phase.OPEN
        assert await here.side.heard(99, heard(TERM)) is Ends.NOTHING


async def test_nothing_is_handed_over_while_slurm_can_t_be_told_that_it_is_open(here: Stand) -> None:
    async with here.up():
        here.slurm.put(JOB)
        here.slurm.away = True
        with pytest.raises(Unavailable):
            await here.arrive(JOB)
        here.slurm.away = False
        what, burst = await here.arrive(JOB)
        assert burst is not None
        assert what is Claim.REATTACH  # it was written down the first time
        assert '"open":1' in here.slurm.records[12].note
        assert here.ran(burst.token) == 0


async def test_a_site_that_drains_takes_no_new_job_and_lets_a_known_one_reattach(here: Stand) -> None:
    async with here.up():
        known = await here.running()
        await here.runner.drain()
        assert (await here.attach(JOB)).token == known.token
        _, burst = await here.arrive(here.slurm.put(replace(JOB, job_id=13)))
        assert burst is not None
        with pytest.raises(Unavailable):
            await here.side.accept(burst.token, SPEC)


async def ended(here: Stand, outcome: Outcome) -> tuple[Burst, Ending]:
    burst = await here.running()
    here.backend.end(Key(burst.token, 1), outcome)
    await here.over(burst.token)
    return burst, await here.side.end(burst.token)


async def test_an_exit_is_the_proxys_and_its_numbers_are_on_the_job_before(here: Stand) -> None:
    async with here.up():
        burst, end = await ended(here, Outcome(end=End.EXITED, exit_code=3))
        assert end == Ending(way=Way.EXIT, value=3)
        assert '"code":"3:0"' in here.slurm.records[12].note
        assert '"open":1' in here.slurm.records[12].note  # until Slurm knows
        assert (await here.burst(burst.token)).phase is Phase.OPEN


async def test_an_exit_does_not_wait_for_a_slurmctld_that_is_away(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        here.backend.end(Key(burst.token, 1), Outcome(end=End.EXITED, exit_code=3))
        await here.over(burst.token)
        here.slurm.away = True
        assert await here.side.end(burst.token) == Ending(way=Way.EXIT, value=3)


async def test_a_timeout_elsewhere_becomes_slurms_own(here: Stand) -> None:
    async with here.up():
        burst, end = await ended(here, Outcome(end=End.TIMEOUT))
        assert end.way is Way.TIMEOUT
        limits = [int(limit) for what, _, limit in here.slurm.told if what == "limit"]
        assert limits[-1] % 60 == 0
        assert limits[-1] <= here.clock().wall - JOB.started_at
        assert limits[0] == 3600 + LONGEST_WAIT_S
        assert (await here.burst(burst.token)).phase is Phase.OPEN


async def test_a_limit_that_a_job_is_ended_by_stays_until_slurm_has_looked(here: Stand) -> None:
    """That takes it half a minute, in which there are passes."""
    async with here.up():
        burst = await here.running(replace(JOB, limit_s=60))
        await here.passes()
        here.backend.end(Key(burst.token, 1), Outcome(end=End.TIMEOUT))
        await here.over(burst.token)
        here.clock.ahead_s = 62.0
        await here.side.written(burst)
        assert (await here.side.end(burst.token)).way is Way.TIMEOUT
        await here.passes(2)
        assert [what for what, *_ in here.slurm.told if what in ("limit", "end")] == ["limit", "end", "limit"]
        again = await here.attach(here.slurm.put(replace(here.slurm.records[12], restarts=1, submitted_at=200)))
        assert (again.token, again.written) == (burst.token, False)


async def test_a_limit_that_is_on_its_way_to_slurm_is_not_told_over_the_one_that_ends_the_job(
    here: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with here.up():
        burst = await here.running(replace(JOB, limit_s=60))
        whole, asked, goes_on = here.slurm.set_end, asyncio.Event(), asyncio.Event()

        async def set_end(name: str, at: int) -> None:
            asked.set()
            await goes_on.wait()
            await whole(name, at)

        monkeypatch.setattr(here.slurm, "set_end", set_end)
        async with asyncio.TaskGroup() as group:
            group.create_task(here.passes())
            await asked.wait()
            here.backend.end(Key(burst.token, 1), Outcome(end=End.TIMEOUT))
            await here.over(burst.token)
            await here.side.written(burst)
            group.create_task(here.side.end(burst.token))
            await until(lambda: _is_noted(here))
            goes_on.set()
        assert [what for what, *_ in here.slurm.told if what in ("limit", "end")] == ["limit", "end", "limit"]


async def _is_noted(here: Stand) -> bool:
    return '"how":"timeout"' in here.slurm.records[12].note


async def test_an_end_is_no_word_on_the_job_that_got_its_id(here: Stand) -> None:
    """A slurmctld that forgot it, and no pass has seen that yet."""
    async with here.up():
        burst = await here.running()
        other = here.slurm.put(replace(JOB, uid=1001, submitted_at=900, started_at=901))
        here.backend.end(Key(burst.token, 1), Outcome(end=End.CANCELLED))
        await here.over(burst.token)
        await here.side.end(burst.token)
        assert here.slurm.records[12] == other


@pytest.mark.parametrize("end", [End.NODE_FAIL, End.PREEMPTED])
async def test_a_node_lost_elsewhere_is_a_requeue_with_a_new_attempt(here: Stand, end: End) -> None:
    async with here.up():
        burst, ending = await ended(here, Outcome(end=end))
        assert ending.way is Way.REQUEUE
        assert ("requeue", "12") in here.slurm.told
        assert (await here.burst(burst.token)).phase is Phase.STOPPING
        now = replace(here.slurm.records[12], state="RUNNING")
        here.slurm.requeued(now, at=500)
        await here.passes()
        new = await here.attach(here.slurm.started(12, at=620))
        assert new.token != burst.token


async def test_a_job_that_may_not_be_requeued_fails_instead(here: Stand) -> None:
    async with here.up():
        burst = await here.running(replace(JOB, requeue=False))
        here.backend.end(Key(burst.token, 1), Outcome(end=End.NODE_FAIL))
        await here.over(burst.token)
        assert await here.side.end(burst.token) == Ending(way=Way.EXIT, value=1)
        assert not [told for told in here.slurm.told if told[0] == "requeue"]


async def test_a_cancel_elsewhere_is_one_here(here: Stand) -> None:
    async with here.up():
        _, end = await ended(here, Outcome(end=End.CANCELLED))
        assert end.way is Way.CANCEL
        assert ("cancel", "12") in here.slurm.told


@pytest.mark.parametrize("end", [End.TIMEOUT, End.NODE_FAIL, End.CANCELLED])
async def test_without_slurm_the_proxy_exits_in_the_end(here: Stand, end: End) -> None:
    async with here.up():
        burst = await here.running()
        here.backend.end(Key(burst.token, 1), Outcome(end=end))
        await here.over(burst.token)
        here.slurm.away = True
        found = await here.side.end(burst.token)
        assert found.way is Way.EXIT
        assert found.value


async def test_one_that_is_not_over_has_no_end(here: Stand) -> None:
    async with here.up():
        burst = await here.running()
        with pytest.raises(Refused):
            await here.side.end(burst.token)
        assert await here.is_in(burst.token, Origin.RUNNING)
