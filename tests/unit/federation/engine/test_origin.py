"""What an origin does with its users' jobs."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from federation.engine.effects import (
    Deliver,
    Dropped,
    Effect,
    Fault,
    Fence,
    FetchResults,
    HandOver,
    Look,
    PushInputs,
    Send,
)
from federation.engine.origin import ANSWER_S, FOLLOW_S, LEASE_MARGIN, LEASE_MARGIN_S, RECHOOSE_S, WAKE_S
from federation.engine.owing import MOST_SIGNALS
from federation.engine.sites import JOURNAL_S, SILENT_S, WARY_JOBS, WARY_S
from federation.errors import Refused, Unavailable
from federation.model.messages import (
    CONT,
    STOP,
    TSTP,
    Busy,
    Cancel,
    Changes,
    Follow,
    Record,
    Release,
    Room,
    Rooms,
    Signal,
    Submit,
    Told,
)
from federation.model.spec import Input, Lease, OnSilence
from federation.model.states import End, Origin, Outcome, Target
from federation.model.token import Key
from federation.policy.breaker import FIRST_COOL_S, MAX_FAILURES
from federation.policy.choose import Rules
from federation.ports import Sight
from tests.unit.federation.engine.bench import EXIT, KEY, SPEC, TOKEN, Pair, Site, messages, only


@pytest.fixture
def pair() -> Pair:
    return Pair()


def told(key: Key, state: Target, revision: int = 1000, **facts: Any) -> Told:
    return Told(journal=UUID(int=3), record=Record(key=key, revision=revision, state=state, **facts))


def test_a_budget_is_reserved_and_settled_by_what_ran_also_of_attempts_before() -> None:
    pair = Pair(placing=Rules(budget_per_day={"lab": 10.0}))
    pair.offers("gpu", price_per_hour=6.0)

    def spent() -> float:
        return pair.edge.store.spent("lab", int(pair.edge.time // 86400))

    pair.running()
    assert (pair.edge.job.cost, spent()) == (6.0, 6.0)
    pair.edge.submit(token=UUID(int=2))
    pair.edge.due()
    other = pair.edge.store.job(UUID(int=2))
    assert other is not None
    assert "over budget: 6.00 more than the 4.00 left" in other.why
    pair.edge.run(lambda: pair.edge.engine.origin.cancel(pair.edge.store, other.token, pair.edge.now()))

    pair.edge.time += 600.0
    pair.carry(pair.edge, pair.edge.asked("requeue"))
    ran = replace(EXIT, end=End.CANCELLED, started_at=5.0, ended_at=605.0)
    pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=ran))
    assert (pair.edge.job.attempt, pair.edge.job.cost, spent()) == (2, 0.0, 1.0)

    pair.carry(pair.edge, pair.edge.due())
    assert (pair.edge.job.cost, spent()) == (6.0, 7.0)
    pair.edge.time += 300.0
    ended = told(Key(TOKEN, 2), Target.ENDED, outcome=replace(EXIT, started_at=605.0, ended_at=905.0))
    pair.edge.hears("hpc", replace(ended, journal=pair.hpc.store.journal))
    assert (pair.edge.job.state, pair.edge.job.cost, spent()) == (Origin.RESULTS_PENDING, 0.5, 1.5)
    pair.edge.store.roll_back()  # what is kept in memory is what the journal has
    assert spent() == 1.5


def test_why_a_backend_was_not_given_a_job_is_told_its_user_until_it_is(pair: Pair) -> None:
    pair.edge.submit()
    pair.carry(pair.edge, pair.edge.due())
    why = "there is no user 'a_smith' on this host now"
    for wait_s in (1.0, 2.0):
        assert len(only(pair.carry(pair.hpc, pair.hpc.due(wait_s)), HandOver)) == 1
        pair.carry(pair.hpc, pair.hpc.backend("not_handed_over", KEY, why))
        assert (pair.edge.job.state, pair.edge.job.why) == (Origin.ACCEPTED, f"waits at hpc: {why}")
    pair.carry(pair.hpc, pair.hpc.due(4.0))
    pair.carry(pair.hpc, pair.hpc.backend("handed_over", KEY, "77"))
    assert (pair.edge.job.state, pair.edge.job.why) == (Origin.ACCEPTED, "waits at hpc")


def test_output_is_fetched_of_what_left_no_exit_record_whatever_was_seen_of_it(pair: Pair) -> None:
    pair.running()
    ended = told(KEY, Target.ENDED, outcome=Outcome(end=End.LOST, started_at=5.0))
    effects = pair.edge.hears("hpc", replace(ended, journal=pair.hpc.store.journal))
    assert (len(only(effects, FetchResults)), pair.edge.job.state) == (1, Origin.RESULTS_PENDING)


# -- accepting and choosing


def test_asking_again_with_the_same_token_is_the_same_job(pair: Pair) -> None:
    assert pair.edge.submit() == pair.edge.submit(replace(SPEC, script=b"other"))


def test_with_no_link_a_job_waits_here_and_says_why(pair: Pair) -> None:
    pair.edge.link("hpc", up=False)
    pair.edge.submit()
    assert only(pair.edge.due(), Send) == []
    assert (pair.edge.job.state, pair.edge.job.why) == (Origin.QUEUED, "no pool fits now: hpc/gpu: no link now")
    assert pair.edge.job.reasons == (("hpc/gpu", "no link now"),)
    pair.edge.time += RECHOOSE_S
    pair.edge.link("hpc")
    assert messages(pair.edge.due(), Submit) == [Submit(key=KEY, pool="gpu", spec=SPEC)]
    assert pair.edge.job.reasons[0][1].startswith("chosen")


def test_new_room_wakes_the_jobs_that_wait_for_it() -> None:
    edge = Site("edge", ("hpc",))
    edge.link("hpc")
    edge.submit()
    edge.due()
    pair = Pair.__new__(Pair)
    pair.edge = edge
    pair.offers("gpu")
    assert len(messages(edge.due(), Submit)) == 1


def test_room_that_a_site_tells_of_again_and_again_wakes_jobs_once_a_second(pair: Pair) -> None:
    edge = pair.edge
    pair.offers()
    for number in range(100):
        edge.submit(token=UUID(int=number + 1))
    edge.due(WAKE_S)
    looked = edge.store.changes()
    for _ in range(100):
        pair.offers()
        pair.offers("gpu")
    assert edge.store.changes() - looked == 5  # the first five
    assert len(messages(edge.due(WAKE_S), Submit)) == 5
    assert edge.engine.sites.more == 0


def test_more_than_it_takes_is_refused_for_now() -> None:
    edge = Site("edge", (), most_open=1)
    edge.submit()
    with pytest.raises(Unavailable, match="1 jobs are open"):
        edge.submit(token=UUID(int=2))
    edge.submit()


def test_a_site_that_drains_acknowledges_what_it_knows_and_takes_nothing_else(pair: Pair) -> None:
    edge = pair.edge
    edge.submit()
    edge.run(lambda: edge.store.drain(True))
    edge.restart()
    assert edge.submit().token == TOKEN
    with pytest.raises(Unavailable, match="draining"):
        edge.submit(token=UUID(int=2))
    edge.run(lambda: edge.store.drain(False))
    edge.submit(token=UUID(int=2))


def test_without_room_in_the_journal_a_known_job_is_still_acknowledged(pair: Pair) -> None:
    pair.edge.submit()
    pair.edge.may_accept = False
    assert pair.edge.submit().token == TOKEN
    with pytest.raises(Unavailable, match="short of room"):
        pair.edge.submit(token=UUID(int=2))


def test_a_job_that_fails_takes_no_other_with_it_and_is_looked_at_again(pair: Pair) -> None:
    pair.edge.submit(replace(SPEC, pin="hpc/\udc80"))  # what no row takes as a reason
    pair.edge.submit(token=UUID(int=2))
    effects = pair.edge.due()
    assert [one.message.key.token for one in only(effects, Send) if isinstance(one.message, Submit)] == [UUID(int=2)]
    (fault,) = only(effects, Fault)
    assert (fault.about, type(fault.error)) == (f"job {TOKEN}", UnicodeEncodeError)
    assert (pair.edge.job.state, pair.edge.job.why[:23]) == (Origin.QUEUED, "it can't be looked at: ")
    assert only(pair.edge.due(1.0), Fault) == []
    assert len(only(pair.edge.due(RECHOOSE_S), Fault)) == 1


def test_what_a_choice_costs_is_counted_against_the_day_s_budget() -> None:
    pair = Pair(placing=Rules(budget_per_day={"lab": 3.0}))
    pair.offers("gpu", price_per_hour=2.0)
    pair.edge.submit()
    pair.edge.submit(token=UUID(int=2))
    assert len(messages(pair.edge.due(), Submit)) == 1
    waits = pair.edge.store.job(UUID(int=2))
    assert waits is not None
    assert waits.reasons == (("hpc/gpu", "over budget: 2.00 more than the 1.00 left of today's 3.00"),)
    pair.edge.time += 86400.0
    pair.offers("gpu", price_per_hour=2.0)
    assert len(messages(pair.edge.due(), Submit)) == 2  # the first one again, and the second on a new day


def test_what_jobs_were_sent_for_is_free_for_no_other_until_one_ends(pair: Pair) -> None:
    edge = pair.edge
    edge.hears("edge", Rooms(pools=(Room(pool="cpu", free_jobs=100, free_cpus=8),)))
    for number in range(6):
        edge.submit(replace(SPEC, cpus=4), token=UUID(int=number + 1))
    edge.due()
    sites = [job.site for number in range(6) if (job := edge.store.job(UUID(int=number + 1)))]
    assert sites == ["edge", "edge", "hpc", "hpc", "edge", "edge"]  # 8 and 9 CPUs are free; then both are full

    ended = told(KEY, Target.RELEASED, outcome=Outcome(end=End.CANCELLED, started_at=None))
    edge.hears("edge", replace(ended, journal=edge.store.journal))
    assert edge.engine.sites["edge"].rooms["cpu"].free_cpus == 4
    edge.hears("edge", Rooms(pools=(Room(pool="cpu", free_jobs=100, free_cpus=7),)))
    assert edge.engine.sites["edge"].rooms["cpu"].free_cpus == 7  # its site knows best


def test_a_job_whose_spec_is_gone_ends_and_holds_nothing_up(pair: Pair) -> None:
    pair.edge.submit()
    pair.edge.run(lambda: pair.edge.store.drop_spec(TOKEN))
    pair.edge.due()
    assert pair.edge.job.outcome == Outcome(end=End.LOST, reason="the journal does not have what was to run")


# -- silence


def test_a_submit_without_an_answer_is_unknown_and_asked_again(pair: Pair) -> None:
    pair.edge.submit()
    pair.edge.due()
    again = pair.edge.due(ANSWER_S)
    assert pair.edge.job.state is Origin.UNKNOWN
    assert messages(again, Submit) == [Submit(key=KEY, pool="gpu", spec=SPEC, again=True)]


def test_a_lost_link_is_no_verdict_however_long(pair: Pair) -> None:
    pair.running()
    pair.edge.link("hpc", up=False)
    for _ in range(50):
        assert only(pair.edge.due(3600.0), Send) == []
    assert (pair.edge.job.state, pair.edge.job.attempt) == (Origin.RUNNING, 1)


@pytest.mark.parametrize("on_silence", [OnSilence.REPLACE, OnSilence.STOP])
def test_only_a_lease_to_replace_starts_another_attempt(pair: Pair, on_silence: OnSilence) -> None:
    pair.running(replace(SPEC, lease=Lease(on_silence=on_silence, after_s=100.0)))
    pair.edge.link("hpc", up=False)
    pair.edge.due(100.0 * LEASE_MARGIN + LEASE_MARGIN_S - 1)
    assert pair.edge.job.state is Origin.RUNNING
    pair.edge.due(2.0)
    replaced = on_silence is OnSilence.REPLACE
    assert (pair.edge.job.state, pair.edge.job.attempt) == ((Origin.QUEUED, 2) if replaced else (Origin.RUNNING, 1))
    pair.edge.link("hpc")
    assert messages(pair.edge.due(), Cancel) == ([Cancel(key=KEY, pool="gpu")] if replaced else [])


def test_a_site_that_seems_to_be_linked_and_says_nothing_gets_no_new_job(pair: Pair) -> None:
    pair.edge.submit()
    assert messages(pair.edge.due(SILENT_S + 1), Submit) == []
    assert pair.edge.job.reasons == (("hpc/gpu", "no link now"),)


def test_busy_is_no_verdict_and_told(pair: Pair) -> None:
    pair.edge.submit()
    pair.edge.due()
    pair.edge.hears("hpc", Busy(key=KEY, why="short of room"))
    assert (pair.edge.job.state, pair.edge.job.attempt) == (Origin.SENDING, 1)
    assert "short of room" in pair.edge.job.why


# -- what the target tells


def test_a_refusal_for_good_sends_it_elsewhere_as_the_next_attempt(pair: Pair) -> None:
    pair.offers("gpu", "cpu")
    pair.edge.submit(replace(SPEC, user="nobody"))
    pair.carry(pair.edge, pair.edge.due())
    refused = ("hpc/gpu", "user nobody of edge is nobody here")
    assert (pair.edge.job.state, pair.edge.job.attempt, pair.edge.job.avoid) == (Origin.QUEUED, 2, (refused,))
    pair.carry(pair.edge, pair.edge.due())
    assert dict(pair.edge.job.avoid) == dict.fromkeys(("hpc/gpu", "hpc/cpu"), refused[1])
    pair.edge.due()
    assert pair.edge.job.state is Origin.QUEUED
    assert {reason for _, reason in pair.edge.job.reasons} == {f"it refused this job: {refused[1]}"}


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (End.REFUSED, ""),
        (End.LOST, f"no pool fits now: hpc/gpu: left alone for {FIRST_COOL_S:.0f} s after failures"),
    ],
)
def test_what_jobs_of_one_user_come_to_closes_a_pool_to_others_only_if_it_fails(pair: Pair, end: End, why: str) -> None:
    for number in range(MAX_FAILURES):
        token = UUID(int=10 + number)
        pair.edge.submit(replace(SPEC, user="eve"), token=token)
        pair.edge.due()
        state, started_at = (Target.RELEASED, None) if end is End.REFUSED else (Target.ENDED, 5.0)
        outcome = Outcome(end=end, started_at=started_at, reason="it did not go well")
        ended = told(Key(token, 1), state, outcome=outcome)
        pair.edge.hears("hpc", replace(ended, journal=pair.hpc.store.journal))
    pair.edge.submit()
    assert [one.key for one in messages(pair.edge.due(), Submit)] == ([] if why else [KEY])
    assert pair.edge.job.why == (why or "sent to hpc/gpu")


def test_no_room_is_no_failure_and_nothing_more_is_sent_until_some_is_told(pair: Pair) -> None:
    full = Outcome(end=End.NO_ROOM, reason="pool gpu takes no more jobs now")
    for attempt in range(1, 20):
        pair.edge.submit()
        assert messages(pair.edge.due(), Submit) == [Submit(key=Key(TOKEN, attempt), pool="gpu", spec=SPEC)]
        pair.edge.hears("hpc", told(Key(TOKEN, attempt), Target.RELEASED, outcome=full))
        assert messages(pair.edge.due(RECHOOSE_S / 2), Submit) == []
        assert pair.edge.job.why == "no pool fits now: hpc/gpu: pool gpu takes no more jobs now"
        pair.offers("gpu")


def test_a_pool_that_was_full_in_spite_of_what_its_site_told_gets_few_jobs_for_a_while(pair: Pair) -> None:
    def sent() -> int:
        rooms = Rooms(pools=(Room(pool="gpu", free_jobs=50, free_cpus=9),))
        pair.edge.hears("hpc", rooms)
        return sum(not one.again for one in messages(pair.edge.due(), Submit))

    pair.edge.submit()
    pair.edge.due()
    full = Outcome(end=End.NO_ROOM, reason="no")
    pair.edge.hears("hpc", told(KEY, Target.RELEASED, outcome=full))
    for number in range(2, 40):
        pair.edge.submit(token=UUID(int=number))
    assert sent() == WARY_JOBS
    pair.edge.time += WARY_S
    pair.edge.link("hpc")
    assert sent() == 39 - WARY_JOBS


def test_the_end_of_a_job_is_room_for_one_that_waits(pair: Pair) -> None:
    pair.edge.hears("hpc", Rooms(pools=(Room(pool="gpu", free_jobs=1, free_cpus=9),)))
    pair.running()
    other = pair.edge.submit(token=UUID(int=2))
    assert messages(pair.edge.due(), Submit) == []  # the first one has that room
    pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=EXIT))
    assert [one.key for one in messages(pair.edge.due(), Submit)] == [other.key]


def test_it_is_done_only_when_its_output_is_here_and_then_released(pair: Pair) -> None:
    pair.running()
    asked = pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=EXIT))
    assert only(asked, FetchResults) == [FetchResults(site="hpc", key=KEY, outcome=EXIT)]
    assert pair.edge.job.state is Origin.RESULTS_PENDING
    assert pair.hpc.attempt().state is Target.ENDED
    assert len(only(pair.edge.due(10.0), FetchResults)) == 1  # it was cut: go on
    done = pair.edge.run(lambda: pair.edge.engine.follower.fetched(pair.edge.store, KEY, pair.edge.now()))
    assert messages(done, Release) == [Release(key=KEY)]
    assert (pair.edge.job.state, pair.edge.job.outcome) == (Origin.DONE, EXIT)
    pair.carry(pair.edge, done)
    assert pair.hpc.attempt().state is Target.RELEASED
    assert pair.edge.store.due_commands(1e12, 9) == []


def test_without_any_output_it_is_done_at_once(pair: Pair) -> None:
    pair.running()
    pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=replace(EXIT, stdout_size=0)))
    assert pair.edge.job.state is Origin.DONE


def test_inputs_are_pushed_until_the_target_has_them(pair: Pair) -> None:
    pair.edge.submit(replace(SPEC, inputs=(Input(path=b"in", size=0, sha256=b""),)))
    assert len(only(pair.carry(pair.edge, pair.edge.due()), PushInputs)) == 1
    assert pair.edge.job.state is Origin.ACCEPTED
    assert len(only(pair.edge.due(10.0), PushInputs)) == 1
    pair.carry(pair.hpc, pair.hpc.backend("inputs_here", KEY))
    assert only(pair.edge.due(1000.0), PushInputs) == []


def test_what_is_older_than_what_it_knows_changes_nothing(pair: Pair) -> None:
    pair.running()
    before = pair.edge.job
    pair.edge.hears("hpc", told(KEY, Target.PENDING, revision=1))
    pair.edge.hears("hpc", told(KEY, Target.ENDED, revision=1, outcome=EXIT))
    assert pair.edge.job == before


def test_another_site_has_no_say(pair: Pair) -> None:
    pair.running()
    cancel = pair.edge.asked("cancel")
    for site in ("cloud", "mallory"):
        pair.edge.hears(site, told(KEY, Target.ENDED, outcome=EXIT))
    assert pair.edge.job.state is Origin.STOPPING
    assert len(pair.edge.store.commands_of(KEY)) == len(cancel) == 1


def test_after_a_gap_it_asks_from_where_it_is(pair: Pair) -> None:
    pair.pending()
    known = pair.edge.store.followed("hpc")
    assert known is not None
    record = Record(key=KEY, revision=known.cursor + 9, state=Target.RUNNING)
    gap = Changes(journal=known.journal, after=known.cursor + 5, upto=known.cursor + 9, records=(record,))
    assert messages(pair.edge.hears("hpc", gap), Follow) == [Follow(journal=known.journal, after=known.cursor)]
    assert pair.edge.job.state is Origin.ACCEPTED


def test_a_target_with_a_new_journal_is_asked_again_about_all_it_may_have(pair: Pair) -> None:
    pair.running()
    pair.hpc.new_journal(UUID(int=77))
    pair.hpc.restart()
    pair.carry(pair.edge, pair.edge.due(10.0))
    assert pair.edge.job.state is Origin.UNKNOWN
    pair.carry(pair.edge, pair.edge.due(0.0))
    pair.hpc.due(1.0)
    pair.carry(pair.hpc, pair.hpc.sees(Sight.RUNNING, started_at=5.0))
    assert (pair.edge.job.state, pair.edge.job.attempt) == (Origin.RUNNING, 1)


def new_journal(pair: Pair, number: int = 77) -> None:
    """Hpc loses its journal, and edge hears of it."""
    pair.hpc.new_journal(UUID(int=number))
    pair.hpc.restart()
    pair.carry(pair.edge, pair.edge.due(FOLLOW_S))


def over(pair: Pair, outcome: Outcome = EXIT) -> None:
    pair.running()
    pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=outcome))
    assert pair.edge.job.state is Origin.RESULTS_PENDING


def asked_for_its_output(pair: Pair) -> None:
    """Edge, by hpc's new journal, which looks for it."""
    over(pair)
    new_journal(pair)
    effects = pair.edge.due(ANSWER_S)
    assert messages(effects, Submit) == [Submit(key=KEY, pool="gpu", spec=SPEC, again=True, over=True)]
    assert only(effects, FetchResults) == []
    assert only(pair.carry(pair.edge, effects), Look) == [Look(pool="gpu", keys=(KEY,))]
    assert pair.edge.job.why == "hpc has lost its journal: asked again"


def test_what_is_over_is_asked_for_again_when_its_target_has_lost_its_journal(pair: Pair) -> None:
    asked_for_its_output(pair)
    found = pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=EXIT))
    assert only(found, FetchResults) == [FetchResults(site="hpc", key=KEY, outcome=EXIT)]
    assert pair.hpc.attempt().user == "a_smith"
    assert messages(pair.edge.due(ANSWER_S), Submit) == []  # from now on it is fetched, as ever
    done = pair.edge.run(lambda: pair.edge.engine.follower.fetched(pair.edge.store, KEY, pair.edge.now()))
    pair.carry(pair.edge, done)
    assert (pair.edge.job.state, pair.edge.job.outcome) == (Origin.DONE, EXIT)
    assert pair.hpc.attempt().state is Target.RELEASED


@pytest.mark.parametrize(
    "left",
    [None, replace(EXIT, stdout_size=8), Outcome(end=End.LOST, started_at=5.0)],
    ids=["nothing", "part of it", "no record of its exit"],
)
def test_output_that_went_with_the_journal_of_its_target_is_given_up_and_how_it_ended_is_not(
    pair: Pair, left: Outcome | None
) -> None:
    asked_for_its_output(pair)
    if left is not None:
        pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=left))
    else:
        pair.hpc.sees(Sight.ABSENT)
        pair.carry(pair.hpc, pair.hpc.sees(Sight.ABSENT))
        pair.carry(pair.hpc, pair.hpc.backend("fenced", KEY, True))
    assert (pair.edge.job.state, pair.edge.job.outcome) == (Origin.DONE, EXIT)
    assert pair.edge.job.why.startswith("its output is gone: hpc has lost its journal")
    assert pair.hpc.attempt().state is Target.RELEASED
    assert pair.edge.store.due_commands(1e12, 9) == []
    assert [room.free_jobs for room in pair.edge.engine.sites["hpc"].rooms.values()] == [5]  # that pool was not full


def test_a_target_that_can_t_look_for_what_is_over_now_is_asked_until_it_can(pair: Pair) -> None:
    over(pair)
    pair.hpc.may_accept = False
    new_journal(pair)
    for _ in range(3):
        pair.carry(pair.edge, pair.edge.due(1000.0))
        assert pair.edge.job.why == "hpc can't take it now: its journal is short of room"
    pair.hpc.may_accept = True
    pair.carry(pair.edge, pair.edge.due(1000.0))
    assert pair.hpc.attempt().state is Target.SUBMITTING


def test_the_output_of_a_job_that_was_cancelled_while_its_target_lost_its_journal_is_fetched(pair: Pair) -> None:
    """The target hears of the cancel first, and does not know whose job that is."""
    pair.running()
    new_journal(pair)
    pair.carry(pair.edge, pair.edge.asked("cancel"))
    killed = replace(EXIT, end=End.SIGNALED, signal=15, exit_code=None)
    assert only(pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=killed)), FetchResults) == []
    asked = pair.edge.due()
    assert [one.over for one in messages(asked, Submit)] == [True]
    outcome = replace(killed, end=End.CANCELLED)
    fetches = only(pair.carry(pair.edge, asked), FetchResults)
    assert fetches == [FetchResults(site="hpc", key=KEY, outcome=outcome)]
    assert (pair.hpc.attempt().user, pair.edge.job.outcome) == ("a_smith", outcome)


def test_what_can_t_be_fetched_is_given_up_by_whoever_may_cancel_it_and_by_no_cancel(pair: Pair) -> None:
    with pytest.raises(Refused, match="no job"):
        pair.edge.asked("give_up")
    pair.running()
    with pytest.raises(Refused, match="the job is running: no output of it waits"):
        pair.edge.asked("give_up")
    pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=EXIT))
    with pytest.raises(Refused, match="is over: exited") as refused:
        pair.edge.asked("cancel")
    assert refused.value.hint == "its output is still at hpc: fed cancel --give-up ends it without that"
    assert messages(pair.edge.asked("give_up"), Release) == [Release(key=KEY)]
    assert (pair.edge.job.state, pair.edge.job.outcome) == (Origin.DONE, EXIT)
    assert pair.edge.job.why == "what was not fetched of its output was given up; it was at hpc"
    assert pair.edge.run(lambda: pair.edge.engine.follower.fetched(pair.edge.store, KEY, pair.edge.now())) == []
    with pytest.raises(Refused, match="is done"):
        pair.edge.asked("give_up")
    pair.carry(pair.edge, pair.edge.due(10.0))
    assert pair.hpc.attempt().state is Target.RELEASED


@pytest.mark.parametrize("asked", ["", "cancel", "requeue"])
def test_a_job_at_a_site_that_is_gone_is_given_up_by_an_admin_and_ended_if_that_comes_back(
    pair: Pair, asked: str
) -> None:
    pair.running()
    pair.edge.link("hpc", up=False)
    if asked:
        pair.edge.asked(asked)

    def give_up(*, by_admin: bool) -> list[Effect]:
        edge = pair.edge
        return edge.run(lambda: edge.engine.origin.give_up(edge.store, TOKEN, edge.now(), by_admin=by_admin))

    with pytest.raises(Refused, match="hpc can't be reached, and may run it") as refused:
        give_up(by_admin=False)
    assert refused.value.hint == "an admin may give it up"
    give_up(by_admin=True)
    assert (pair.edge.job.state, pair.edge.job.outcome and pair.edge.job.outcome.end) == (Origin.DONE, End.LOST)
    assert pair.edge.job.why == "hpc is given up: it may run there"

    pair.edge.link("hpc")
    assert [one.key for one in only(pair.carry(pair.edge, pair.edge.due(10.0)), Fence)] == [KEY]
    pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=EXIT))
    pair.carry(pair.edge, pair.edge.due(10.0))
    assert pair.hpc.attempt().state is Target.RELEASED
    assert pair.edge.store.commands_of(KEY) == []
    assert (pair.edge.job.state, pair.edge.job.attempt) == (Origin.DONE, 1)


def test_an_admin_gives_up_no_job_at_a_site_that_can_be_reached(pair: Pair) -> None:
    pair.running()
    with pytest.raises(Refused, match="the job is running"):
        pair.edge.run(lambda: pair.edge.engine.origin.give_up(pair.edge.store, TOKEN, pair.edge.now(), by_admin=True))


def test_one_new_journal_a_minute_is_looked_into_whatever_a_site_says(pair: Pair) -> None:
    pair.running()
    edge = pair.edge
    written = []
    for number in range(1000):
        before = edge.store.changes()
        effects = edge.hears("hpc", Changes(journal=UUID(int=number + 100), after=0, upto=0, records=()))
        written.append(edge.store.changes() - before)
        assert effects == ([Dropped(what="new journal of hpc")] if number else [])
    assert written[0] > 0
    assert written[1:] == [0] * 999


def test_a_journal_that_is_lost_twice_in_a_minute_is_believed_in_a_minute_later(pair: Pair) -> None:
    pair.running()
    new_journal(pair, 77)
    new_journal(pair, 78)
    known = pair.edge.store.followed("hpc")
    assert known is not None
    assert known.journal == UUID(int=77)
    passed = 0.0
    while passed < JOURNAL_S:
        passed += FOLLOW_S
        pair.carry(pair.edge, pair.edge.due(FOLLOW_S))
        pair.hpc.due()
    known = pair.edge.store.followed("hpc")
    assert known is not None
    assert known.journal == UUID(int=78)
    pair.carry(pair.edge, pair.edge.due(1000.0))
    pair.carry(pair.hpc, pair.hpc.sees(Sight.RUNNING, started_at=5.0))
    assert (pair.edge.job.state, pair.edge.job.attempt) == (Origin.RUNNING, 1)


@pytest.mark.parametrize(("on_silence", "state"), [("keep", Origin.DONE), ("replace", Origin.QUEUED)])
def test_a_lost_attempt_ends_the_job_or_is_replaced_by_lease(pair: Pair, on_silence: str, state: Origin) -> None:
    pair.running(replace(SPEC, lease=Lease(on_silence=OnSilence(on_silence), after_s=1e9)))
    lost = Outcome(end=End.LOST)
    pair.edge.hears("hpc", told(KEY, Target.ENDED, outcome=lost))
    assert pair.edge.job.state is state
    assert [one.kind for one in pair.edge.store.commands_of(KEY)] == ["release"]


# -- cancel, requeue, signal


def test_a_job_that_waits_here_is_cancelled_at_once(pair: Pair) -> None:
    pair.edge.submit()
    assert pair.edge.asked("cancel") == []
    assert pair.edge.job.outcome == Outcome(end=End.CANCELLED, ended_at=pair.edge.time)
    with pytest.raises(Refused, match="is over: cancelled"):
        pair.edge.asked("cancel")


def test_a_cancel_is_said_again_after_a_restart_until_it_is_confirmed(pair: Pair) -> None:
    pair.running()
    pair.edge.link("hpc", up=False)
    pair.edge.asked("cancel")
    pair.edge.restart()
    assert messages(pair.edge.due(1000.0), Cancel) == []
    pair.edge.link("hpc")
    for _ in range(3):
        assert messages(pair.edge.due(1000.0), Cancel) == [Cancel(key=KEY, pool="gpu")]
    assert pair.edge.asked("cancel") == []
    pair.edge.hears("hpc", told(KEY, Target.ENDED, outcome=Outcome(end=End.CANCELLED)))
    assert (pair.edge.job.state, pair.edge.store.commands_of(KEY)[0].kind) == (Origin.DONE, "release")


def test_a_cancel_loses_to_an_end_that_came_first(pair: Pair) -> None:
    pair.running()
    pair.hpc.sees(Sight.EXITED, outcome=EXIT)
    pair.carry(pair.edge, pair.edge.asked("cancel"))
    assert pair.edge.job.outcome == EXIT


def test_a_requeue_waits_for_the_end_of_the_attempt_before_the_next(pair: Pair) -> None:
    pair.running()
    pair.carry(pair.edge, pair.edge.asked("requeue"))
    assert (pair.edge.job.state, pair.edge.job.attempt) == (Origin.REQUEUING, 1)
    killed = Outcome(end=End.SIGNALED, signal=15, started_at=5.0)
    pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=killed))
    assert (pair.edge.job.state, pair.edge.job.attempt) == (Origin.QUEUED, 2)
    assert pair.hpc.attempt().state is Target.RELEASED
    pair.carry(pair.edge, pair.edge.due())
    assert pair.edge.job.key == Key(TOKEN, 2)
    late = pair.hpc.hears("edge", Cancel(key=KEY, pool="gpu"))
    assert messages(late, Told)[0].record.key == KEY
    assert pair.hpc.attempt(Key(TOKEN, 2)).state is Target.READY


def test_signals_reach_a_running_attempt_once_and_in_their_order(pair: Pair) -> None:
    with pytest.raises(Refused, match="no job"):
        pair.edge.asked("signal", 10)
    pair.running()
    first = Signal(key=KEY, number=1, signal=10)
    assert messages(pair.edge.asked("signal", 10), Signal) == [first]  # it is lost
    assert pair.edge.asked("signal", 12) == []
    again = pair.edge.due(1000.0)
    assert messages(again, Signal) == [first]
    found = only(pair.carry(pair.edge, again), Deliver)
    assert [(one.number, one.signal) for one in found] == [(1, 10), (2, 12)]
    assert messages(pair.edge.due(1000.0), Signal) == []
    assert pair.edge.store.commands_of(KEY) == []


def delivered(pair: Pair, number: int) -> list[Effect]:
    """At hpc, which tells of it."""
    hpc = pair.hpc
    return pair.carry(hpc, hpc.run(lambda: hpc.engine.target.delivered(hpc.store, KEY, number)))


def test_what_lets_a_job_go_on_is_said_until_it_is_delivered_and_what_comes_after_it_waits(pair: Pair) -> None:
    pair.running()
    first = Deliver(pool="gpu", key=KEY, number=1, signal=CONT)
    assert pair.carry(pair.edge, pair.edge.asked("signal", CONT)) == [first]  # its backend does not answer
    assert pair.edge.asked("signal", 10) == []
    for _ in range(3):
        pair.hpc.restart()
        pair.carry(pair.edge, [Send(site="hpc", message=Follow(journal=None, after=0))])
        assert only(pair.carry(pair.edge, pair.edge.due(1000.0)), Deliver) == [first]
    assert only(delivered(pair, 1), Deliver) == [Deliver(pool="gpu", key=KEY, number=2, signal=10)]
    assert pair.edge.store.commands_of(KEY) == []


def test_the_newest_word_on_whether_a_job_goes_on_takes_the_place_of_those_before(pair: Pair) -> None:
    pair.running()
    assert len(pair.edge.asked("signal", TSTP)) == 1
    assert pair.edge.asked("signal", STOP) == []  # TSTP is to be delivered first
    assert pair.edge.asked("signal", 10) == []
    for _ in range(100):
        pair.edge.asked("signal", TSTP)
        pair.edge.asked("signal", STOP)
        pair.edge.asked("signal", CONT)
    assert sorted((one.number, one.value) for one in pair.edge.store.commands_of(KEY)) == [(3, 10), (303, CONT)]
    found = only(pair.carry(pair.edge, pair.edge.due(1000.0)), Deliver)
    assert [(one.number, one.signal) for one in found] == [(3, 10), (303, CONT)]
    assert [one.number for one in pair.edge.store.commands_of(KEY)] == [303]
    delivered(pair, 303)
    assert pair.edge.store.commands_of(KEY) == []


def test_a_resume_does_not_wait_for_a_suspend_that_was_not_delivered(pair: Pair) -> None:
    pair.running()
    pair.edge.asked("signal", STOP)
    assert messages(pair.edge.asked("signal", CONT), Signal) == [Signal(key=KEY, number=2, signal=CONT)]


def test_no_more_than_so_many_signals_wait_for_one_attempt(pair: Pair) -> None:
    pair.running()
    for _ in range(MOST_SIGNALS):
        pair.edge.asked("signal", 10)
    with pytest.raises(Unavailable, match="64 signals wait"):
        pair.edge.asked("signal", 10)
    assert len(pair.edge.store.commands_of(KEY)) == MOST_SIGNALS
    pair.edge.asked("signal", CONT)  # a bound on those is that each takes the place of the others


def test_signals_of_an_attempt_that_is_over_are_owed_no_more(pair: Pair) -> None:
    pair.running()
    pair.edge.asked("signal", STOP)
    pair.edge.asked("signal", 10)
    pair.carry(pair.hpc, pair.hpc.sees(Sight.EXITED, outcome=replace(EXIT, stdout_size=0)))
    assert [one.kind for one in pair.edge.store.commands_of(KEY)] == []
    assert messages(pair.edge.due(1000.0), Signal) == []


def test_a_change_that_changes_nothing_here_is_not_written_and_is_heard_again_after_a_restart(pair: Pair) -> None:
    pair.running()
    edge, journal = pair.edge, pair.hpc.store.journal
    at = edge.run(lambda: edge.store.followed("hpc"))
    assert at is not None
    stale = Record(key=KEY, revision=at.cursor + 1, state=Target.RUNNING)
    changes = Changes(journal=journal, after=at.cursor, upto=at.cursor + 1, records=(stale,))
    before = edge.store.changes()
    assert edge.hears("hpc", changes) == []
    assert edge.store.changes() == before
    following = Changes(journal=journal, after=at.cursor + 1, upto=at.cursor + 2, records=())
    assert edge.hears("hpc", following) == []  # what was before it was heard
    edge.store.roll_back()  # nothing is left in memory
    asked = messages(edge.hears("hpc", replace(following, after=at.cursor + 2, upto=at.cursor + 3)), Follow)
    assert [one.after for one in asked] == [at.cursor]
