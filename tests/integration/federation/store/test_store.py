"""What is saved comes back as it was; what is due, counted, owed and forgotten is the right thing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from federation.model.job import Attempt, Job
from federation.model.spec import Input, JobSpec, Lease, OnSilence
from federation.model.states import End, Origin, Outcome, Target
from federation.model.token import Key
from federation.store.store import LATEST_S, Command, Followed, Kind, Store
from tests.integration.federation.store.rig import job, opened

ALL_BYTES = bytes(range(256))
SPEC = JobSpec(
    user="ann",
    account="lab",
    name=ALL_BYTES,
    script=b"#!/bin/sh\r\n\x00" + ALL_BYTES,
    args=(b"", ALL_BYTES),
    env=((b"A,B", b"1\n2"), (b"\xff", b"=")),
    gres="vgpu:20gb",
    cpus=3,
    memory_mib=5,
    time_limit_s=7,
    pin="hpc/gpu",
    deadline_at=1.5,
    inputs=(Input(path=b"a b\n", size=0, sha256=bytes(32)),),
    outputs=(b"out/*",),
    lease=Lease(on_silence=OnSilence.STOP, after_s=9.0),
)
OUTCOME = Outcome(end=End.EXITED, exit_code=255, started_at=1.0, ended_at=2.0, stdout_size=3, reason='"é\n')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fed.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with reopened(path) as one, one.transaction():
        yield one


@contextmanager
def reopened(path: Path) -> Iterator[Store]:
    one = opened(path)
    yield one
    one.close()


def written(path: Path, call: Callable[[Store], object]) -> None:
    """By a store that is no more: nothing comes from its memory."""
    with reopened(path) as one, one.transaction():
        call(one)


def attempt(number: int, state: Target = Target.READY, **facts: Any) -> Attempt:
    return Attempt(key=Key(UUID(int=number), 1), origin="edge", pool="gpu", state=state, **facts)


def test_a_job_and_its_spec_come_back_byte_for_byte(path: Path) -> None:
    one = Job(
        token=UUID(int=5),
        state=Origin.RESULTS_PENDING,
        attempt=3,
        site="hpc",
        pool="gpu",
        user="ann",
        account="lab",
        name=ALL_BYTES,
        lease=SPEC.lease,
        accepted_at=1.25,
        due_at=2.5,
        tries=4,
        revision=6,
        far=Target.ENDED,
        signals=2,
        cost=1.5,
        cost_day=20000,
        avoid=(("a/b", "no such QOS"),),
        reasons=(("a/b", "no"), ("c/d", "yes")),
        why="why",
        started_at=3.0,
        ended_at=4.0,
        outcome=OUTCOME,
    )
    written(path, lambda store: store.add_job(one, SPEC))
    with reopened(path) as store:
        assert (store.job(one.token), store.spec(one.token)) == (one, SPEC)
        assert store.jobs_between(one.token, one.token, 2) == [one]
        assert store.job(UUID(int=6)) is None


def test_an_attempt_and_its_spec_come_back_byte_for_byte(path: Path) -> None:
    one = replace(
        attempt(1), user="ann", lease_s=5.0, due_at=1.0, tries=1, misses=1, handle="7", signals=3, input_bytes=9
    )
    one = replace(one, started_at=2.0, ended_at=3.0, outcome=OUTCOME, stopped_for=End.LEASE)
    written(path, lambda store: store.add_attempt(one, SPEC))
    with reopened(path) as store:
        assert (store.attempt(one.key), store.attempt_spec(one.key)) == (replace(one, revision=1), SPEC)


def test_each_change_that_is_told_has_its_revision(store: Store) -> None:
    saved = store.add_attempt(attempt(1), SPEC)
    assert saved.revision == 1
    later = store.save_attempt(replace(saved, state=Target.RUNNING), was=saved, told=True)
    assert later.revision == 2
    assert store.save_attempt(later, was=later, told=False).revision == 2
    assert [one.key for one in store.attempts_since("edge", 1, 10)] == [later.key]
    assert store.attempts_since("edge", 2, 10) == store.attempts_since("cloud", 0, 10) == []


def test_what_is_due_comes_in_its_order_and_in_portions(store: Store) -> None:
    for number, due_at in enumerate((30.0, 10.0, 20.0, 99.0, None)):
        store.add_job(replace(job(number), due_at=due_at), SPEC)
    assert [one.token.int for one in store.due_jobs(50.0, 10)] == [1, 2, 0]
    assert [one.token.int for one in store.due_jobs(50.0, 2)] == [1, 2]


def test_after_the_calendar_was_set_back_nothing_waits_for_the_time_that_was(store: Store) -> None:
    store.add_job(replace(job(1), due_at=5000.0), SPEC)
    assert store.due_jobs(5000.0 - LATEST_S, 10) == []
    assert len(store.due_jobs(4999.0 - LATEST_S, 10)) == 1


def test_open_records_are_counted_also_after_something_was_undone(store: Store) -> None:
    one = job(1)
    store.add_job(one, SPEC)
    store.save_attempt(attempt(1), was=None, told=True)
    with suppress(ZeroDivisionError), store.part():
        store.add_job(job(2), SPEC)
        store.save_attempt(attempt(2), was=None, told=True)
        raise ZeroDivisionError
    assert +store.jobs() == {(Origin.QUEUED, "", ""): 1}
    assert +store.attempts() == {("gpu", "edge"): 1}
    store.save_job(replace(one, state=Origin.DONE), was=one)
    store.save_attempt(attempt(1, Target.ENDED), was=attempt(1), told=True)
    assert not +store.jobs()
    assert not +store.attempts()


def test_a_revision_is_never_given_twice_whatever_is_undone_or_opened_anew(path: Path) -> None:
    with reopened(path) as store:
        with store.transaction():
            assert store.save_attempt(attempt(1), was=None, told=True).revision == 1
            with suppress(ZeroDivisionError), store.part():
                assert store.save_attempt(attempt(2), was=None, told=True).revision == 2
                raise ZeroDivisionError
            assert store.save_attempt(attempt(3), was=None, told=True).revision == 2
        with suppress(ZeroDivisionError), store.transaction():
            store.save_attempt(attempt(4), was=None, told=True)
            raise ZeroDivisionError
        assert store.save_attempt(attempt(5), was=None, told=True).revision == 3
    with reopened(path) as store, store.transaction():
        assert store.save_attempt(attempt(6), was=None, told=True).revision == 4
        assert [one.key.token.int for one in store.attempts_since("edge", 0, 10)] == [1, 3, 5, 6]


def test_what_is_remembered_of_a_record_is_what_the_journal_has(path: Path) -> None:
    one, other = replace(job(1), due_at=90.0), attempt(1, Target.PENDING, due_at=90.0, misses=1)
    with reopened(path) as store:
        with store.transaction():
            store.add_job(one, SPEC)
            store.add_attempt(other, SPEC)
        with suppress(ZeroDivisionError), store.transaction():
            store.save_job(replace(one, why="undone"), was=one)
            store.save_attempt(replace(other, handle="undone"), was=other, told=False)
            raise ZeroDivisionError
        assert store.job(one.token) == one
        assert store.attempt(other.key) == replace(other, revision=1)
        with store.transaction():
            store.wake_queued(50.0, 10)
            store.wake_attempts(50.0)
        assert store.due_jobs(50.0, 10) == [replace(one, due_at=50.0)]
        assert store.due_attempts(50.0, 10) == [replace(other, due_at=50.0, misses=0, revision=1)]
        with store.transaction():
            store.save_job(replace(one, state=Origin.DONE, ended_at=1.0), was=one)
            store.forget_done(2.0, 10, 10)
        assert store.job(one.token) is None
        with suppress(ZeroDivisionError), store.transaction():
            store.add_job(replace(one, token=UUID(int=2)), SPEC)
            raise ZeroDivisionError
        assert (store.job(UUID(int=2)), store.spec(UUID(int=2))) == (None, None)


def test_a_cursor_that_is_not_lasting_is_gone_with_whatever_is_undone_or_ends(path: Path) -> None:
    lasting = Followed(site="hpc", journal=UUID(int=3), cursor=5)
    further = replace(lasting, cursor=9)
    with reopened(path) as store:
        with store.transaction():
            store.save_followed(lasting)
            store.save_followed(further, lasting=False)
        assert store.followed("hpc") == further
        with store.transaction(), suppress(ZeroDivisionError), store.part():
            raise ZeroDivisionError
        assert store.followed("hpc") == lasting
        with store.transaction():
            store.save_followed(further, lasting=False)
    with reopened(path) as store:
        assert store.followed("hpc") == lasting


def test_commands_stay_until_they_are_confirmed(store: Store) -> None:
    key = Key(UUID(int=1), 2)
    one = Command(key=key, kind=Kind.SIGNAL, site="hpc", pool="gpu", number=1, value=10, due_at=5.0)
    for command in (one, replace(one, number=2), replace(one, kind=Kind.CANCEL, number=0)):
        store.save_command(command)
    store.save_command(replace(one, due_at=7.0, tries=3))
    assert store.due_commands(6.0, 10) == [replace(one, kind=Kind.CANCEL, number=0), replace(one, number=2)]
    store.drop_command(key, Kind.SIGNAL, 1)
    assert [command.number for command in store.commands_of(key)] == [0, 2]


def test_what_was_spent_is_of_one_account_and_day(store: Store) -> None:
    for number, (account, day, cost) in enumerate([("a", 1, 2.0), ("a", 1, 3.0), ("a", 2, 5.0), ("b", 1, 7.0)]):
        store.add_job(replace(job(number), account=account, cost_day=day, cost=cost), SPEC)
    assert (store.spent("a", 1), store.spent("b", 1), store.spent("c", 1)) == (5.0, 7.0, 0.0)


def charge_and_fail(store: Store) -> None:
    with store.part():
        store.charge("a", 1, 1.0)
        raise ZeroDivisionError


def test_a_sum_that_is_kept_in_memory_is_that_of_the_journal(store: Store) -> None:
    one = replace(job(1), account="a", cost_day=1, cost=2.0)
    assert store.spent("a", 1) == 0.0
    store.add_job(one, SPEC)
    store.charge("a", 1, 4.0)
    store.charge("a", 1, 0.5)
    store.save_job(replace(one, cost=1.0, cost_day=2), was=one)
    store.save_job(replace(one, cost=1.5), was=replace(one, cost=1.0, cost_day=2))
    kept = (store.spent("a", 1), store.spent("a", 2))
    with pytest.raises(ZeroDivisionError), store.part():
        store.charge("a", 1, 100.0 / 0)
    assert kept == (store.spent("a", 1), store.spent("a", 2)) == (6.0, 0.0)
    store.forget_charges(2)
    with pytest.raises(ZeroDivisionError):
        charge_and_fail(store)
    assert store.spent("a", 1) == 1.5


def test_input_is_kept_until_its_attempt_is_released(store: Store) -> None:
    assert store.held_bytes("edge") == 0
    one = store.add_attempt(attempt(1, input_bytes=5), SPEC)
    two = store.add_attempt(attempt(2, input_bytes=7), SPEC)
    store.save_attempt(replace(one, state=Target.ENDED), was=one, told=False)
    store.save_attempt(replace(two, state=Target.RELEASED), was=two, told=False)
    kept = store.held_bytes("edge")
    with pytest.raises(ZeroDivisionError), store.part():
        store.charge("a", 1, 1 / 0)
    assert kept == store.held_bytes("edge") == 5  # in memory and in the journal
    assert store.held_bytes("cloud") == 0


def test_finished_jobs_are_forgotten_by_age_and_number_but_not_while_something_is_owed(store: Store) -> None:
    for number in range(10):
        store.add_job(job(number, Origin.DONE, ended_at=float(number)), SPEC)
    key = Key(UUID(int=0), 1)
    store.save_command(Command(key=key, kind=Kind.RELEASE, site="hpc", pool="gpu", due_at=0.0))
    assert store.forget_done(before=3.0, keep=100, most=100) == 2
    assert store.forget_done(before=0.0, keep=4, most=2) == 2
    assert [number for number in range(10) if store.job(UUID(int=number))] == [0, 5, 6, 7, 8, 9]
    store.drop_command(key, Kind.RELEASE)
    assert store.forget_done(before=0.0, keep=4, most=100) == 2


def test_only_released_attempts_are_forgotten(store: Store) -> None:
    for number, state in enumerate((Target.RELEASED, Target.ENDED, Target.RUNNING)):
        store.save_attempt(attempt(number, state, ended_at=1.0), was=None, told=True)
    assert store.forget_released(2.0, 2.0, 10) == 1
    assert [store.attempt(Key(UUID(int=number), 1)) is None for number in range(3)] == [True, False, False]
