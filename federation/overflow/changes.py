"""Changing many waiting jobs of Slurm's: as many as can be named in one call, and who was refused, and why.

Slurm changes the jobs of one call one by one: some may be changed and others not. Which is found by halves, since what
it prints of a long list is cut. A job that is changed twice to the same is what it was.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from federation.errors import Unavailable
from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.slurm.process import Runs

log = logging.getLogger(__name__)

MOST_NAMES = 300  # of one call: slurmctld does 2,000 a second
MOST_BYTES = 60_000  # of their names: one argument may have 128 KiB
MOST_HALVES = 60  # calls of one `apply` that look for who is refused
TRIES, PAUSE_S = 3, 1.0  # a busy slurmctld says `Resource temporarily unavailable` for a second or two
_STARTED = "no longer pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    name: str  # as Slurm's commands call the job
    to: tuple[str, ...]  # such as ("partition=gpu,cloud",)


@dataclass(slots=True)
class Applied:
    refused: dict[str, str] = field(default_factory=dict)  # name -> what Slurm said
    put_off: set[str] = field(default_factory=set)  # refused together with others: not known which of them
    halves: int = 0

    def done(self, name: str) -> bool:
        return name not in self.refused and name not in self.put_off


def has_started(refusal: str) -> bool:
    """Slurm started it before it could be changed: nothing is wrong."""
    return _STARTED in refusal


class Applies(Protocol):
    async def apply(self, changes: Sequence[Change]) -> Applied:
        """In their order, those with the same change together. Raises Unavailable: it is not known what was done."""


class Changes:
    """Implements Applies by scontrol."""

    def __init__(self, runner: Runs, *, pause_s: float = PAUSE_S) -> None:
        self._runner, self._pause_s = runner, pause_s

    async def apply(self, changes: Sequence[Change]) -> Applied:
        found = Applied()
        together: dict[tuple[str, ...], list[str]] = {}
        for change in changes:
            together.setdefault(change.to, []).append(change.name)
        for to, names in together.items():
            for some in _batches(names):
                await self._some(some, to, found)
        return found

    async def _some(self, names: Sequence[str], to: tuple[str, ...], found: Applied) -> None:
        refusal = await self._call(["scontrol", "update", f"jobid={','.join(names)}", *to])
        if not refusal:
            log.info("overflow.changed", extra={"jobs": len(names), "first": names[0], "to": to})
        elif len(names) == 1:
            found.refused[names[0]] = refusal
        elif found.halves + 2 > MOST_HALVES:
            found.put_off.update(names)
        else:
            found.halves += 2
            half = len(names) // 2
            await self._some(names[:half], to, found)
            await self._some(names[half:], to, found)

    async def _call(self, argv: Sequence[str]) -> str:
        """What Slurm said against it; "": nothing."""
        for nth in range(1, TRIES + 1):
            try:
                await self._runner.run(argv)
            except SlurmUnavailable as error:
                if nth == TRIES:
                    raise Unavailable(str(error), hint=error.hint) from None
                await asyncio.sleep(self._pause_s * nth)
            except SlurmError as error:
                return str(error).removeprefix("scontrol update: ")
            else:
                break
        return ""


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    batch: list[str] = []
    size = 0
    for name in names:
        if batch and (len(batch) == MOST_NAMES or size + len(name) >= MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += len(name) + 1
    if batch:
        yield batch
