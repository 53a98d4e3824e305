"""Whose descriptors a slice may still have: the runs that have had its devices since nobody was last seen there.

By the devices' minor numbers, since the next instance has the same ones. On disk before a user can open anything, so
that an agent that starts anew still asks for him.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from slurm_plugin.agent import durable
from slurm_plugin.model import RunKey
from slurm_plugin.nvml.processes import everybody

log = logging.getLogger(__name__)

REST = -1  # stands for every device that the file has no line for


class Visitors:
    """Blocking; on the disk thread.

    Crash: whoever had a slice is known. Somebody who was seen to have left may be as well.
    """

    def __init__(self, path: Path, *, at: durable.At = durable.nowhere) -> None:
        self._path = path
        self._at = at
        self._by_minor: dict[int, frozenset[RunKey]] = {}

    def open(self) -> None:
        """What an earlier agent wrote. Of a file that makes no sense, whoever is on this node may have had every slice.

        Raises OSError when it can't be read: that says nothing of what is in it.
        """
        try:
            facts = durable.read(self._path)
            self._by_minor = {int(minor): frozenset(map(_run, runs)) for minor, runs in facts.items()}
        except FileNotFoundError:
            self._by_minor = {}
        except (ValueError, TypeError, AttributeError):
            log.exception("visitors.unreadable", extra={"path": str(self._path)})
            anybody = (RunKey(job_id=0, started_at=0, uid=uid) for uid in everybody())
            self._by_minor = {REST: frozenset(anybody)}

    def note(self, minors: Iterable[int], run: RunKey) -> None:
        """Raises OSError, and then it must not get them."""
        new = {one: self.of([one]) | {run} for one in minors if one >= 0 and run not in self.of([one])}
        if new:
            facts = {
                str(minor): sorted([one.job_id, one.started_at, one.uid] for one in runs)
                for minor, runs in (self._by_minor | new).items()
            }
            durable.write(self._path, facts, at=self._at, lasting=False)  # no process outlives the machine
            self._by_minor |= new

    def of(self, minors: Iterable[int]) -> frozenset[RunKey]:
        rest = self._by_minor.get(REST, frozenset())
        return frozenset[RunKey]().union(*(self._by_minor.get(one, rest) for one in minors if one >= 0))

    def left(self, minors: Iterable[int]) -> None:
        """Nobody is there. The file says so with its next change."""
        for one in minors:
            if REST in self._by_minor:
                self._by_minor[one] = frozenset()
            else:
                self._by_minor.pop(one, None)


def _run(facts: list[int]) -> RunKey:
    job_id, started_at, uid = facts
    return RunKey(job_id=int(job_id), started_at=int(started_at), uid=int(uid))
