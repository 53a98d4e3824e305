"""The gateway's socket: proxies of Slurm jobs come, and each goes on where the one before it left off.

Who is there is the kernel's word, what he may have is Slurm's: a job of this very user that runs now, as a batch job,
on that virtual node. All that lasts is in the journal: a connection that is cut, on either side, is no event in a job's
life. Ends are given out no faster than a slurmctld likes to hear of them.

Crash: proxies come back, and say how far they got.
"""

import asyncio
import logging
import resource
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from federation.access.local import Caller, Connection, caller_of, counted, served, uid_of
from federation.errors import FedError, Refused, Unavailable
from federation.overflow.attaching import Attaching, Stale
from federation.overflow.frames import HEAD, MOST_HELLO, Ended, FromProxy, Hello, Refusal, from_proxy, length, to_proxy
from federation.overflow.visit import Staff, Visit
from federation.tasks import ended

log = logging.getLogger(__name__)

MOST_STRANGERS = 500  # connections of one user whose job is not attached yet
MOST_KEPT = 64 << 20  # bytes of their hellos
SMALL_HELLO = 64 << 10  # bytes; larger ones are read a few at a time
MOST_HELLOS, MOST_HELLOS_OF_ONE = 16, 4  # of all users, and of one
READ_BYTES = 4096  # of what a proxy that was told its end says yet
HELLO_S = 30.0  # longest wait for one
GONE_S = 30.0  # longest wait for a proxy that was told its end to go


class Gateway:
    """`attaching` decides what a proxy is given, `staff` is what it is served with."""

    def __init__(self, attaching: Attaching, staff: Staff) -> None:
        self._attaching, self._staff = attaching, staff
        self._strangers: Counter[int] = Counter()
        self._kept: Counter[int] = Counter()
        self._reading = asyncio.Semaphore(MOST_HELLOS)
        self._reading_of: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MOST_HELLOS_OF_ONE)
        )
        self._visits: dict[int, Visit] = {}  # by job id: the newest proxy is the one that counts

    def attends(self, job_id: int) -> bool:
        return job_id in self._visits

    @property
    def visits(self) -> tuple[Visit, ...]:
        """Of proxies that are being served."""
        return tuple(self._visits.values())

    @property
    def strangers(self) -> int:
        """Connections whose job is not attached yet."""
        return self._strangers.total()

    @asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[None]:
        """Raises ConfigError. At the end who is there is cut off, and comes again."""
        _more_files()
        async with served(path, self._serve):
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = writer.get_extra_info("socket")
            with ExitStack() as counts:  # until its job is attached
                counts.enter_context(_counted(self._strangers, uid_of(connection), 1, MOST_STRANGERS))
                caller = await _caller(connection)
                hello = await self._hello(caller, reader, counts)
                last = await self._attend(Visit(self._staff, caller, hello, writer), reader, counts)
            async with asyncio.timeout(GONE_S):
                writer.write(last)
                await writer.drain()
                while await reader.read(READ_BYTES):
                    continue
        except Refused as error:  # before it was known whose job it is of
            log.info("proxy.refused", extra={"why": str(error)})
            writer.write(to_proxy(Refusal(text=str(error))))
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # it has gone
        except ValueError as error:
            log.warning("proxy.wrong", extra={"why": str(error)})
        except FedError as error:
            log.warning("proxy.failed", extra={"code": error.code, "why": str(error)})
        except Exception:
            log.exception("proxy.failed")
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError, TimeoutError):
                async with asyncio.timeout(GONE_S):
                    await writer.wait_closed()
            writer.transport.abort()

    async def _hello(self, caller: Caller, reader: asyncio.StreamReader, counts: ExitStack) -> Hello:
        async with asyncio.timeout(HELLO_S), AsyncExitStack() as turns:
            head = await reader.readexactly(HEAD.size)
            kind, size = length(head, most_hello=MOST_HELLO)
            counts.enter_context(_counted(self._kept, caller.uid, size, MOST_KEPT))
            if size > SMALL_HELLO:
                await turns.enter_async_context(self._reading_of[caller.uid])
                await turns.enter_async_context(self._reading)
            message = _read(kind, await reader.readexactly(size))
        if not isinstance(message, Hello):
            raise ValueError("the first that a proxy says must be its hello")  # noqa: TRY004 - of what was said
        return message

    async def _attend(self, visit: Visit, reader: asyncio.StreamReader, counts: ExitStack) -> bytes:
        """The last frame that it is to get. Raises what ends its connection, and nothing else."""
        listening_to = asyncio.create_task(visit.listen(reader))
        working = asyncio.create_task(self._work(visit, counts))
        gone = False
        try:
            await asyncio.wait((listening_to, working), return_when=asyncio.FIRST_COMPLETED)
            gone = not working.done() or working.exception() is not None
            return working.result() if working.done() else await _raised(listening_to)
        finally:
            await ended(listening_to, working)
            if self._visits.get(visit.hello.job_id) is visit:
                del self._visits[visit.hello.job_id]
            await visit.close(gone=gone)

    async def _work(self, visit: Visit, counts: ExitStack) -> bytes:
        try:
            burst, job = await self._attaching.attached(visit)
            counts.close()
            self._comes(visit)
            return to_proxy(await visit.served(burst, job))
        except Stale as error:
            log.info("proxy.stale", extra={"job": visit.hello.job_id, "why": str(error)})
            return to_proxy(Ended(by_signal=True, value=signal.SIGKILL))
        except Refused as error:
            log.info("burst.refused", extra={"job": visit.hello.job_id, "why": str(error)})
            return await visit.refused(str(error))

    def _comes(self, visit: Visit) -> None:
        """One that came before for the same job is of a run that is over, or its connection is."""
        before = self._visits.pop(visit.hello.job_id, None)
        if before is not None:
            before.cut()
        self._visits[visit.hello.job_id] = visit


@contextmanager
def _counted(counts: Counter[int], uid: int, more: int, most: int) -> Iterator[None]:
    """Raises ConnectionRefusedError for more than one user may have: it comes again."""
    if counts[uid] + more > most:
        raise ConnectionRefusedError
    with counted(counts, uid, more):
        yield


def _read(kind: bytes, payload: bytes) -> FromProxy | None:
    """Raises Refused: it is a hello, and it can't be read however often it is said."""
    try:
        return from_proxy(kind, payload)
    except ValueError as error:
        if kind != b"H":
            raise
        raise Refused(f"the daemon can't read what its proxy says of this job: {error}") from None


async def _caller(connection: Connection) -> Caller:
    """Raises Unavailable: he has submitted a job here, so when nobody knows him, it is the names that are away."""
    try:
        return await caller_of(connection)
    except Refused as error:
        raise Unavailable(str(error)) from None


async def _raised(task: "asyncio.Task[None]") -> bytes:
    """It has gone, or said what no proxy says."""
    await task
    raise ConnectionResetError


def _more_files() -> None:
    """Each proxy is one: as many as this host allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
