"""What proxies and the daemon say comes over as it was said, and nothing that anybody can send breaks the daemon."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.overflow.frames import (
    HEAD,
    MOST_FROM_PROXY,
    MOST_HELLO,
    MOST_JOB_ID,
    MOST_NUMBER,
    MOST_TEXT,
    Acknowledged,
    Data,
    Ended,
    FromDaemon,
    FromProxy,
    Hello,
    Limit,
    Ping,
    Refusal,
    Remark,
    Signalled,
    Stream,
    Welcome,
    from_proxy,
    length,
    to_proxy,
)
from tests.unit.federation.overflow.wire import from_daemon, to_daemon

numbers = st.integers(0, MOST_NUMBER)
names = st.binary(min_size=1, max_size=20).filter(lambda one: b"=" not in one)
limits = st.builds(
    Limit, name=st.sampled_from(["NOFILE", "CORE", "AS"]), soft=st.integers(-1, 1 << 40), hard=st.integers(-1, 1 << 40)
)
hellos = st.builds(
    Hello,
    version=numbers,
    job_id=st.integers(1, MOST_JOB_ID),
    array_id=numbers,
    task_id=st.integers(-1, 1 << 30),
    restarts=numbers,
    node=st.from_regex(r"cloud-[a-z]{1,9}-[0-9]{1,4}", fullmatch=True),
    folder=st.binary(max_size=60).map(lambda one: one and b"/" + one),
    stdin=st.binary(max_size=60).map(lambda one: one and b"/" + one),
    umask=st.integers(0, 0o777),
    stdout_size=numbers,
    stderr_size=numbers,
    stdout_next=st.integers(-1, 1 << 40),
    stderr_next=st.integers(-1, 1 << 40),
    joined=st.booleans(),
    regular=st.booleans(),
    script=st.binary(max_size=200),
    args=st.lists(st.binary(max_size=30), max_size=5).map(tuple),
    env=st.lists(st.tuples(names, st.binary(max_size=30)), max_size=5).map(tuple),
    limits=st.lists(limits, max_size=3).map(tuple),
)
said_by_proxy = st.one_of(
    hellos,
    st.builds(Acknowledged, stdout=numbers, stderr=numbers),
    st.builds(Signalled, number=st.integers(1, 64), from_stepd=st.booleans()),
    st.just(Ping()),
)
words = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=["C", "Z"]), min_size=1)
said_by_daemon = st.one_of(
    st.builds(Welcome, stdout=numbers, stderr=numbers),
    st.builds(Data, stream=st.sampled_from(Stream), offset=numbers, data=st.binary(max_size=300)),
    st.builds(Remark, text=words),
    st.builds(Ended, by_signal=st.booleans(), value=st.integers(0, 255)),
    st.builds(Refusal, text=words),
    st.just(Ping()),
)


@given(said_by_proxy)
def test_what_a_proxy_says_comes_over_as_it_was(message: FromProxy) -> None:
    frame = to_daemon(message)
    kind, size = length(frame[: HEAD.size])
    assert size == len(frame) - HEAD.size
    assert from_proxy(kind, frame[HEAD.size :]) == message


@given(said_by_daemon)
def test_what_the_daemon_says_comes_over_as_it_was(message: FromDaemon) -> None:
    frame = to_proxy(message)
    kind, size = HEAD.unpack(frame[: HEAD.size])
    assert size == len(frame) - HEAD.size
    assert from_daemon(kind, frame[HEAD.size :]) == message


@given(st.sampled_from([b"H", b"A", b"S", b"P", b"O", b"W", b"X", b"R", b"M", b"z", b"\0"]), st.binary(max_size=200))
def test_bytes_of_anybody_are_a_message_or_refused(kind: bytes, payload: bytes) -> None:
    for read in (from_proxy, from_daemon):
        try:
            read(kind, payload)
        except ValueError:
            continue


@given(hellos, st.data())
def test_a_hello_that_is_cut_off_is_refused_or_lacks_whole_fields(hello: Hello, data: st.DataObject) -> None:
    payload = to_daemon(hello)[HEAD.size :]
    cut = data.draw(st.integers(0, len(payload) - 1))
    try:
        found = from_proxy(b"H", payload[:cut])
    except ValueError:
        return
    assert isinstance(found, Hello)
    assert found.node == hello.node
    assert found.args == hello.args[: len(found.args)]


def test_fields_and_kinds_of_a_newer_proxy_are_skipped() -> None:
    payload = to_daemon(Hello(job_id=7, node="cloud-1"))[HEAD.size :] + b"\xc8\0\0\0\x03new"
    assert from_proxy(b"H", payload) == Hello(job_id=7, node="cloud-1")
    assert from_proxy(b"N", b"anything") is None


@pytest.mark.parametrize(
    ("kind", "size"), [(b"H", MOST_HELLO + 1), (b"A", MOST_FROM_PROXY + 1), (b"z", 0xFFFFFFFF), (b"O", 4096)]
)
def test_nothing_longer_than_its_kind_may_be_is_waited_for(kind: bytes, size: int) -> None:
    with pytest.raises(ValueError, match="are the most"):
        length(HEAD.pack(kind, size))


@pytest.mark.parametrize(
    "field",
    [
        b"\x02\0\0\0\x010",
        b"\x02\0\0\0\x0a2147483648",
        b"\x02\0\0\0\x02-1",
        b"\x02\0\0\0\x03\xd9\xa1\xd9",  # digits of another script
        b"\x02\0\0\0\x1499999999999999999999",
        b"\x07\0\0\0\x03tmp",
        b"\x08\0\0\0\x01x",
        b"\x08\0\0\0\x02-7",
        b"\x06\0\0\0\x00",
        b"\x06\0\0\0\x03a\nb",
        b"\x0e\xff\xff\xff\xff",
    ],
)
def test_a_hello_with_a_field_that_means_nothing_is_refused(field: bytes) -> None:
    payload = to_daemon(Hello(job_id=7, node="cloud-1"))[HEAD.size :]
    with pytest.raises(ValueError):
        from_proxy(b"H", payload + field)


def test_a_limit_that_is_none_is_known_in_each_of_its_forms() -> None:
    head = to_daemon(Hello(job_id=7, node="cloud-1"))[HEAD.size :]
    for told in (b"CORE unlimited 18446744073709551615", b"CORE -1 -1"):
        found = from_proxy(b"H", head + b"\x0f" + len(told).to_bytes(4, "big") + told)
        assert isinstance(found, Hello)
        assert found.limits == (Limit(name="CORE", soft=-1, hard=-1),)


@pytest.mark.parametrize(
    "told",
    [b"NOFILE 5 -12", b"NOFILE 5", b" 5 5", b"nofile 5 5", b"NOFILE x 5", b"A_NAME_OF_A_USERS 5 5", b"\xff 5 5", b""],
)
def test_what_only_looks_like_a_limit_is_none(told: bytes) -> None:
    """It comes from variables of the environment, where a user may have his own."""
    head = to_daemon(Hello(job_id=7, node="cloud-1"))[HEAD.size :]
    found = from_proxy(b"H", head + b"\x0f" + len(told).to_bytes(4, "big") + told)
    assert isinstance(found, Hello)
    assert found.limits == ()


def test_a_text_for_a_person_is_one_line_and_has_a_bound() -> None:
    frame = to_proxy(Refusal(text="no room\nfed: forged\x1b " + "x" * 5000))
    text = frame[HEAD.size :]
    assert b"\n" not in text
    assert b"\x1b" not in text
    assert len(text) == MOST_TEXT
