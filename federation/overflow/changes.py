"""Changing many waiting jobs of Slurm's: as many as can be named in one call, and who was refused, and why.

Slurm changes the jobs of one call one by one, and has a line for each that it did not change. One without accounting
says of some `Resource temporarily unavailable` and means nothing by it: those are named again.

Source: scontrol/update_job.c of 22.05 and 24.11: `WHY for job NAME`; of an array's records `NAME: WHY`. On 24.11 each
second change of a partition fails so, at random: slurmctld/job_mgr.c takes an old errno for a missing association's.
"""

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from federation.errors import Unavailable
from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.slurm.process import Runs, no_answer

log = logging.getLogger(__name__)

MOST_NAMES = 300  # of one call: slurmctld does 2,000 a second
MOST_BYTES = 60_000  # of their names: one argument may have 128 KiB
TRIES, PAUSE_S = 20, 0.1  # of a call, and between them: one in a million is left then, or slurmctld is busy indeed
_BUSY = "temporarily unavailable"
_STARTED = "no longer pending"
_FINE = frozenset({"Success", "No error"})
_OF_A_JOB = re.compile(r"(?P<why>.+) for job (?P<name>\d\S*)")
_OF_AN_ARRAY = re.compile(r"(?P<name>\d[\d_+,%:\[\]-]*): (?P<why>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    name: str  # as Slurm's commands call the job
    to: tuple[str, ...]  # such as ("partition=gpu,cloud",)


@dataclass(slots=True)
class Applied:
    refused: dict[str, str] = field(default_factory=dict)  # name -> what Slurm said

    def done(self, name: str) -> bool:
        return name not in self.refused


def is_busy(refusal: str) -> bool:
    """It may be changed the next time."""
    return _BUSY in refusal.lower()


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
        left = list(names)
        for nth in range(1, TRIES + 1):
            told = await self._call(left, to)
            changed = [name for name in left if name not in told]
            if changed:
                log.info("overflow.changed", extra={"jobs": len(changed), "first": changed[0], "to": to})
            left = [name for name, said in told.items() if is_busy(said)]
            if not left or nth == TRIES:
                found.refused |= told
                return
            found.refused |= {name: said for name, said in told.items() if not is_busy(said)}
            await asyncio.sleep(self._pause_s)

    async def _call(self, names: Sequence[str], to: tuple[str, ...]) -> dict[str, str]:
        """What Slurm said against each that it did not change."""
        try:
            await self._runner.run(["scontrol", "update", f"jobid={','.join(names)}", *to])
        except SlurmError as error:
            told = _told(error.said, names)
            lost = any(no_answer(said) and not is_busy(said) for said in told.values())
            if lost or (not told and isinstance(error, SlurmUnavailable)):
                raise Unavailable(str(error), hint=error.hint) from None
            return told or dict.fromkeys(names, str(error).removeprefix("scontrol update: "))
        return {}


def _told(said: str, names: Sequence[str]) -> dict[str, str]:
    by_root: dict[str, list[str]] = {}
    for name in names:
        by_root.setdefault(name.partition("_")[0], []).append(name)
    told: dict[str, str] = {}
    for line in said.splitlines():
        match = _OF_A_JOB.fullmatch(line.strip()) or _OF_AN_ARRAY.fullmatch(line.strip())
        if match is not None and match["why"] not in _FINE:
            told |= dict.fromkeys(by_root.get(match["name"].partition("_")[0], ()), match["why"])
    return told


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
