"""The local socket in service: who asks, what he may, one answer, and every decision in the audit log."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from federation.access.audit import Audit, Entry
from federation.access.local import Caller, caller_of, counted, served, uid_of
from federation.desk.answers import MOST_LISTED, Answers
from federation.desk.logs import Said, logs
from federation.desk.possible import settled
from federation.desk.submit import Front, submit
from federation.desk.talk import MAX_LINE, failed, line, parsed, weight
from federation.errors import FedError, Refused
from federation.model.states import Origin
from federation.policy.admit import MAX_SCRIPT_BYTES
from federation.stage.mover import Mover

if TYPE_CHECKING:  # a daemon without an overflow starts without all of that
    from federation.desk.overflow import OverflowAnswers

log = logging.getLogger(__name__)

MOST_CALLERS = 1000  # connections at once; who comes then is told so
MOST_OF_ONE = 100  # connections of one user
MOST_KEPT, MOST_KEPT_OF_ONE = 1 << 30, 256 << 20  # bytes of memory for what is asked at once, of all and of one user
MOST_WAITED = 10_000  # jobs of one wait
QUESTION_S = 30.0  # longest wait for the first line


@dataclass(frozen=True, slots=True, kw_only=True)
class Staff:
    """What the desk works with."""

    front: Front
    answers: Answers
    mover: Mover
    audit: Audit
    admins: tuple[str, ...]
    overflow: "OverflowAnswers | None" = None  # None: no job of a Slurm here leaves it


class Desk:
    def __init__(self, staff: Staff) -> None:
        self.staff = staff
        self._callers: Counter[int] = Counter()
        self._kept: Counter[int] = Counter()

    @asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[None]:
        """Raises ConfigError. At the end who is there is cut off."""
        async with served(path, self._serve):
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = writer.get_extra_info("socket")
            with _counted(self._callers, uid_of(connection), 1, (MOST_CALLERS, MOST_OF_ONE)):
                await self._answer(await caller_of(connection, self.staff.admins), reader, writer)
        except FedError as error:
            await _fail(writer, error)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # he has gone
        except Exception:
            log.exception("caller.failed")
            await _fail(writer, FedError("this question can't be answered", hint="the daemon's log says why"))
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with ExitStack() as kept:
                async with asyncio.timeout(QUESTION_S):
                    told = parsed(await self._line(caller, reader, kept))
                async for said, data in self._said(caller, told, reader):
                    writer.write(line({"ok": said}))
                    writer.write(data)
                    await writer.drain()
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise Refused(f"this is no question: {error}", hint="is fed of the daemon's version?") from None

    async def _line(self, caller: Caller, reader: asyncio.StreamReader, kept: ExitStack) -> bytes:
        """The first line, counted in `kept` as it comes: nobody tells how long it will be."""
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            try:
                part = await reader.readuntil()
            except asyncio.LimitOverrunError as error:
                part = await reader.readexactly(error.consumed)
            kept.enter_context(self._keeping(caller, weight(part)))
            parts.append(part)
            if sum(map(len, parts)) > MAX_LINE:
                raise ValueError("it is too long")
        return b"".join(parts)

    async def _said(self, caller: Caller, told: dict[str, Any], reader: asyncio.StreamReader) -> AsyncIterator[Said]:
        what, answers = str(told.get("do")), self.staff.answers
        match what:
            case "submit":
                yield await self._submit(caller, told, reader), b""
            case "jobs":
                yield await self._jobs(caller, told), b""
            case "show":
                (found,) = (await answers.views([await answers.find(caller, told.get("job"))])).jobs
                yield asdict(found), b""
            case "wait":
                _end_with(reader)
                names = list(told["jobs"])[:MOST_WAITED] or [""]
                jobs = {job.token: job for name in names for job in await answers.find_all(caller, name)}
                yield {"waiting": len(jobs)}, b""
                async for done in answers.wait(list(jobs.values())):
                    yield {"remark": done} if isinstance(done, str) else asdict(done), b""
            case "logs":
                _end_with(reader)
                async for said in self._logs(caller, told):
                    yield said
            case "cancel" | "give_up" | "requeue" | "signal":
                with self._audited(caller, what, str(told.get("job"))):
                    yield asdict(await answers.act(caller, told["job"], what, int(told.get("signal", 0)))), b""
            case "peers":
                yield asdict(await answers.peers()), b""
            case "pools":
                yield asdict(await answers.pools()), b""
            case "sacct":
                yield await self._sacct(caller, told), b""
            case "overflow" | "overflow_job":
                yield await self._overflow(caller, told), b""
            case "drain":
                with self._audited(caller, what, str(bool(told.get("on")))):
                    yield await self._drain(caller, bool(told.get("on"))), b""
            case _:
                raise Refused(f"the daemon does not know {what[:64]!r}", hint="is it older than fed?")

    async def _jobs(self, caller: Caller, told: dict[str, Any]) -> dict[str, Any]:
        answers = self.staff.answers
        if told.get("job"):
            return asdict(await answers.views(await answers.find_all(caller, told["job"])))
        everybody, done = bool(told.get("everybody")), bool(told.get("done"))
        found = await answers.jobs(caller, everybody, done, int(told.get("most", 1000)))
        return asdict(found) | {"others": 0 if everybody else await answers.others(caller, done)}

    async def _sacct(self, caller: Caller, told: dict[str, Any]) -> dict[str, Any]:
        from federation.desk.runs import others, runs

        names, everybody = [str(one) for one in told.get("jobs") or ()], bool(told.get("everybody"))
        runner, most = self.staff.front.runner, max(1, min(int(told.get("most", MOST_LISTED)), MOST_LISTED))
        found = await runs(runner, caller, names, everybody, most)
        return asdict(found) | {"others": 0 if everybody or names else await others(runner, caller)}

    async def _submit(self, caller: Caller, told: dict[str, Any], reader: asyncio.StreamReader) -> dict[str, Any]:
        script = max(0, min(int(told["script_size"]), MAX_SCRIPT_BYTES))
        with self._audited(caller, "submit", str(told.get("token"))), self._keeping(caller, script):
            front = self.staff.front
            job, dropped = await submit(front, caller, told, reader)
            waits = await settled(front.runner, front.targets, job.token) if told.get("settle") else ""
        return asdict(self.staff.answers.view(job)) | {"dropped": dropped, "waits": waits}

    async def _logs(self, caller: Caller, told: dict[str, Any]) -> AsyncIterator[Said]:
        answers, follow = self.staff.answers, bool(told.get("follow"))
        job = await answers.find(caller, told.get("job"))
        while follow and job.state in (Origin.QUEUED, Origin.SENDING, Origin.UNKNOWN):
            await asyncio.sleep(1.0)
            job = await answers.again(job)
        async for said in logs(self.staff.mover, job, answers.again, follow=follow):
            yield said

    async def _overflow(self, caller: Caller, told: dict[str, Any]) -> dict[str, Any]:
        if self.staff.overflow is None:
            raise Refused("no job of a Slurm here leaves it", hint="see overflow in fed.yaml")
        if "job" in told:
            return asdict(await self.staff.overflow.job(caller, str(told["job"])))
        return asdict(await self.staff.overflow.status(caller, dry=bool(told.get("dry"))))

    async def _drain(self, caller: Caller, on: bool) -> dict[str, Any]:
        if not caller.admin:
            raise Refused("only an admin may drain a site", hint="see local.admins in fed.yaml")
        await self.staff.front.runner.drain(on)
        return {"draining": on}

    def _audited(self, caller: Caller, what: str, about: str) -> "_Audited":
        return _Audited(self.staff.audit, caller.user or str(caller.uid), what, about)

    def _keeping(self, caller: Caller, size: int) -> AbstractContextManager[None]:
        return _counted(self._kept, caller.uid, size, (MOST_KEPT, MOST_KEPT_OF_ONE))


def _end_with(reader: asyncio.StreamReader) -> None:
    """This task ends when who asked goes away: he says nothing more."""
    task = asyncio.current_task()
    assert task is not None
    gone = asyncio.create_task(reader.read(1))
    gone.add_done_callback(lambda _: task.cancel())
    task.add_done_callback(lambda _: gone.cancel())


async def _fail(writer: asyncio.StreamWriter, error: FedError) -> None:
    with suppress(ConnectionError):
        writer.write(line(failed(error)))
        await writer.drain()


@contextmanager
def _counted(counts: Counter[int], uid: int, more: int, most: tuple[int, int]) -> Iterator[None]:
    """`most`: of all users, and of one. Raises Refused."""
    if counts.total() + more > most[0] or counts[uid] + more > most[1]:
        raise Refused("too many ask at once", hint="wait for those that you have open")
    with counted(counts, uid, more):
        yield


class _Audited:
    """Writes down how what is inside came out."""

    def __init__(self, audit: Audit, who: str, what: str, about: str, clock: Callable[[], float] = time.time) -> None:
        self._audit, self._clock = audit, clock
        self._who, self._what, self._about = who, what, about

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._audit.write(
            Entry(
                at=self._clock(),
                who=f"local:{self._who}",
                what=self._what,
                about=self._about,
                verdict=error is None,
                why=str(error or ""),
            )
        )
