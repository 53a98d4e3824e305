"""One control stream with one site, whoever opened it: hello first, then messages both ways.

What comes in is handed on in its order and not waited for one by one, so that it becomes durable together. Submits go
out against the other side's credit; whatever does not fit its queue is dropped, and wanted again when it is due.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from federation.errors import FedError, Refused
from federation.model.messages import Busy, Message, Submit
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.wire.convert import from_wire, to_wire
from federation.wire.hello import SUBMITS, Agreed, agree, hello

log = logging.getLogger(__name__)

MOST_OUT = 10_000  # envelopes that wait to be sent
MOST_HELD = 10_000  # submits that wait for credit
MOST_IN = 1024  # messages handed on that are not durable yet
HELLO_S = 10.0  # longest wait for the other side's hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """What a site does with messages on their way in and out. `check` tells why a signed job is not believed, or ""."""

    site: str
    software: str
    receive: Callable[[str, Message], Awaitable[None]]
    sign: Callable[[str, Submit], pb.Signature | None] = lambda _site, _submit: None
    check: Callable[[str, Submit, pb.Signature], str] = lambda _site, _submit, _signature: ""


class Session:
    """With `site`, as its certificate proves it."""

    def __init__(self, site: str, border: Border) -> None:
        self.site = site
        self._border = border
        self._out: asyncio.Queue[pb.Envelope] = asyncio.Queue(MOST_OUT)
        self._held: deque[Submit] = deque()
        self.agreed: Agreed | None = None  # once the other side's hello was fine
        self._credit = 0
        self._taken = 0  # submits of theirs that we have not given credit for again
        self._gate = asyncio.Semaphore(MOST_IN)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._out.put_nowait(pb.Envelope(hello=hello(border.site, border.software)))

    def send(self, message: Message) -> bool:
        """False: dropped."""
        if self._ended.is_set():
            return False
        if isinstance(message, Submit):
            if self._credit <= 0 or self._held:
                if len(self._held) >= MOST_HELD:
                    return False
                self._held.append(message)
                return True
            self._credit -= 1
        return self._put(message)

    async def outgoing(self) -> AsyncIterator[pb.Envelope]:
        """What is to be written to the stream, until the session ends."""
        ended = asyncio.ensure_future(self._ended.wait())
        following = asyncio.ensure_future(self._out.get())
        try:
            while True:
                await asyncio.wait((following, ended), return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    return
                yield following.result()
                following = asyncio.ensure_future(self._out.get())
        finally:
            ended.cancel()
            following.cancel()

    async def run(self, incoming: AsyncIterator[pb.Envelope], ready: Callable[[], Awaitable[None]]) -> None:
        """Until the stream ends. `ready` is called when the other side's version is known to be fine.

        Raises Refused: no hello, no common version, or what no site may send; and what the stream raises.
        """
        try:
            self.agreed = await self._hello(incoming)
            log.info("peer.linked", extra={"site": self.site, "version": self.agreed.version})
            await ready()
            async for envelope in incoming:
                await self._take(envelope)
        finally:
            self._ended.set()
            for task in self._tasks:
                task.cancel()

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

    async def _take(self, envelope: pb.Envelope) -> None:
        if envelope.WhichOneof("message") == "credit":
            self._credit = min(self._credit + envelope.credit.submits, MOST_HELD)
            while self._held and self._credit > 0:
                self._credit -= 1
                self._put(self._held.popleft())
            return
        try:
            message = from_wire(envelope)
        except ValueError as error:
            raise Refused(f"{self.site} sent what no site may send: {error}") from error
        if message is None:
            return
        if isinstance(message, Submit) and (why := self._border.check(self.site, message, envelope.submit.signature)):
            log.warning("job.not_believed", extra={"site": self.site, "key": str(message.key), "why": why})
            self._put(Busy(key=message.key, why=why))
            self._give_credit()
            return
        await self._gate.acquire()
        task = asyncio.create_task(self._hand_on(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_on(self, message: Message) -> None:
        try:
            await self._border.receive(self.site, message)
        except FedError as error:
            log.warning("message.failed", extra={"site": self.site, "code": error.code, "why": str(error)})
        finally:
            self._gate.release()
            if isinstance(message, Submit):
                self._give_credit()

    def _give_credit(self) -> None:
        """In portions. A session whose queue is full loses no credit: it is given with the next one."""
        self._taken += 1
        if self._taken >= SUBMITS // 4 and not self._out.full():
            self._out.put_nowait(pb.Envelope(credit=pb.Credit(submits=self._taken)))
            self._taken = 0

    def _put(self, message: Message) -> bool:
        envelope = to_wire(message)
        if isinstance(message, Submit) and (signature := self._border.sign(self.site, message)) is not None:
            envelope.submit.signature.CopyFrom(signature)
        try:
            self._out.put_nowait(envelope)
        except asyncio.QueueFull:
            return False
        return True
