"""One stream with a peer: what is there to be said goes together, what comes is handed on together, in its order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from federation.errors import Refused
from federation.model.messages import MOST_CHANGES, Changes, Follow, Message, Record, Release, Submit
from federation.model.spec import JobSpec
from federation.model.states import Target
from federation.model.token import Key
from federation.peer import session as sessions
from federation.peer.session import BATCH_BYTES, MOST_TOGETHER, Border, Session, messages_in
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.wire.convert import from_wire, to_wire
from federation.wire.hello import BATCHES, OVER, SUBMITS, hello

WAIT_S = 10.0
JOURNAL = UUID(int=9)


def submit(number: int, script: bytes = b"") -> Submit:
    return Submit(key=Key(UUID(int=number), 1), pool="batch", spec=JobSpec(user="ann", script=script))


def release(number: int) -> Release:
    return Release(key=Key(UUID(int=number), 1))


def changes(revision: int, after: int | None = None) -> Changes:
    record = Record(key=Key(UUID(int=revision), 1), revision=revision, state=Target.PENDING)
    return Changes(journal=JOURNAL, after=revision - 1 if after is None else after, upto=revision, records=(record,))


@dataclass
class End:
    """One end of a stream whose other end is the test."""

    features: tuple[str, ...] = (BATCHES,)
    heard: list[list[Message]] = field(default_factory=list)
    busy: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.busy.set()
        self.comes: asyncio.Queue[pb.Envelope | None] = asyncio.Queue()
        self.session = Session("hpc", Border(site="edge", software="test", receive=self.receive))
        self.out = self.session.outgoing()

    async def receive(self, site: str, messages: Sequence[Message]) -> None:
        assert site == "hpc"
        self.heard.append(list(messages))
        await self.busy.wait()

    async def incoming(self) -> AsyncIterator[pb.Envelope]:
        while (envelope := await self.comes.get()) is not None:
            yield envelope

    async def begin(self) -> "asyncio.Task[None]":
        first = hello("hpc", "test")
        del first.features[:]
        first.features.extend(self.features)
        self.comes.put_nowait(pb.Envelope(hello=first))

        async def ready() -> None:
            self.ready.set()

        running = asyncio.create_task(self.session.run(self.incoming(), ready))
        await asyncio.wait_for(self.ready.wait(), WAIT_S)
        assert (await self.said()).WhichOneof("message") == "hello"
        return running

    async def said(self) -> pb.Envelope:
        return await asyncio.wait_for(anext(self.out), WAIT_S)

    async def until_heard(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while sum(map(len, self.heard)) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def end(self, running: "asyncio.Task[None]") -> None:
        self.comes.put_nowait(None)
        await asyncio.wait_for(running, WAIT_S)


async def test_what_is_there_to_be_said_goes_in_one_message_in_its_order() -> None:
    end = End()
    running = await end.begin()
    for number in range(5):
        assert end.session.send(release(number))
    told = await end.said()
    assert [from_wire(one) for one in told.batch.messages] == [release(number) for number in range(5)]
    assert messages_in(told) == 5
    assert end.session.send(release(7))
    assert from_wire(await end.said()) == release(7)
    await end.end(running)


async def test_a_peer_that_knows_no_batches_gets_none() -> None:
    end = End(features=())
    running = await end.begin()
    sent: list[Message] = [changes(1), changes(2), release(3)]
    for one in sent:
        end.session.send(one)
    assert [from_wire(await end.said()) for _ in sent] == sent
    await end.end(running)


@pytest.mark.parametrize("known", [True, False])
async def test_what_is_over_is_asked_for_only_where_it_is_known_that_it_must_not_run(known: bool) -> None:
    end = End(features=(OVER,) if known else ())
    running = await end.begin()
    over = replace(submit(1), again=True, over=True)
    assert end.session.send(over) is known
    end.session.send(release(2))
    assert from_wire(await end.said()) == (over if known else release(2))
    await end.end(running)


async def test_a_batch_has_a_size_and_what_is_larger_goes_alone() -> None:
    end = End()
    running = await end.begin()
    sent: list[Message] = [
        submit(1),
        submit(2, bytes(BATCH_BYTES)),
        submit(3),
        *(release(number) for number in range(300)),
    ]
    for one in sent:
        end.session.send(one)
    said = [await end.said() for _ in range(4)]
    counts = [len(one.batch.messages) for one in said]
    assert (counts[:2], counts[2], sum(counts)) == ([0, 0], MOST_TOGETHER, 301)
    parts = [one for told in said for one in (told.batch.messages or (told,))]
    assert [from_wire(one) for one in parts] == sent
    await end.end(running)


async def test_changes_that_follow_on_each_other_are_one_and_never_ask_for_more() -> None:
    end = End()
    running = await end.begin()
    for revision in range(1, MOST_CHANGES + 50):
        end.session.send(changes(revision))
    end.session.send(changes(900, after=800))
    found = [from_wire(one) for one in (await end.said()).batch.messages]
    assert all(isinstance(one, Changes) and len(one.records) < MOST_CHANGES for one in found)
    spans = [(one.after, one.upto) for one in found if isinstance(one, Changes)]
    assert spans == [(0, MOST_CHANGES - 1), (MOST_CHANGES - 1, MOST_CHANGES + 49), (800, 900)]
    assert sum(len(one.records) for one in found if isinstance(one, Changes)) == MOST_CHANGES + 50
    await end.end(running)


async def test_what_comes_while_others_become_durable_is_handed_on_together_after_them() -> None:
    end = End()
    running = await end.begin()
    end.busy.clear()
    sent = [Follow(journal=None, after=number) for number in range(400)]
    end.comes.put_nowait(to_wire(sent[0]))
    await end.until_heard(1)
    end.comes.put_nowait(pb.Envelope(batch=pb.Batch(messages=[to_wire(one) for one in sent[1:200]])))
    for one in sent[200:]:
        end.comes.put_nowait(to_wire(one))
    end.busy.set()
    await end.until_heard(len(sent))
    assert [message for part in end.heard for message in part] == sent
    assert max(map(len, end.heard)) > 100
    await end.end(running)


@pytest.mark.parametrize("features", [(BATCHES,), ()])
@pytest.mark.parametrize("account", ["\udc80", "x" * (9 << 20)])
async def test_a_message_that_can_not_be_said_is_dropped_alone(features: tuple[str, ...], account: str) -> None:
    end = End(features)
    end.session._border = Border(site="edge", software="test", receive=end.receive, sign=_fails_for(9))
    running = await end.begin()
    bad = replace(submit(2), spec=JobSpec(user="ann", account=account))
    for one in (submit(1), bad, submit(9), submit(3)):
        assert end.session.send(one)
    said = [await end.said() for _ in range(1 if features else 2)]
    parts = [one for told in said for one in (told.batch.messages or (told,))]
    assert [from_wire(one) for one in parts] == [submit(1), submit(3)]
    for number in range(10, 10 + SUBMITS - 2):  # those that were dropped took no credit
        assert end.session.send(submit(number))
    assert not end.session._held
    await end.end(running)


def _fails_for(number: int) -> Callable[[str, Submit], None]:
    def sign(site: str, message: Submit) -> None:
        if message.key.token.int == number:
            raise ZeroDivisionError

    return sign


async def test_a_full_queue_loses_no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_OUT", 2)
    end = End(features=())
    running = await end.begin()
    assert [end.session.send(submit(number)) for number in range(SUBMITS)] == [True, True, *[False] * (SUBMITS - 2)]
    for number in range(2):
        assert from_wire(await end.said()) == submit(number)
    for number in range(2, SUBMITS):
        assert end.session.send(submit(number))
        assert from_wire(await end.said()) == submit(number)
    for number in range(5):
        assert end.session.send(submit(1000 + number))  # they wait for credit
    assert [end.session.send(release(number)) for number in range(3)] == [True, True, False]
    end.comes.put_nowait(pb.Envelope(credit=pb.Credit(submits=5)))
    told = [from_wire(await end.said()) for _ in range(7)]
    assert told == [release(0), release(1), *(submit(1000 + number) for number in range(5))]
    await end.end(running)


async def test_credit_is_given_again_for_submits_that_were_taken() -> None:
    end = End()
    running = await end.begin()
    end.comes.put_nowait(pb.Envelope(batch=pb.Batch(messages=[to_wire(submit(number)) for number in range(SUBMITS)])))
    told = await end.said()
    assert told.credit.submits == SUBMITS
    await end.end(running)


@pytest.mark.parametrize(
    "inside",
    [
        [pb.Envelope(batch=pb.Batch())],
        [pb.Envelope(hello=pb.Hello())],
        [to_wire(release(1))] * (MOST_TOGETHER + 1),
        [pb.Envelope(release=pb.Release(key=pb.Key(token=b"short", attempt=1)))],
    ],
)
async def test_a_batch_that_none_may_send_ends_the_stream(inside: list[pb.Envelope]) -> None:
    end = End()
    running = await end.begin()
    end.comes.put_nowait(pb.Envelope(batch=pb.Batch(messages=inside)))
    with pytest.raises(Refused, match="what no site may send"):
        await asyncio.wait_for(running, WAIT_S)
    assert not end.session.send(release(1))


async def no_credit(end: End) -> None:
    for number in range(SUBMITS):
        assert end.session.send(submit(100_000 + number))
        await end.said()


async def test_a_job_that_is_sent_again_while_it_waits_is_said_once() -> None:
    end = End(features=())
    running = await end.begin()
    assert end.session.send(submit(1))
    assert end.session.send(replace(submit(1), again=True))
    assert end.session.send(release(1))
    assert [from_wire(await end.said()) for _ in range(2)] == [submit(1), release(1)]
    assert end.session.send(again := replace(submit(1), again=True))  # it was said, and not answered
    assert from_wire(await end.said()) == again
    await end.end(running)


async def test_a_peer_that_gives_no_credit_costs_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end = End(features=())
    running = await end.begin()
    await no_credit(end)
    monkeypatch.setattr(sessions, "MOST_BYTES", 10_000)
    large = [submit(number, bytes(3000)) for number in range(1, 50)]
    for _ in range(100):
        assert [end.session.send(one) for one in large[:2]] == [True, True]
    assert [end.session.send(one) for one in large] == [True, True] + [False] * 47
    assert end.session.send(release(1))  # what needs no credit goes on
    assert from_wire(await end.said()) == release(1)
    assert len([one for one in caplog.records if one.getMessage() == "message.dropped"]) == 1
    assert end.session._drops.count == 47
    end.comes.put_nowait(pb.Envelope(credit=pb.Credit(submits=5)))
    assert [from_wire(await end.said()) for _ in range(2)] == large[:2]
    assert end.session.send(large[2])
    assert from_wire(await end.said()) == large[2]
    await end.end(running)


async def test_a_peer_that_does_not_read_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_BYTES", 10_000)
    end = End(features=())
    running = await end.begin()
    sent: list[Message] = [submit(1, bytes(3000)), submit(2, bytes(3000)), changes(1), release(1)]
    assert all(end.session.send(one) for one in sent)
    assert not end.session.send(submit(3, bytes(3000)))
    assert [from_wire(await end.said()) for _ in sent] == sent
    assert end.session._out_bytes == 0
    assert end.session.send(submit(3, bytes(3000)))
    assert from_wire(await end.said()) == submit(3, bytes(3000))
    await end.end(running)


async def test_no_more_is_read_than_fits_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_BYTES", 10_000)
    end = End()
    running = await end.begin()
    end.busy.clear()
    sent = [submit(number, bytes(3000)) for number in range(40)]
    end.comes.put_nowait(to_wire(sent[0]))
    await end.until_heard(1)
    for one in sent[1:]:
        end.comes.put_nowait(to_wire(one))
    async with asyncio.timeout(WAIT_S):
        while end.session._in_bytes < 10_000:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(end.session._in) == 3
    assert end.comes.qsize() == 36
    end.busy.set()
    await end.until_heard(len(sent))
    assert [message for part in end.heard for message in part] == sent
    assert end.session._in_bytes == 0
    await end.end(running)


@pytest.mark.parametrize("credit", [True, False])
async def test_a_job_that_ends_while_it_waits_is_said_as_over(credit: bool) -> None:
    end = End(features=("over",))
    running = await end.begin()
    if not credit:
        await no_credit(end)
    assert end.session.send(replace(submit(1), again=True))
    assert end.session.send(over := replace(submit(1), again=True, over=True))
    assert end.session.send(replace(submit(1), again=True))  # late
    end.comes.put_nowait(pb.Envelope(credit=pb.Credit(submits=5)))
    assert from_wire(await end.said()) == over
    assert not end.session._unsaid
    await end.end(running)
