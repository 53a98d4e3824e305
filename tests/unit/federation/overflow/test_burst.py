"""How the ends of a job that runs elsewhere are told apart: every row of the table, and every case that has none."""

import signal as signals
from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest

from federation.model.states import End, Outcome
from federation.overflow.burst import (
    LATE_S,
    LOOKS,
    SOON_S,
    WAITING,
    Burst,
    Claim,
    Ending,
    Ends,
    Heard,
    Phase,
    SlurmJob,
    Way,
    begins_at,
    claim,
    ending,
    ends_at,
    left_behind,
    longest,
    put_off,
    reattached,
    same_job,
    same_run,
    shrunk,
    stopping,
    to_pin,
    to_suspend,
    verdict,
    without_proxy,
)

JOB = SlurmJob(
    job_id=12,
    uid=1000,
    state="RUNNING",
    partitions=("cloud",),
    nodes=("cloud-aws-1",),
    restarts=1,
    submitted_at=100,
    started_at=110,
    limit_s=3600,
)
BURST = Burst(
    token=UUID(int=7),
    job_id=12,
    uid=1000,
    user="ann",
    submitted_at=100,
    restarts=1,
    started_at=110,
    node="cloud-aws-1",
    pool="aws/gpu",
    limit_s=3600,
)
WAITS = sorted(WAITING)
OVER = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "DEADLINE",
    "NODE_FAIL",
    "BOOT_FAIL",
    "PREEMPTED",
    "OUT_OF_MEMORY",
)
ALIVE = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT", "A_NEW_WORD")
STATES = (*WAITS, *OVER, *ALIVE, "COMPLETING")
TIMES = frozenset({"TIMEOUT", "DEADLINE"})
SIGNALS = ("TERM", "INT", "USR1", "USR2", "HUP", "QUIT", "TSTP", "CONT", "ALRM", "XCPU", "RTMIN")
PLAIN = frozenset({"INT", "USR1", "USR2", "HUP", "QUIT", "ALRM", "XCPU", "RTMIN"})


def expected(signal: str, state: str, reason: str, more: int) -> Ends:
    """The table of `burst`, read row by row. `more`: restarts that Slurm counts beyond the run that heard it."""
    if state in WAITS:
        return Ends.NOTHING  # slurmctld lost this run, or its start
    if state == "COMPLETING" or state in OVER:
        if signal != "TERM":
            return Ends.NOTHING
        if more == 1 and state == "COMPLETING":
            return Ends.REQUEUE
        if more:
            return Ends.NOTHING
        return Ends.TIMEOUT if reason == "TimeLimit" or state in TIMES else Ends.CANCEL
    if more:
        return Ends.NOTHING  # a newer run lives
    if signal == "CONT":
        return Ends.NOTHING if state == "SUSPENDED" else Ends.RESUME
    return Ends.SUSPEND if (signal, state) == ("TSTP", "SUSPENDED") else Ends.SIGNAL


def test_every_signal_in_every_state_means_what_the_table_says() -> None:
    for signal, state, reason, more in product(SIGNALS, STATES, ("None", "TimeLimit"), (-1, 0, 1, 2)):
        job = replace(JOB, state=state, reason=reason, restarts=1 + more)
        heard = Heard(signal=signals.Signals[f"SIG{signal}"], from_stepd=True, restarts=1)
        assert verdict(heard, job, known=True) is expected(signal, state, reason, more), (signal, state, reason, more)


def test_a_signal_of_anybody_elses_means_nothing() -> None:
    for signal, state, known in product(SIGNALS, STATES, (True, False)):
        heard = Heard(signal=signals.Signals[f"SIG{signal}"], from_stepd=False, restarts=1)
        assert verdict(heard, replace(JOB, state=state), known=known) is Ends.NOTHING


@pytest.mark.parametrize("signal", SIGNALS)
def test_without_an_answer_of_slurms_only_a_users_plain_signal_is_one(signal: str) -> None:
    heard = Heard(signal=signals.Signals[f"SIG{signal}"], from_stepd=True, restarts=1)
    assert verdict(heard, None, known=False) is (Ends.SIGNAL if signal in PLAIN else Ends.NOTHING)
    assert verdict(heard, None, known=True) is Ends.NOTHING


def test_without_a_proxy_only_slurms_record_of_an_end_is_one() -> None:
    for state, more, looks in product(STATES, (0, 1), (0, 1, LOOKS)):
        job = replace(JOB, state=state, restarts=1 + more)
        wanted = Ends.NOTHING
        if state in OVER:
            wanted = Ends.TIMEOUT if state in TIMES else Ends.CANCEL
        assert without_proxy(BURST, job, looks) is wanted, (state, more)


def test_a_job_is_forgotten_after_so_many_answers_that_do_not_know_it() -> None:
    told = [without_proxy(BURST, None, looks) for looks in range(1, LOOKS + 2)]
    assert told == [Ends.NOTHING] * (LOOKS - 1) + [Ends.CANCEL] * 2


OTHERS = {
    "of another user": replace(JOB, uid=1001),
    "with fewer restarts": replace(JOB, restarts=0, submitted_at=500),
    "submitted later": replace(JOB, submitted_at=500),
    "submitted before": replace(JOB, submitted_at=50),
    "requeued before": replace(JOB, submitted_at=50, restarts=2),
    "an array's element": replace(JOB, array_id=12, task_id=0),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_an_id_that_is_another_jobs_now_stops_the_first(other: SlurmJob) -> None:
    assert not same_job(BURST, other)
    assert without_proxy(BURST, other, 0) is Ends.CANCEL
    assert claim(BURST, other, other.restarts) is Claim.REUSED
    assert not to_pin(BURST, replace(other, state="PENDING", partitions=("gpu", "cloud")), "cloud")


SAME = {
    "as it was": JOB,
    "requeued after its node was lost": replace(JOB, restarts=2, submitted_at=500, started_at=620),
    "started again, after slurmctld forgot the first start": replace(JOB, started_at=400),
}


@pytest.mark.parametrize("job", SAME.values(), ids=SAME)
def test_a_run_of_the_same_job_reattaches(job: SlurmJob) -> None:
    assert same_job(BURST, job)
    assert claim(BURST, job, job.restarts) is Claim.REATTACH
    now = reattached(replace(BURST, told=99, stdout_base=5), job, "cloud-aws-2")
    assert (now.restarts, now.submitted_at, now.started_at) == (job.restarts, job.submitted_at, job.started_at)
    assert (now.token, now.node, now.told, now.stdout_base) == (BURST.token, "cloud-aws-2", 0, 5)
    assert same_job(now, job)


def test_the_same_proxy_that_says_hello_again_changes_nothing() -> None:
    told = replace(BURST, told=99)
    assert reattached(told, JOB, BURST.node) == told


def test_what_a_proxy_gets() -> None:
    assert claim(None, JOB, 1) is Claim.NEW
    assert claim(None, replace(JOB, state="COMPLETING"), 1) is Claim.ENDED
    assert claim(BURST, replace(JOB, state="COMPLETING"), 1) is Claim.REATTACH
    assert claim(stopping(BURST, "requeued"), replace(JOB, restarts=2, submitted_at=500), 2) is Claim.WAIT
    assert claim(BURST, JOB, 0) is Claim.STALE  # its run was given up
    for state in (*WAITS, *OVER):
        assert claim(BURST, replace(JOB, state=state), 1) is Claim.STALE


def test_a_run_that_comes_to_own_it_is_another() -> None:
    assert same_run(replace(BURST, told=99, phase=Phase.STOPPING), BURST)
    for job in (replace(JOB, restarts=2, submitted_at=500), replace(JOB, started_at=400)):
        assert not same_run(reattached(BURST, job, "cloud-aws-2"), BURST)


def test_what_waits_is_pinned_until_it_is() -> None:
    for state, phase, places in product(STATES, Phase, (("gpu", "vgpu-wait", "cloud"), ("cloud",))):
        job = replace(JOB, state=state, restarts=2, submitted_at=500, partitions=places)
        wanted = state in WAITS and phase is not Phase.CLOSED and places != ("cloud",)
        assert to_pin(replace(BURST, phase=phase), job, "cloud") is wanted


def test_a_run_is_left_behind_once_its_job_waits_or_runs_anew() -> None:
    runs = (JOB, replace(JOB, restarts=2, submitted_at=500), replace(JOB, started_at=400))
    for state, run in product(STATES, runs):
        wanted = state in WAITS or (state in ALIVE and run is not JOB)
        assert left_behind(BURST, replace(run, state=state)) is wanted, (state, run)


def test_what_runs_follows_slurms_suspension() -> None:
    for state, suspended in product(STATES, (True, False)):
        wanted = {("SUSPENDED", False): True, ("RUNNING", True): False}.get((state, suspended))
        assert to_suspend(replace(BURST, suspended=suspended), replace(JOB, state=state)) is wanted


def test_the_time_limit_counts_from_the_start_elsewhere() -> None:
    assert longest(BURST, 86_400) == 90_000
    assert longest(replace(BURST, limit_s=90), 0) == 120  # whole minutes, never less
    assert ends_at(BURST) == 0  # it waits there
    begun = replace(BURST, began_at=1000)
    assert 4600 <= ends_at(begun) <= 4600 + 10
    assert ends_at(replace(begun, started_at=5000, restarts=2)) == ends_at(begun)  # whatever became of the gateway
    unlimited = replace(begun, limit_s=0)
    assert (longest(unlimited, 86_400), ends_at(unlimited)) == (0, 0)


def test_an_end_in_slurm_is_put_off_as_long_as_a_job_may_wait_there() -> None:
    begun, wait_s = replace(BURST, began_at=1_700_000_000), 1000
    end = ends_at(begun)
    assert put_off(begun, end - SOON_S - 1, wait_s) == end
    assert put_off(begun, end - SOON_S, wait_s) == end - SOON_S + LATE_S
    later = replace(begun, told=end + LATE_S)
    assert put_off(later, end, wait_s) == end + LATE_S  # it is told again only when that comes near
    assert put_off(later, end + LATE_S, wait_s) == end + 2 * LATE_S
    assert put_off(later, end + 10 * wait_s, wait_s) == end + wait_s
    assert put_off(replace(begun, told=90_000), end - 3600, wait_s) == end  # its limit while it waited there


def test_a_limit_that_is_over_is_so_whenever_the_run_began() -> None:
    for ran_s in range(0, 600, 7):
        limit_s = shrunk(JOB, JOB.started_at + ran_s)
        assert limit_s % 60 == 0
        assert limit_s == 60 or limit_s <= ran_s


ENDINGS = {
    Outcome(end=End.EXITED, exit_code=0): Ending(way=Way.EXIT, value=0),
    Outcome(end=End.EXITED, exit_code=255): Ending(way=Way.EXIT, value=255),
    Outcome(end=End.SIGNALED, signal=11): Ending(way=Way.SIGNAL, value=11),
    Outcome(end=End.SIGNALED): Ending(way=Way.SIGNAL, value=9),
    Outcome(end=End.TIMEOUT): Ending(way=Way.TIMEOUT, value=124),
    Outcome(end=End.OUT_OF_MEMORY, signal=9): Ending(way=Way.EXIT, value=137),
    Outcome(end=End.NODE_FAIL): Ending(way=Way.REQUEUE, value=1),
    Outcome(end=End.PREEMPTED): Ending(way=Way.REQUEUE, value=1),
    Outcome(end=End.CANCELLED): Ending(way=Way.CANCEL, value=1),
    Outcome(end=End.LEASE): Ending(way=Way.CANCEL, value=1),
    Outcome(end=End.LOST): Ending(way=Way.EXIT, value=1),
    Outcome(end=End.REFUSED): Ending(way=Way.EXIT, value=1),
    Outcome(end=End.NO_ROOM): Ending(way=Way.EXIT, value=1),
}


def test_every_end_elsewhere_is_one_of_slurms() -> None:
    assert {outcome.end for outcome in ENDINGS} == set(End)
    for outcome, wanted in ENDINGS.items():
        assert ending(outcome) == wanted


@pytest.mark.parametrize("kind", [JOB, BURST])
def test_an_arrays_last_element_is_never_named_as_the_array(kind: SlurmJob | Burst) -> None:
    assert kind.name == "12"
    assert replace(kind, array_id=12, task_id=0).name == "12_0"
    assert replace(kind, array_id=12, task_id=-1).name == "12"


@pytest.mark.parametrize(
    ("extra", "acked", "most", "byte"),
    [
        (0, 0, 100, 0),
        (-5, 0, 100, 0),  # there is less than before the job
        (70, 70, 70, 70),
        (90, 70, 100, 90),  # the way back was lost, and what it told with it
        (0, 70, 100, 0),  # emptied: all of it again
        (30, 70, 100, 30),
        (101, 70, 100, 70),  # of others
        (5000, 70, 70, 70),
    ],
)
def test_a_new_proxy_begins_where_its_file_is_unless_others_write_to_it(
    extra: int, acked: int, most: int, byte: int
) -> None:
    assert begins_at(extra, acked, most) == byte
