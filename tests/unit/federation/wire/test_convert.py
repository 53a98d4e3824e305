"""Every message comes out of the wire as it went in, byte for byte; what no site may send is refused."""

from contextlib import suppress
from typing import cast, get_args
from uuid import UUID

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import Refused
from federation.model import messages as m
from federation.model.spec import Array, Batch, Input, JobSpec, Lease, OnSilence
from federation.model.states import End, Outcome, Target
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.wire.convert import MAX_CATALOGUE, MAX_RECORDS, MOST_MONEY, from_wire, key_from_wire, to_wire
from federation.wire.hello import FEATURES, MOST_SUBMITS, NEWEST, OLDEST, agree, hello

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
BYTES = st.binary(max_size=8)
SMALL = st.integers(0, 2**32 - 1)
LARGE = st.integers(0, 2**63 - 1)
TIMES = st.none() | st.floats(allow_nan=False, allow_infinity=False)
SECONDS = st.floats(0, 1e12)
AMOUNTS = st.floats(0, MOST_MONEY)
UUIDS = st.uuids()
KEYS = st.builds(Key, UUIDS, st.integers(1, 1 << 20))
ARRAYS = st.builds(
    Array, job_id=LARGE, task_id=SMALL, count=SMALL, lowest=SMALL, highest=SMALL, step=st.integers(1, 2**32 - 1)
)
BATCHES = st.builds(
    Batch,
    job_id=LARGE,
    array=st.none() | ARRAYS,
    joined=st.booleans(),
    umask=st.integers(0, 0o777),
    limits=st.lists(st.tuples(TEXT, st.integers(-1, 2**62)), max_size=2).map(tuple),
    warning=TEXT,
    folder=BYTES,
    stdin=BYTES,
)
SPECS = st.builds(
    JobSpec,
    user=TEXT,
    account=TEXT,
    name=BYTES,
    script=BYTES,
    args=st.tuples(BYTES),
    env=st.lists(st.tuples(BYTES, BYTES), max_size=3).map(tuple),
    gres=TEXT,
    cpus=SMALL,
    memory_mib=LARGE,
    time_limit_s=LARGE,
    pin=TEXT,
    deadline_at=TIMES,
    inputs=st.lists(st.builds(Input, path=BYTES, size=LARGE, sha256=BYTES), max_size=2).map(tuple),
    outputs=st.lists(BYTES, max_size=2).map(tuple),
    lease=st.builds(Lease, on_silence=st.sampled_from(OnSilence), after_s=SECONDS),
    batch=st.none() | BATCHES,
)
OUTCOMES = st.builds(
    Outcome,
    end=st.sampled_from(End),
    exit_code=st.none() | SMALL,
    signal=st.none() | SMALL,
    started_at=TIMES,
    ended_at=TIMES,
    stdout_size=LARGE,
    stderr_size=LARGE,
    reason=TEXT,
    node=st.text("n1.-", max_size=64),
    cpu_s=st.none() | st.floats(0, MOST_MONEY),
    memory_mib=st.none() | LARGE,
    slices=st.text("MIG-1,", max_size=400),
)
RECORDS = st.builds(
    m.Record,
    key=KEYS,
    revision=LARGE,
    state=st.sampled_from(Target),
    outcome=st.none() | OUTCOMES,
    started_at=TIMES,
    signals=SMALL,
    why=TEXT,
)
ROOMS = st.builds(
    m.Room,
    pool=TEXT,
    catalogue=TEXT,
    slices=st.dictionaries(TEXT, SMALL, max_size=3).map(lambda x: tuple(sorted(x.items()))),
    free_jobs=SMALL,
    free_cpus=SMALL,
    starts_in_s=AMOUNTS,
    price_per_hour=AMOUNTS,
    gpu_price_per_hour=AMOUNTS,
    why=TEXT,
    longest_s=SMALL,
    most_cpus=SMALL,
    most_memory_mib=LARGE,
    complete=st.booleans(),
    batch=st.booleans(),
)
MESSAGES: dict[type, st.SearchStrategy[m.Message]] = {
    m.Submit: st.builds(m.Submit, key=KEYS, pool=TEXT, spec=SPECS),
    m.Cancel: st.builds(m.Cancel, key=KEYS, pool=TEXT),
    m.Signal: st.builds(m.Signal, key=KEYS, number=SMALL, signal=SMALL),
    m.Release: st.builds(m.Release, key=KEYS),
    m.Follow: st.builds(m.Follow, journal=st.none() | UUIDS, after=LARGE),
    m.Told: st.builds(m.Told, journal=UUIDS, record=RECORDS),
    m.Busy: st.builds(m.Busy, key=KEYS, why=TEXT),
    m.Changes: st.builds(
        m.Changes, journal=UUIDS, after=LARGE, upto=LARGE, records=st.lists(RECORDS, max_size=3).map(tuple)
    ),
    m.Rooms: st.builds(m.Rooms, pools=st.lists(ROOMS, max_size=3).map(tuple)),
}


@pytest.mark.parametrize("kind", get_args(m.Message))
@given(data=st.data())
def test_every_message_there_and_back(kind: type, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    assert from_wire(pb.Envelope.FromString(to_wire(message).SerializeToString())) == message


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_message_or_refused(data: bytes) -> None:
    with suppress(ValueError, DecodeError):
        from_wire(pb.Envelope.FromString(data))


KEY = pb.Key(token=bytes(16), attempt=1)


@pytest.mark.parametrize(
    "envelope",
    [
        pb.Envelope(cancel=pb.Cancel(key=pb.Key(token=bytes(15), attempt=1))),
        pb.Envelope(cancel=pb.Cancel(key=pb.Key(token=bytes(16), attempt=0))),
        pb.Envelope(cancel=pb.Cancel()),
        pb.Envelope(submit=pb.Submit(key=KEY, spec=pb.Spec(on_silence=cast("pb.OnSilence.ValueType", 9)))),
        pb.Envelope(submit=pb.Submit(key=KEY, spec=pb.Spec(lease_s=float("nan")))),
        pb.Envelope(submit=pb.Submit(key=KEY, spec=pb.Spec(deadline_at=float("inf")))),
        pb.Envelope(submit=pb.Submit(key=KEY, spec=pb.Spec(user="x" * 5000))),
        pb.Envelope(rooms=pb.Rooms(pools=[pb.Room(pool="x", price_per_hour=float("nan"))])),
        pb.Envelope(rooms=pb.Rooms(pools=[pb.Room(pool="x", catalogue="x" * (MAX_CATALOGUE + 1))])),
        pb.Envelope(follow=pb.Follow(journal=b"short")),
        pb.Envelope(follow=pb.Follow(after=2**63)),
        pb.Envelope(changes=pb.Changes(journal=bytes(16), records=[pb.Record(key=KEY)] * (MAX_RECORDS + 1))),
    ],
)
def test_what_no_site_may_send(envelope: pb.Envelope) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_wire(envelope)


@pytest.mark.parametrize("said", ["sbatch: \udc80", "é" * 9000])
def test_what_a_backend_said_is_told_whatever_it_is(said: str) -> None:
    outcome = Outcome(end=End.LOST, reason=said)
    record = m.Record(key=Key(UUID(int=1), 1), revision=1, state=Target.ENDED, outcome=outcome, why=said)
    told: list[m.Message] = [
        m.Changes(journal=UUID(int=2), after=0, upto=1, records=(record,)),
        m.Busy(key=record.key, why=said),
        m.Rooms(pools=(m.Room(pool="x", free_jobs=0, free_cpus=0, why=said),)),
    ]
    for message in told:
        assert from_wire(pb.Envelope.FromString(to_wire(message).SerializeToString())) is not None


def test_sums_of_what_another_site_asks_for_stay_numbers() -> None:
    room = pb.Room(pool="x", starts_in_s=1e308, price_per_hour=1e308, gpu_price_per_hour=-1.0)
    told = from_wire(pb.Envelope(rooms=pb.Rooms(pools=[room])))
    assert isinstance(told, m.Rooms)
    (found,) = told.pools
    assert (found.starts_in_s, found.price_per_hour, found.gpu_price_per_hour) == (MOST_MONEY, MOST_MONEY, 0.0)


def test_what_a_newer_site_made_up_is_never_an_end() -> None:
    record = pb.Record(key=KEY, state=cast("pb.State.ValueType", 77))
    told = from_wire(pb.Envelope(told=pb.Told(journal=bytes(16), record=record)))
    assert isinstance(told, m.Told)
    assert told.record.state is Target.SUBMITTING
    assert from_wire(pb.Envelope()) is None
    assert from_wire(pb.Envelope(hello=pb.Hello())) is None


def test_an_end_that_is_not_known_here_is_shown() -> None:
    record = pb.Record(key=KEY, state=pb.STATE_ENDED, outcome=pb.Outcome(end="deadline", reason="too late"))
    told = from_wire(pb.Envelope(told=pb.Told(journal=bytes(16), record=record)))
    assert isinstance(told, m.Told)
    assert told.record.outcome == Outcome(end=End.LOST, reason="deadline: too late")


def test_keys_are_those_of_the_model() -> None:
    assert key_from_wire(KEY) == Key(UUID(int=0), 1)


def test_two_of_one_version_agree() -> None:
    agreed = agree(hello("edge", "0.1"))
    assert (agreed.version, agreed.features) == (NEWEST, FEATURES)


def test_a_newer_peer_that_still_speaks_ours_is_met_there() -> None:
    theirs = pb.Hello(
        oldest_version=OLDEST, newest_version=NEWEST + 5, features=["signals", "holograms"], submits=2**31
    )
    agreed = agree(theirs)
    assert (agreed.version, agreed.features, agreed.submits) == (NEWEST, frozenset({"signals"}), MOST_SUBMITS)


@pytest.mark.parametrize(
    ("oldest", "newest", "hint"), [(NEWEST + 1, NEWEST + 2, "we are too old"), (0, OLDEST - 1, "they are too old")]
)
def test_without_a_common_version_both_are_told(oldest: int, newest: int, hint: str) -> None:
    with pytest.raises(Refused, match="no common version") as raised:
        agree(pb.Hello(oldest_version=oldest, newest_version=newest))
    assert hint in raised.value.hint
