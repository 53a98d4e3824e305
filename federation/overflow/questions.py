"""What many proxies want to know of Slurm at one moment, asked in one command."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from federation.errors import Unavailable
from federation.overflow import request
from federation.overflow.burst import SlurmJob
from federation.overflow.request import Asked
from federation.overflow.slurm_site import IDS_A_CALL, OwnSlurm
from slurm_plugin.slurm.process import Runs, Site

T = TypeVar("T")


class Wants(Protocol):
    async def asked(self, job_id: int) -> Asked | None:
        """What a job has asked for; None: Slurm does not know it. Raises Unavailable."""

    async def folder(self, job_id: int) -> str:
        """Where a job is to run; what is no UTF-8 in it is replaced. Raises Unavailable, also when it is not known."""


class Together(Generic[T]):
    """While one question is under way, those that come meanwhile wait for the next, which asks them all.

    So an answer is never older than its question, and there is one command at a time.
    """

    def __init__(self, ask: Callable[[Sequence[int]], Awaitable[Mapping[int, T]]]) -> None:
        self._ask = ask
        self._waiting: list[tuple[int, asyncio.Future[T | None]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def of(self, job_id: int) -> T | None:
        """Raises what the question raises."""
        answer: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((job_id, answer))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_all())
        return await answer

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:IDS_A_CALL], self._waiting[IDS_A_CALL:]
                await self._answer([one for one in some if not one[1].cancelled()])
        finally:
            self._asking = None

    async def _answer(self, some: Sequence[tuple[int, "asyncio.Future[T | None]"]]) -> None:
        try:
            found: Mapping[int, T] | Exception = await self._ask([job_id for job_id, _ in some])
        except Exception as error:
            found = error
        for job_id, answer in some:
            if answer.cancelled():
                continue
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found.get(job_id))


class SharedSlurm(OwnSlurm):
    """The same, for many who ask at once. Implements `Wants`, too."""

    def __init__(self, site: Site | None = None, *, runner: Runs | None = None) -> None:
        super().__init__(site, runner=runner)
        self._jobs: Together[SlurmJob] = Together(self.jobs)
        self._wants: Together[Asked] = Together(self._all_asked)

    async def job(self, job_id: int) -> SlurmJob | None:
        return await self._jobs.of(job_id)

    async def asked(self, job_id: int) -> Asked | None:
        return await self._wants.of(job_id)

    async def folder(self, job_id: int) -> str:
        """Alone in its answer: it is a user's text."""
        rows = await self._rows(("WorkDir",), "--states=all", f"--jobs={job_id}")
        if not rows:
            raise Unavailable("Slurm does not know the job now")
        return rows[0][0]

    async def _all_asked(self, job_ids: Sequence[int]) -> Mapping[int, Asked]:
        rows = await self._rows(request.FIELDS, "--states=all", f"--jobs={','.join(map(str, sorted(set(job_ids))))}")
        try:
            return {int(row[0]): request.asked(row) for row in rows}
        except ValueError as error:
            raise Unavailable(f"squeue's answer can't be read: {error}") from None
