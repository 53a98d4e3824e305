"""What a target does with attempts that other sites send it."""

from dataclasses import replace
from uuid import UUID

import pytest

import federation.engine.doubts
from federation.engine.attempts import ASK_S, FIRST_POLL_S, FIRST_RETRY_S, MOST_POLL_S
from federation.engine.doubts import MOST_DOUBTED, REFUSED_S
from federation.engine.effects import Deliver, Effect, Fence, Forget, HandOver, Look
from federation.engine.silences import HEARD_S
from federation.engine.target import TOMBSTONE_S
from federation.model.messages import CONT, STATES, Busy, Cancel, Changes, Follow, Release, Signal, Submit, Told
from federation.model.spec import Input, Lease, OnSilence
from federation.model.states import End, Outcome, Target
from federation.model.token import Key
from federation.ports import Sight
from tests.unit.federation.engine.bench import EXIT, GUEST, KEY, SPEC, Site, messages, only

SUBMIT = Submit(key=KEY, pool="gpu", spec=SPEC)
OTHER = Key(UUID(int=9), 1)
CANCEL = Cancel(key=KEY, pool="gpu")
INPUT = Input(path=b"x", size=0, sha256=b"")
KILLED = Outcome(end=End.SIGNALED, signal=15, started_at=5.0, ended_at=6.0)


@pytest.fixture
def hpc() -> Site:
    return Site("hpc", ("edge", "cloud"))


def pending(hpc: Site, submit: Submit = SUBMIT) -> None:
    hpc.hears("edge", submit)
    hpc.due()
    hpc.backend("handed_over", submit.key, "77")


def running(hpc: Site, submit: Submit = SUBMIT) -> None:
    pending(hpc, submit)
    hpc.sees(Sight.RUNNING, submit.key, started_at=5.0)


# -- letting in


def test_the_same_submit_twice_is_one_attempt(hpc: Site) -> None:
    hpc.hears("edge", SUBMIT)
    assert messages(hpc.hears("edge", SUBMIT), Told)[0].record.state is Target.READY
    assert hpc.due() == [HandOver(pool="gpu", key=KEY, spec=SPEC, user="a_smith")]
    assert hpc.due() == []


def test_a_refusal_is_durable_so_that_a_late_copy_does_not_run(hpc: Site) -> None:
    for number in range(3):
        hpc.hears("edge", replace(SUBMIT, key=Key(UUID(int=10 + number), 1)))
    refused = messages(hpc.hears("edge", SUBMIT), Told)[0].record
    assert (refused.state, refused.outcome and refused.outcome.end) == (Target.RELEASED, End.NO_ROOM)
    for number in range(3):
        hpc.backend("fenced", Key(UUID(int=10 + number), 1), True)
        hpc.hears("edge", Cancel(key=Key(UUID(int=10 + number), 1), pool="gpu"))
        hpc.backend("fenced", Key(UUID(int=10 + number), 1), True)
    assert messages(hpc.hears("edge", SUBMIT), Told)[0].record == refused
    assert only(hpc.due(1000.0), HandOver) == []


def test_a_site_that_drains_lets_no_peer_s_job_in_and_goes_on_with_what_it_has(hpc: Site) -> None:
    running(hpc)
    hpc.run(lambda: hpc.store.drain(True))
    hpc.restart()
    refused = messages(hpc.hears("edge", replace(SUBMIT, key=OTHER)), Told)[0].record
    assert refused.outcome == Outcome(end=End.NO_ROOM, reason="its site is draining")
    assert messages(hpc.hears("edge", SUBMIT), Told)[0].record.state is Target.RUNNING
    lost = replace(SUBMIT, key=Key(UUID(int=10), 1), again=True)  # a journal that is lost may have let it in
    assert only(hpc.hears("edge", lost), Look) == [Look(pool="gpu", keys=(lost.key,))]
    hpc.run(lambda: hpc.store.drain(False))
    later = replace(SUBMIT, key=Key(UUID(int=11), 1))
    assert messages(hpc.hears("edge", later), Told)[0].record.state is Target.READY


def full(hpc: Site) -> None:
    for number in range(3):
        hpc.hears("edge", replace(SUBMIT, key=Key(UUID(int=10 + number), 1)))


def test_what_was_sent_before_may_run_here_though_there_is_no_room_and_no_record_of_it(hpc: Site) -> None:
    full(hpc)
    effects = hpc.hears("edge", replace(SUBMIT, again=True))
    assert only(effects, Look) == [Look(pool="gpu", keys=(KEY,))]
    assert messages(effects, Told)[0].record.state is Target.SUBMITTING
    assert messages(hpc.sees(Sight.RUNNING, KEY, started_at=5.0), Told)[0].record.state is Target.RUNNING


def test_what_was_sent_before_and_is_not_here_is_refused_once_it_can_never_run(hpc: Site) -> None:
    full(hpc)
    hpc.hears("edge", replace(SUBMIT, again=True))
    assert only(hpc.sees(Sight.ABSENT, KEY), Fence) == []
    assert only(hpc.sees(Sight.ABSENT, KEY), Fence) == [Fence(pool="gpu", key=KEY)]
    over = messages(hpc.backend("fenced", KEY, True), Told)[0].record
    assert (over.state, over.outcome and over.outcome.end) == (Target.ENDED, End.NO_ROOM)


def test_an_origin_can_t_bring_more_by_saying_that_it_was_sent_before(hpc: Site) -> None:
    guest = replace(GUEST, most_jobs=4)
    hpc.engine.target.house = replace(hpc.engine.target.house, pools={"gpu": 2}, guests={"edge": guest, "cloud": GUEST})
    large = replace(SPEC, script=b"x" * 1000, env=((b"x", b"y"),), args=(b"x",), outputs=(b"out",))
    answers = []
    for number in range(300):
        key = Key(UUID(int=10 + number), 1)
        answers += hpc.hears("edge", Submit(key=key, pool="gpu", spec=large, again=True))
    assert hpc.store.attempts() == {("gpu", "edge"): 4 + MOST_DOUBTED}
    assert len(messages(answers, Busy)) == 300 - 4 - MOST_DOUBTED
    kept = hpc.store.attempt_spec(Key(UUID(int=20), 1))
    assert kept == replace(large, script=b"", env=(), args=())
    assert hpc.hears("edge", CANCEL) == []  # neither by taking back what never was
    hpc.hears("cloud", replace(SUBMIT, key=Key(UUID(int=2), 1), again=True))
    assert hpc.store.attempts()["gpu", "cloud"] == 1
    for number in range(2, 300):
        hpc.backend("fenced", Key(UUID(int=10 + number), 1), True)
        for _ in range(2):
            hpc.sees(Sight.ABSENT, Key(UUID(int=10 + number), 1))
        hpc.backend("fenced", Key(UUID(int=10 + number), 1), True)
    assert hpc.store.attempts()["gpu", "edge"] == 2
    assert only(hpc.hears("edge", CANCEL), Fence) == [Fence(pool="gpu", key=KEY)]


@pytest.mark.parametrize("user", ["ann", "stranger"])
def test_without_room_in_the_journal_nothing_is_looked_for_either(hpc: Site, user: str) -> None:
    full(hpc)
    hpc.may_accept = False
    effects = hpc.hears("edge", replace(SUBMIT, spec=replace(SPEC, user=user), again=True))
    assert [one.key for one in messages(effects, Busy)] == [KEY]
    assert hpc.store.attempt(KEY) is None


def test_what_was_sent_before_by_a_user_who_is_nobody_any_more_is_ended(hpc: Site) -> None:
    stranger = replace(SUBMIT, spec=replace(SPEC, user="stranger"), again=True)
    assert only(hpc.hears("edge", stranger), Fence) == [Fence(pool="gpu", key=KEY)]
    over = messages(hpc.backend("fenced", KEY, True), Told)[0].record
    assert (over.state, over.outcome and over.outcome.end) == (Target.ENDED, End.REFUSED)


OVER = replace(SUBMIT, again=True, over=True)


def test_what_is_over_is_looked_for_and_its_output_kept_though_there_is_no_record_of_it(hpc: Site) -> None:
    spec = replace(SPEC, script=b"x", env=((b"x", b"y"),), outputs=(b"out",), inputs=(INPUT,))
    assert only(hpc.hears("edge", replace(OVER, spec=spec)), Look) == [Look(pool="gpu", keys=(KEY,))]
    found = messages(hpc.sees(Sight.EXITED, outcome=EXIT), Told)[0].record
    assert (found.state, found.outcome) == (Target.ENDED, EXIT)
    assert (hpc.attempt().user, hpc.store.attempt_spec(KEY)) == ("a_smith", replace(SPEC, outputs=(b"out",)))


def test_what_is_over_never_runs_again_though_nothing_is_left_of_it(hpc: Site) -> None:
    effects = [*hpc.hears("edge", OVER), *hpc.due(1000.0)]
    for _ in range(2):
        effects += hpc.sees(Sight.ABSENT)
    assert Fence(pool="gpu", key=KEY) in effects
    effects += [*hpc.backend("fenced", KEY, True), *hpc.due(1000.0)]
    assert only(effects, HandOver) == []
    outcome = hpc.attempt().outcome
    assert outcome is not None
    assert (hpc.attempt().state, outcome.end, outcome.started_at) == (Target.ENDED, End.NO_ROOM, None)


@pytest.mark.parametrize("ended_first", [True, False])
def test_what_was_known_by_its_cancel_alone_is_told_whose_it_is(hpc: Site, ended_first: bool) -> None:
    """Its output could not be given back: nobody knows whose files those are."""
    hpc.hears("edge", CANCEL)
    hpc.backend("fenced", KEY, False)
    if ended_first:
        hpc.sees(Sight.EXITED, outcome=EXIT)
    assert hpc.attempt().user == ""
    before = hpc.attempt().revision
    assert messages(hpc.hears("edge", replace(OVER, spec=replace(SPEC, user="stranger"))), Told)[0].record.key == KEY
    assert (hpc.attempt().user, hpc.attempt().revision) == ("", before)
    hpc.hears("edge", replace(OVER, spec=replace(SPEC, outputs=(b"out",))))
    if not ended_first:
        hpc.sees(Sight.EXITED, outcome=EXIT)
    attempt = hpc.attempt()
    assert (attempt.user, attempt.state, attempt.outcome) == ("a_smith", Target.ENDED, EXIT)
    assert attempt.revision > before
    assert hpc.store.attempt_spec(KEY) == replace(SPEC, outputs=(b"out",))
    assert hpc.store.attempts()["gpu", "edge"] == 0


def test_what_is_over_and_known_is_said_anew(hpc: Site) -> None:
    running(hpc)
    hpc.sees(Sight.EXITED, outcome=EXIT)
    revision = hpc.attempt().revision
    assert messages(hpc.hears("edge", OVER), Told)[0].record.revision > revision


def test_what_an_older_journal_kept_from_starting_was_never_let_in(hpc: Site) -> None:
    pending(hpc)
    over = messages(hpc.sees(Sight.FENCED, KEY), Told)[0].record
    assert (over.state, over.outcome and over.outcome.end) == (Target.ENDED, End.NO_ROOM)


def test_without_room_in_the_journal_nothing_new_comes_in_and_what_is_known_is_told(hpc: Site) -> None:
    hpc.hears("edge", SUBMIT)
    hpc.may_accept = False
    other = replace(SUBMIT, key=Key(UUID(int=2), 1))
    assert messages(hpc.hears("edge", other), Busy)[0].key == other.key
    assert len(messages(hpc.hears("edge", SUBMIT), Told)) == 1


def test_it_waits_for_its_inputs(hpc: Site) -> None:
    hpc.hears("edge", replace(SUBMIT, spec=replace(SPEC, inputs=(INPUT,))))
    assert hpc.due(1000.0) == []
    hpc.backend("inputs_here", KEY)
    assert len(only(hpc.due(), HandOver)) == 1


def test_a_site_hears_of_its_own_attempts_only(hpc: Site) -> None:
    running(hpc)
    for message in (SUBMIT, CANCEL, Signal(key=KEY, number=1, signal=9), Release(key=KEY)):
        assert hpc.hears("cloud", message) == []
    assert hpc.attempt().origin == "edge"
    assert messages(hpc.hears("cloud", Follow(journal=None, after=0)), Changes)[0].records == ()
    assert (hpc.attempt().state, hpc.attempt().signals) == (Target.RUNNING, 0)


# -- the backend


def test_an_ambiguous_answer_is_looked_into_before_anything_else(hpc: Site) -> None:
    hpc.hears("edge", SUBMIT)
    hpc.due()
    hpc.backend("unanswered", KEY)
    assert hpc.due(ASK_S) == [Look(pool="gpu", keys=(KEY,))]
    hpc.sees(Sight.PENDING, handle="77")
    assert (hpc.attempt().state, hpc.attempt().handle) == (Target.PENDING, "77")


def test_after_a_restart_the_backend_is_asked_before_anything_is_handed_over_again(hpc: Site) -> None:
    hpc.hears("edge", SUBMIT)
    hpc.due()
    hpc.restart()
    assert hpc.due() == [Look(pool="gpu", keys=(KEY,))]


def test_what_the_backend_forgot_before_it_started_is_handed_over_again_after_two_looks(hpc: Site) -> None:
    pending(hpc)
    hpc.sees(Sight.ABSENT)
    assert hpc.attempt().state is Target.PENDING
    hpc.sees(Sight.PENDING)
    hpc.sees(Sight.ABSENT)
    assert hpc.attempt().state is Target.PENDING  # they have to agree in a row
    hpc.sees(Sight.ABSENT)
    assert hpc.attempt().state is Target.READY
    assert len(only(hpc.due(10.0), HandOver)) == 1


def test_what_its_backend_ends_each_time_it_begins_to_start_it_is_handed_over_three_times_and_no_more(
    hpc: Site,
) -> None:
    hpc.hears("edge", SUBMIT)
    for handle in ("77", "78", "79"):
        assert len(only(hpc.due(100.0), HandOver)) == 1
        hpc.restart()
        hpc.backend("handed_over", KEY, handle)
        effects = [*hpc.sees(Sight.ABSENT, handle=handle), *hpc.sees(Sight.ABSENT, handle=handle)]
    assert only(effects, Fence) == [Fence(pool="gpu", key=KEY)]
    over = messages(hpc.backend("fenced", KEY, True), Told)[0].record
    assert over.outcome is not None
    assert (over.state, over.outcome.end, over.outcome.started_at) == (Target.ENDED, End.NODE_FAIL, None)
    assert "gpu ended it 3 times before it began" in over.outcome.reason
    assert only(hpc.due(1000.0), HandOver) == []


def test_what_its_backend_forgets_without_having_begun_it_is_handed_over_each_time(hpc: Site) -> None:
    hpc.hears("edge", SUBMIT)
    for _ in range(5):
        assert len(only(hpc.due(1000.0), HandOver)) == 1
        hpc.backend("handed_over", KEY, "77")
        effects = [*hpc.sees(Sight.ABSENT), *hpc.sees(Sight.ABSENT)]
    assert only(effects, Fence) == []


def test_what_was_looked_at_often_before_it_was_forgotten_waits_no_longer_for_that(hpc: Site) -> None:
    """Long in a queue, or asked about after many restarts: neither is a hand-over in vain."""
    pending(hpc)
    for _ in range(20):
        hpc.due(MOST_POLL_S)
        hpc.sees(Sight.PENDING)
    for _ in range(2):
        hpc.sees(Sight.ABSENT)
    assert len(only(hpc.due(FIRST_RETRY_S), HandOver)) == 1


def test_what_had_started_and_is_gone_is_lost_after_two_looks_and_never_handed_over_again(hpc: Site) -> None:
    running(hpc)
    hpc.sees(Sight.GONE)
    assert hpc.attempt().state is Target.RUNNING
    hpc.sees(Sight.ABSENT)
    assert hpc.attempt().outcome == Outcome(
        end=End.LOST, started_at=5.0, ended_at=hpc.time, reason="it left no exit record"
    )
    assert hpc.due(1000.0) == []


def test_a_look_that_shows_nothing_of_it_changes_nothing(hpc: Site) -> None:
    running(hpc)
    before = hpc.attempt()
    for _ in range(20):
        hpc.backend("looked", {})
    assert hpc.attempt() == before
    assert hpc.due(FIRST_POLL_S) == [Look(pool="gpu", keys=(KEY,))]


def test_what_runs_long_is_looked_at_less_often(hpc: Site) -> None:
    running(hpc)
    waits = []
    for _ in range(8):
        waits.append((hpc.attempt().due_at or 0.0) - hpc.time)
        hpc.due(waits[-1])
    assert (waits[0], waits[-1]) == (FIRST_POLL_S, MOST_POLL_S)
    assert waits == sorted(waits)


def test_a_backend_that_is_away_is_tried_again_later_and_later(hpc: Site) -> None:
    hpc.hears("edge", SUBMIT)
    waits = []
    for _ in range(12):
        hpc.due()
        hpc.backend("not_handed_over", KEY, "no answer")
        assert only(hpc.due(), HandOver) == []
        waits.append((hpc.attempt().due_at or 0.0) - hpc.time)
        hpc.time += waits[-1]
    assert waits[:3] == [1.0, 2.0, 4.0]
    assert waits[-1] == 300.0


def test_what_the_backend_refuses_for_good_never_ran(hpc: Site) -> None:
    hpc.hears("edge", SUBMIT)
    hpc.due()
    hpc.backend("rejected", KEY, "invalid qos")
    assert hpc.attempt().outcome == Outcome(end=End.REFUSED, ended_at=hpc.time, reason="invalid qos")


@pytest.mark.parametrize("answer", ["", "not_handed_over", "no_room"])
def test_what_a_pool_that_is_no_more_never_got_is_refused_at_once(hpc: Site, answer: str) -> None:
    hpc.hears("edge", SUBMIT)
    if answer:
        hpc.due()
        hpc.backend(answer, KEY, "down")
        hpc.time += 1000.0
    hpc.engine.target.house = replace(hpc.engine.target.house, pools={"cpu": 3})
    hpc.due()
    refused = hpc.attempt().outcome
    assert refused is not None
    assert (refused.end, refused.reason) == (End.REFUSED, "pool gpu is no more")


def forgotten_by_a_pool_that_is_no_more(hpc: Site) -> None:
    """Its backend may have had it, and two looks did not find it; then it had no room."""
    hpc.hears("edge", SUBMIT)
    hpc.due()
    hpc.backend("unanswered", KEY)
    hpc.sees(Sight.ABSENT)
    hpc.sees(Sight.ABSENT)
    hpc.due(10.0)
    hpc.backend("no_room", KEY, "full")
    assert hpc.attempt().state is Target.READY
    hpc.engine.target.house = replace(hpc.engine.target.house, pools={"cpu": 3})
    effects = hpc.due(10.0)
    assert (only(effects, Look), only(effects, HandOver)) == ([Look(pool="gpu", keys=(KEY,))], [])


def test_what_a_pool_that_is_no_more_once_had_is_refused_when_it_can_never_run(hpc: Site) -> None:
    forgotten_by_a_pool_that_is_no_more(hpc)
    assert hpc.sees(Sight.ABSENT) == []
    assert only(hpc.sees(Sight.ABSENT), Fence) == [Fence(pool="gpu", key=KEY)]
    assert hpc.attempt().state is Target.STOPPING
    hpc.backend("fenced", KEY, True)
    refused = hpc.attempt().outcome
    assert refused is not None
    assert (refused.end, refused.reason) == (End.REFUSED, "pool gpu is no more")


def test_what_a_pool_that_is_no_more_started_after_all_goes_on(hpc: Site) -> None:
    forgotten_by_a_pool_that_is_no_more(hpc)
    hpc.sees(Sight.RUNNING, started_at=5.0)
    hpc.sees(Sight.EXITED, outcome=EXIT)
    assert hpc.attempt().outcome == EXIT


# -- cancel, lease, signal, release


def test_a_cancel_that_comes_first_keeps_the_attempt_from_ever_running(hpc: Site) -> None:
    assert only(hpc.hears("edge", CANCEL), Fence) == [Fence(pool="gpu", key=KEY)]
    hpc.hears("edge", SUBMIT)
    hpc.backend("fenced", KEY, True)
    fenced = hpc.attempt()
    assert fenced.outcome is not None
    assert (fenced.state, fenced.outcome.end) == (Target.ENDED, End.CANCELLED)
    assert messages(hpc.hears("edge", SUBMIT), Told)[0].record.state is Target.ENDED
    assert only(hpc.due(1000.0), HandOver) == []


def test_a_cancel_of_what_waits_for_its_inputs_is_decided_at_the_claim_as_an_older_journal_may_have_begun_it(
    hpc: Site,
) -> None:
    hpc.hears("edge", replace(SUBMIT, spec=replace(SPEC, inputs=(INPUT,)), again=True))
    assert hpc.attempt().state is Target.STAGING
    assert only(hpc.hears("edge", CANCEL), Fence) == [Fence(pool="gpu", key=KEY)]
    hpc.backend("fenced", KEY, False)
    assert Fence(pool="gpu", key=KEY) in hpc.due(400.0)
    hpc.sees(Sight.EXITED, outcome=KILLED)
    assert hpc.attempt().outcome == replace(KILLED, end=End.CANCELLED)


def test_a_cancel_is_decided_at_the_claim_and_tried_until_it_is_over(hpc: Site) -> None:
    running(hpc)
    assert only(hpc.hears("edge", CANCEL), Fence) == [Fence(pool="gpu", key=KEY)]
    hpc.backend("fenced", KEY, False)
    for _ in range(3):
        assert Fence(pool="gpu", key=KEY) in hpc.due(400.0)
        hpc.sees(Sight.RUNNING)
        assert hpc.attempt().state is Target.STOPPING
    hpc.sees(Sight.EXITED, outcome=KILLED)
    assert hpc.attempt().outcome == replace(KILLED, end=End.CANCELLED)


def test_a_job_that_ended_by_itself_while_it_was_being_stopped_tells_its_own_exit(hpc: Site) -> None:
    running(hpc)
    hpc.hears("edge", CANCEL)
    hpc.sees(Sight.EXITED, outcome=EXIT)
    assert hpc.attempt().outcome == EXIT


@pytest.mark.parametrize("on_silence", list(OnSilence))
def test_a_lease_is_measured_from_the_last_word_of_its_origin(hpc: Site, on_silence: OnSilence) -> None:
    running(hpc, replace(SUBMIT, spec=replace(SPEC, lease=Lease(on_silence=on_silence, after_s=100.0))))
    hpc.due(90.0)
    hpc.hears("edge", Follow(journal=None, after=0))
    hpc.due(90.0)
    assert hpc.attempt().state is Target.RUNNING
    hpc.due(11.0)
    if on_silence is OnSilence.KEEP:
        assert hpc.attempt().state is Target.RUNNING
        return
    hpc.sees(Sight.EXITED, outcome=KILLED)
    assert hpc.attempt().outcome == replace(KILLED, end=End.LEASE)


@pytest.mark.parametrize("down_s", [0.0, 200.0])
def test_a_restart_begins_no_lease_anew(hpc: Site, down_s: float) -> None:
    running(hpc, replace(SUBMIT, spec=replace(SPEC, lease=Lease(on_silence=OnSilence.STOP, after_s=100.0))))
    hpc.due(HEARD_S)
    hpc.hears("edge", Follow(journal=None, after=0))
    hpc.due(80.0)
    hpc.time += down_s
    hpc.restart()
    hpc.due(10.0)
    assert hpc.attempt().state is (Target.STOPPING if down_s else Target.RUNNING)
    hpc.restart()
    hpc.due(11.0)
    assert hpc.attempt().state is Target.STOPPING


def test_when_an_origin_was_heard_is_written_down_only_for_a_lease_and_not_each_time(hpc: Site) -> None:
    running(hpc)
    hpc.due(1000.0)
    assert hpc.store.heard() == {}
    began = hpc.time
    hpc.hears(
        "edge", replace(SUBMIT, key=OTHER, spec=replace(SPEC, lease=Lease(on_silence=OnSilence.STOP, after_s=1e9)))
    )
    for _ in range(8):
        hpc.due(3.0)
        assert hpc.store.heard()["edge"] in (began, began + 12.0, began + 24.0)
        hpc.hears("edge", Follow(journal=None, after=0))


def test_a_signal_is_delivered_once_and_never_to_another_attempt(hpc: Site) -> None:
    running(hpc)
    signal = Signal(key=KEY, number=1, signal=10)
    assert only(hpc.hears("edge", signal), Deliver) == [Deliver(pool="gpu", key=KEY, number=1, signal=10)]
    assert only(hpc.hears("edge", signal), Deliver) == []
    assert hpc.hears("edge", replace(signal, key=replace(KEY, attempt=2))) == []


def delivered(hpc: Site, number: int) -> list[Effect]:
    return hpc.run(lambda: hpc.engine.target.delivered(hpc.store, KEY, number))


@pytest.mark.parametrize("state", sorted(STATES))
def test_what_stops_a_job_or_lets_it_go_on_counts_once_it_is_delivered_also_over_a_restart(
    hpc: Site, state: int
) -> None:
    running(hpc)
    signal = Signal(key=KEY, number=2, signal=state)
    for _ in range(3):
        assert hpc.hears("edge", signal) == [Deliver(pool="gpu", key=KEY, number=2, signal=state)]
        assert hpc.attempt().signals == 0
        hpc.restart()
    assert messages(delivered(hpc, 2), Told)[0].record.signals == 2
    assert only(hpc.hears("edge", signal), Deliver) == []
    assert only(hpc.hears("edge", replace(signal, number=1)), Deliver) == []  # late
    assert delivered(hpc, 1) == []
    assert hpc.attempt().signals == 2


def test_what_lets_a_job_go_on_waits_until_a_new_journal_knows_that_it_runs(hpc: Site) -> None:
    pending(hpc)
    signal = Signal(key=KEY, number=5, signal=CONT)
    assert only(hpc.hears("edge", signal), Deliver) == []
    assert hpc.attempt().signals == 0
    hpc.sees(Sight.RUNNING, KEY, started_at=5.0)
    assert only(hpc.hears("edge", signal), Deliver) == [Deliver(pool="gpu", key=KEY, number=5, signal=CONT)]
    hpc.sees(Sight.EXITED, outcome=EXIT)
    assert delivered(hpc, 5) == []


def test_output_is_kept_until_it_is_released_and_the_attempt_remembered_longer(hpc: Site) -> None:
    running(hpc)
    assert only(hpc.hears("edge", Release(key=KEY)), Forget) == []  # not while it runs
    hpc.sees(Sight.EXITED, outcome=EXIT)
    hpc.time += 10 * TOMBSTONE_S
    assert hpc.run(lambda: hpc.engine.forget(hpc.store, hpc.now())) == 0
    assert only(hpc.hears("edge", Release(key=KEY)), Forget) == [Forget(pool="gpu", key=KEY)]
    assert hpc.store.attempt_spec(KEY) is None
    hpc.time += 2 * TOMBSTONE_S
    assert hpc.run(lambda: hpc.engine.forget(hpc.store, hpc.now())) == 0  # its output is not dropped yet
    assert only(hpc.due(), Forget) == [Forget(pool="gpu", key=KEY)]
    hpc.run(lambda: hpc.engine.target.forgotten(hpc.store, KEY))
    assert hpc.due(1000.0) == []
    hpc.time -= 1000.0 + TOMBSTONE_S + 1
    assert hpc.run(lambda: hpc.engine.forget(hpc.store, hpc.now())) == 0
    hpc.time += 2
    assert hpc.run(lambda: hpc.engine.forget(hpc.store, hpc.now())) == 1
    again = messages(hpc.hears("edge", Release(key=KEY)), Told)
    assert again[0].record.state is Target.RELEASED


def refuse(hpc: Site, first: int, number: int) -> list[Effect]:
    said: list[Effect] = []
    for one in range(first, first + number):
        said += hpc.hears("edge", replace(SUBMIT, key=Key(UUID(int=one), 1), spec=replace(SPEC, user="eve")))
    return said


def test_a_peer_s_refused_jobs_fill_no_journal(hpc: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation.engine.doubts, "MOST_REFUSED", 3)
    assert [one.record.state for one in messages(refuse(hpc, 100, 3), Told)] == [Target.RELEASED] * 3
    more = refuse(hpc, 103, 2)
    assert [one.why for one in messages(more, Busy)] == ["too many jobs were refused today"] * 2
    assert hpc.store.attempt(Key(UUID(int=103), 1)) is None
    assert messages(refuse(hpc, 100, 1), Told)[0].record.state is Target.RELEASED  # this one is known
    pending(hpc)  # what is let in is counted by other rules
    hpc.time += REFUSED_S
    assert len(messages(refuse(hpc, 105, 1), Told)) == 1


def test_what_was_refused_is_forgotten_after_a_day_and_what_ran_is_not(hpc: Site) -> None:
    running(hpc)
    hpc.sees(Sight.EXITED, outcome=EXIT)
    hpc.hears("edge", Release(key=KEY))
    hpc.run(lambda: hpc.engine.target.forgotten(hpc.store, KEY))
    refuse(hpc, 100, 3)
    for passed_s, forgotten in ((REFUSED_S - 1.0, 0), (2.0, 3), (REFUSED_S, 0)):
        hpc.time += passed_s
        assert hpc.run(lambda: hpc.engine.forget(hpc.store, hpc.now())) == forgotten


def test_cancels_of_what_is_not_known_make_no_more_than_so_many_claims_a_day(
    hpc: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation.engine.doubts, "MOST_DOUBTED", 2)
    hpc.engine.target.house = replace(hpc.engine.target.house, guests={"edge": replace(GUEST, most_jobs=0)})
    for number in range(4):
        key = Key(UUID(int=10 + number), 1)
        claims = [Fence(pool="gpu", key=key)] if number < 2 else []
        assert only(hpc.hears("edge", Cancel(key=key, pool="gpu")), Fence) == claims
        hpc.backend("fenced", key, True)  # none of them waits
    hpc.time += REFUSED_S
    assert only(hpc.hears("edge", Cancel(key=key, pool="gpu")), Fence) == [Fence(pool="gpu", key=key)]


# -- following


def test_who_follows_hears_each_change_once_and_from_any_revision_again(hpc: Site) -> None:
    first = messages(hpc.hears("edge", Follow(journal=None, after=0)), Changes)[0]
    assert (first.after, first.upto, first.records) == (0, 0, ())
    pushed = messages(hpc.hears("edge", SUBMIT), Changes)[0]
    assert (pushed.after, pushed.upto, [one.state for one in pushed.records]) == (0, 1, [Target.READY])
    hpc.due()
    assert messages(hpc.backend("handed_over", KEY, "7"), Changes)[0].after == 1
    again = messages(hpc.hears("edge", Follow(journal=hpc.store.journal, after=0)), Changes)[0]
    assert [one.state for one in again.records] == [Target.PENDING]
    other = messages(hpc.hears("edge", Follow(journal=UUID(int=5), after=99)), Changes)[0]
    assert (other.after, len(other.records)) == (0, 1)
