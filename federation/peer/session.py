"""One control stream with one site, whoever opened it: hello first, then messages both ways.

What comes in is handed on in its order, all that is there at once, so that it becomes durable together; what is there
to be said goes out together, too. Submits go out against the other side's credit, each of those that wait once, however
often it is sent; whatever does not fit its queue is dropped, counted, and wanted again when it is due.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from federation.drops import Drops
from federation.errors import FedError, Refused
from federation.model.messages import MOST_CHANGES, Busy, Changes, Message, Submit
from federation.model.token import Key
from federation.peer.weight import weight
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.tasks import ended, heed
from federation.wire.convert import MAX_MESSAGE_BYTES, from_wire, to_wire
from federation.wire.hello import BATCHES, OVER, SUBMITS, Agreed, agree, hello

log = logging.getLogger(__name__)

MOST_OUT = 10_000  # messages that wait to be sent
MOST_HELD = 10_000  # submits that wait for credit
MOST_IN = 1024  # messages that wait to be handed on; then no more is read
MOST_BYTES = 64 << 20  # of each of the three, about
MOST_TOGETHER = 256  # messages of one batch, and of one transaction
BATCH_BYTES = 1 << 20  # of a batch; a message that is larger goes alone
HELLO_S = 10.0  # longest wait for the other side's hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """What a site does with messages on their way in and out. `check` tells why a signed job is not believed, or ""."""

    site: str
    software: str
    receive: Callable[[str, Sequence[Message]], Awaitable[None]]
    sign: Callable[[str, Submit], pb.Signature | None] = lambda _site, _submit: None
    check: Callable[[str, Submit, pb.Signature], str] = lambda _site, _submit, _signature: ""


class Session:
    """With `site`, as its certificate proves it."""

    def __init__(self, site: str, border: Border) -> None:
        self.site = site
        self._border = border
        self._out: deque[Message | pb.Envelope] = deque()
        self._out.append(pb.Envelope(hello=hello(border.site, border.software)))
        self._to_send = asyncio.Event()
        self._held: deque[Submit] = deque()
        self._unsaid: dict[Key, Submit] = {}  # those of the two, as they are to be said
        self._out_bytes = self._held_bytes = self._in_bytes = 0
        self._drops = Drops(log, "message.dropped")
        self.agreed: Agreed | None = None  # once the other side's hello was fine
        self._credit = 0
        self._taken = 0  # submits of theirs that we have not given credit for again
        self._in: deque[Message] = deque()
        self._came, self._went = asyncio.Event(), asyncio.Event()
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    def send(self, message: Message) -> bool:
        """False: dropped."""
        if self._ended:
            return False
        done = self._send_submit(message) if isinstance(message, Submit) else self._put(message)
        if not done:
            self._drops.add(site=self.site, kind=type(message).__name__)
        return done

    # -- out

    def _send_submit(self, submit: Submit) -> bool:
        if submit.over and (self.agreed is None or OVER not in self.agreed.features):
            return False
        if (waits := self._unsaid.get(submit.key)) is not None:
            if submit.over:
                self._unsaid[submit.key] = replace(waits, again=True, over=True)
            return True
        if self._credit > 0 and not self._held:
            return self._put_submit(submit)
        size = weight(submit)
        if len(self._held) >= MOST_HELD or self._held_bytes + size > MOST_BYTES:
            return False
        self._held.append(submit)
        self._held_bytes += size
        self._unsaid[submit.key] = submit
        return True

    async def outgoing(self) -> AsyncIterator[pb.Envelope]:
        """What is to be written to the stream, until the session ends."""
        while not self._ended:
            if not self._out:
                self._more_credit(0)  # for those that found the queue full
            if not self._out:
                self._to_send.clear()
                await self._to_send.wait()
                continue
            if self.agreed is not None and BATCHES in self.agreed.features and len(self._out) > 1:
                envelope = self._batch()
            else:
                envelope = self._envelope(self._pop())
            if envelope is not None:
                yield envelope

    def _batch(self) -> pb.Envelope | None:
        found: list[pb.Envelope] = []
        room = BATCH_BYTES
        while self._out and len(found) < MOST_TOGETHER:
            envelope = self._envelope(self._merged(self._pop()))
            if envelope is None:
                continue
            room -= envelope.ByteSize()
            if found and room < 0:
                self._out.appendleft(envelope)
                break
            found.append(envelope)
        if len(found) < 2:
            return found[0] if found else None
        return pb.Envelope(batch=pb.Batch(messages=found))

    def _merged(self, message: Message | pb.Envelope) -> Message | pb.Envelope:
        """Changes that follow on each other are one, of fewer records than ask for more."""
        if not isinstance(message, Changes):
            return message
        records, upto = list(message.records), message.upto
        while self._out and isinstance(then := self._out[0], Changes) and then.journal == message.journal:
            if then.after != upto or len(records) + len(then.records) >= MOST_CHANGES:
                break
            records += then.records
            upto = then.upto
            self._pop()
        return Changes(journal=message.journal, after=message.after, upto=upto, records=tuple(records))

    def _envelope(self, message: Message | pb.Envelope) -> pb.Envelope | None:
        """None: a fault of ours, with one message. It is dropped: the link is as good as it was."""
        if isinstance(message, pb.Envelope):
            return message
        try:
            envelope = to_wire(message)
            if isinstance(message, Submit) and (signature := self._border.sign(self.site, message)) is not None:
                envelope.submit.signature.CopyFrom(signature)
            if envelope.ByteSize() > MAX_MESSAGE_BYTES:
                raise ValueError(f"{envelope.ByteSize()} bytes are more than a message may have")  # noqa: TRY301
        except Exception:
            log.exception("message.not_sent", extra={"site": self.site, "kind": type(message).__name__})
            if isinstance(message, Submit):
                self._more_credit(1)
            return None
        return envelope

    def _put_submit(self, submit: Submit) -> bool:
        done = self._put(submit)
        if done:
            self._credit -= 1
            self._unsaid.setdefault(submit.key, submit)
        return done

    def _more_credit(self, submits: int) -> None:
        self._credit = min(self._credit + submits, MOST_HELD)
        while self._held and self._credit > 0 and self._put_submit(self._held[0]):
            self._held_bytes -= weight(self._held.popleft())

    def _pop(self) -> Message | pb.Envelope:
        message = self._out.popleft()
        if not isinstance(message, pb.Envelope):
            self._out_bytes -= weight(message)
        if isinstance(message, Submit):
            return self._unsaid.pop(message.key)
        return message

    def _put(self, message: Message | pb.Envelope) -> bool:
        size = 0 if isinstance(message, pb.Envelope) else weight(message)
        if len(self._out) >= MOST_OUT or self._out_bytes + size > MOST_BYTES:
            return False
        self._out.append(message)
        self._out_bytes += size
        self._to_send.set()
        return True

    # -- in

    async def run(self, incoming: AsyncIterator[pb.Envelope], ready: Callable[[], Awaitable[None]]) -> None:
        """Until the stream ends. `ready` is called when the other side's version is known to be fine.

        Raises Refused: no hello, no common version, or what no site may send; and what the stream raises.
        """
        handing = asyncio.create_task(self._hand_on())
        try:
            self.agreed = await self._hello(incoming)
            log.info("peer.linked", extra={"site": self.site, "version": self.agreed.version})
            await ready()
            async for envelope in incoming:
                self._take_all(envelope)
                while (len(self._in) >= MOST_IN or self._in_bytes >= MOST_BYTES) and not handing.done():
                    self._went.clear()
                    await self._went.wait()
                if handing.done():
                    handing.result()
        finally:
            self._ended = True
            self._to_send.set()
            await ended(handing)

    async def _hello(self, incoming: AsyncIterator[pb.Envelope]) -> Agreed:
        try:
            async with asyncio.timeout(HELLO_S):
                first = await anext(incoming, None)
        except TimeoutError:
            raise Refused(f"{self.site} said no hello within {HELLO_S:.0f} s") from None
        if first is None or first.WhichOneof("message") != "hello":
            raise Refused(f"{self.site} said no hello")
        agreed = agree(first.hello)
        self._credit = agreed.submits
        return agreed

    def _take_all(self, envelope: pb.Envelope) -> None:
        try:
            for one in _messages(envelope):
                self._take(one)
        except ValueError as error:
            raise Refused(f"{self.site} sent what no site may send: {error}") from error
        self._came.set()

    def _take(self, envelope: pb.Envelope) -> None:
        """Raises ValueError."""
        if envelope.WhichOneof("message") == "credit":
            self._more_credit(envelope.credit.submits)
            return
        message = from_wire(envelope)
        if message is None:
            return
        if isinstance(message, Submit) and (why := self._border.check(self.site, message, envelope.submit.signature)):
            log.warning("job.not_believed", extra={"site": self.site, "key": str(message.key), "why": why})
            self.send(Busy(key=message.key, why=why))
            self._give_credit(1)
            return
        self._in.append(message)
        self._in_bytes += weight(message)

    async def _hand_on(self) -> None:
        """All that has come, again and again. What comes meanwhile waits, and goes together."""
        while True:
            await self._came.wait()
            messages = [self._in.popleft() for _ in range(min(len(self._in), MOST_TOGETHER))]
            self._in_bytes -= sum(map(weight, messages))
            if not self._in:
                self._came.clear()
            self._went.set()
            if not messages:
                continue
            try:
                await self._border.receive(self.site, messages)
            except FedError as error:
                heed()
                log.warning("message.failed", extra={"site": self.site, "code": error.code, "why": str(error)})
            except Exception:  # a fault of ours, with one message: the link is as good as it was
                heed()
                log.exception("message.failed", extra={"site": self.site})
            self._give_credit(sum(isinstance(one, Submit) for one in messages))

    def _give_credit(self, submits: int) -> None:
        """In portions. A session whose queue is full loses no credit: it is given with the next one."""
        self._taken += submits
        if self._taken >= SUBMITS // 4 and self._put(pb.Envelope(credit=pb.Credit(submits=self._taken))):
            self._taken = 0


def messages_in(envelope: object) -> int:
    """How many there are in what comes over the stream."""
    return len(envelope.batch.messages) or 1 if isinstance(envelope, pb.Envelope) else 1


def _messages(envelope: pb.Envelope) -> Sequence[pb.Envelope]:
    """Raises ValueError for a batch that none may send."""
    if envelope.WhichOneof("message") != "batch":
        return (envelope,)
    if len(envelope.batch.messages) > MOST_TOGETHER:
        raise ValueError(f"more than {MOST_TOGETHER} messages in a batch")
    if any(one.WhichOneof("message") in ("batch", "hello") for one in envelope.batch.messages):
        raise ValueError("a batch in a batch, or a second hello")
    return envelope.batch.messages
