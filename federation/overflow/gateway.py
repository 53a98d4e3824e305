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
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path

from federation.access.local import Caller, caller_of, listening
from federation.errors import FedError, Refused, Unavailable
from federation.overflow.attaching import Attaching, Stale
from federation.overflow.frames import HEAD, MOST_HELLO, Ended, FromProxy, Hello, Refusal, from_proxy, length, to_proxy
from federation.overflow.visit import Staff, Visit

log = logging.getLogger(__name__)

MOST_STRANGERS = 500  # connections of one user that have not said yet which job they are of
SMALL_HELLO = 64 << 10  # bytes; larger ones are read a few at a time
MOST_HELLOS = 16
READ_BYTES = 4096  # of what a proxy that was told its end says yet
HELLO_S = 30.0  # longest wait for one
GONE_S = 30.0  # longest wait for a proxy that was told its end to go


class Gateway:
    """`attaching` decides what a proxy is given, `staff` is what it is served with."""

    def __init__(self, attaching: Attaching, staff: Staff) -> None:
        self._attaching, self._staff = attaching, staff
        self._strangers: Counter[int] = Counter()
        self._reading = asyncio.Semaphore(MOST_HELLOS)
        self._visits: dict[int, Visit] = {}  # by job id: the newest proxy is the one that counts

    @property
    def attached(self) -> int:
        """Proxies that are being served."""
        return len(self._visits)

    @asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[None]:
        """Raises ConfigError. At the end who is there is cut off, and comes again."""
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            with suppress(asyncio.CancelledError):  # or asyncio of Python 3.11 logs it as a fault
                await self._serve(reader, writer)
            tasks.discard(task)

        _more_files()
        server = await asyncio.start_unix_server(serve, sock=listening(path))
        try:
            yield
        finally:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            caller = _caller(writer)
            hello = await self._hello(caller, reader)
            last = await self._attend(Visit(self._staff, caller, hello, writer), reader)
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

    async def _hello(self, caller: Caller, reader: asyncio.StreamReader) -> Hello:
        with self._stranger(caller):
            async with asyncio.timeout(HELLO_S):
                head = await reader.readexactly(HEAD.size)
                kind, size = length(head, most_hello=MOST_HELLO)
                async with self._reading if size > SMALL_HELLO else nullcontext():
                    message = _read(kind, await reader.readexactly(size))
        if not isinstance(message, Hello):
            raise ValueError("the first that a proxy says must be its hello")  # noqa: TRY004 - of what was said
        return message

    @contextmanager
    def _stranger(self, caller: Caller) -> Iterator[None]:
        if self._strangers[caller.uid] >= MOST_STRANGERS:
            raise ConnectionRefusedError
        self._strangers[caller.uid] += 1
        try:
            yield
        finally:
            self._strangers[caller.uid] -= 1
            if not self._strangers[caller.uid]:
                del self._strangers[caller.uid]

    async def _attend(self, visit: Visit, reader: asyncio.StreamReader) -> bytes:
        """The last frame that it is to get. Raises what ends its connection, and nothing else."""
        listening_to = asyncio.create_task(visit.listen(reader))
        working = asyncio.create_task(self._work(visit))
        try:
            await asyncio.wait((listening_to, working), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else await _raised(listening_to)
        finally:
            for task in (listening_to, working):
                task.cancel()
            await asyncio.gather(listening_to, working, return_exceptions=True)
            await visit.close()
            if self._visits.get(visit.hello.job_id) is visit:
                del self._visits[visit.hello.job_id]

    async def _work(self, visit: Visit) -> bytes:
        try:
            burst, job = await self._attaching.attached(visit)
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


def _read(kind: bytes, payload: bytes) -> FromProxy | None:
    """Raises Refused: it is a hello, and it can't be read however often it is said."""
    try:
        return from_proxy(kind, payload)
    except ValueError as error:
        if kind != b"H":
            raise
        raise Refused(f"the daemon can't read what its proxy says of this job: {error}") from None


def _caller(writer: asyncio.StreamWriter) -> Caller:
    """Raises Unavailable: he has submitted a job here, so when nobody knows him, it is the names that are away."""
    try:
        return caller_of(writer.get_extra_info("socket"))
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
