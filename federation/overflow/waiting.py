"""The queue, as squeue tells it: what waits in the partitions that have rules, and what runs in the cloud partition."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

from federation.errors import Unavailable
from federation.overflow import queued
from federation.overflow.queued import Names, Queued
from slurm_plugin.errors import ConfigError, SlurmError
from slurm_plugin.slurm import table
from slurm_plugin.slurm.process import Runs

P = ParamSpec("P")
T = TypeVar("T")

_SQUEUE = ("squeue", "--noheader", "--all", "--local")
_WAITING = "--states=PENDING"
_RUNNING = "--states=RUNNING,CONFIGURING,COMPLETING,SUSPENDED,STOPPED"
_RUNNING_FIELDS = ("JobID", "ArrayJobID", "ArrayTaskID")
_EXCLUDED_LETTERS = ("A", "x")  # -O has no word for the nodes that a job excludes


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job that has started on a virtual node, and is not over."""

    job_id: int
    root: int


class Reads(Protocol):
    """Every call raises Unavailable when slurmctld does not answer, or not so that it can be read."""

    async def partitions(self) -> dict[str, str]:
        """Every partition, hidden ones too, and what sinfo calls its door: up, down, drain, inact."""

    async def waiting(self, partitions: Collection[str], names: Names) -> tuple[Queued, ...]: ...

    async def running(self, cloud: str) -> tuple[Running, ...]: ...


class Queue:
    """Implements Reads by squeue and sinfo."""

    def __init__(self, runner: Runs) -> None:
        self._runner = runner

    async def partitions(self) -> dict[str, str]:
        text = await self._ask("sinfo", "--noheader", "--all", "-o", "%R %a")
        return {name: door for name, _, door in (line.strip().rpartition(" ") for line in text.splitlines())}

    async def waiting(self, partitions: Collection[str], names: Names) -> tuple[Queued, ...]:
        chosen = (_WAITING, f"--partition={','.join(sorted(partitions))}")
        rows = await self._table(queued.FIELDS, *chosen)
        mark = table.new_mark()
        text = await self._ask(*_SQUEUE, *chosen, "-o", table.squeue_letters(_EXCLUDED_LETTERS, mark))
        excluded = await _read(_excluded, text, mark)
        return await _read(_queued, rows, excluded, names)

    async def running(self, cloud: str) -> tuple[Running, ...]:
        rows = await self._table(_RUNNING_FIELDS, f"--partition={cloud}", _RUNNING)
        return await _read(_running, rows)

    async def _table(self, fields: Sequence[str], *selection: str) -> list[list[str]]:
        mark = table.new_mark()
        text = await self._ask(*_SQUEUE, *selection, "-O", table.squeue_format(fields, mark))
        return await _read(table.parse_table, text, len(fields), mark)

    async def _ask(self, *argv: str) -> str:
        try:
            return await self._runner.run(argv)
        except SlurmError as error:
            raise Unavailable(str(error), hint=error.hint) from None


def _queued(rows: Sequence[Sequence[str]], excluded: Mapping[int, Sequence[str]], names: Names) -> tuple[Queued, ...]:
    return tuple(queued.queued(row, excluded.get(int(row[0]), ()), names) for row in rows)


def _excluded(text: str, mark: str) -> Mapping[int, tuple[str, ...]]:
    return queued.excluded([table.cells(line, len(_EXCLUDED_LETTERS)) for line in table.lines(text, mark)])


def _running(rows: Sequence[Sequence[str]]) -> tuple[Running, ...]:
    return tuple(
        Running(job_id=int(own), root=int(own) if task in ("", "N/A") else int(array)) for own, array, task in rows
    )


async def _read(parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """On a thread: a long queue keeps nobody else waiting. What can't be read says nothing of any job."""
    try:
        return await asyncio.to_thread(parse, *args, **kwargs)
    except (SlurmError, ConfigError, ValueError) as error:
        raise Unavailable(f"what Slurm printed can't be read: {error}") from None
