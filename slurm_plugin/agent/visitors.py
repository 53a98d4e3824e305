"""Whose descriptors a slice may still have: the users who have had its devices since nobody was last seen there.

By the devices' minor numbers, since the next instance has the same ones. On disk before a user can open anything, so
that an agent that starts anew still asks for him.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from slurm_plugin.agent import durable

log = logging.getLogger(__name__)


class Visitors:
    """Blocking; on the disk thread.

    Crash: whoever had a slice is known. Somebody who was seen to have left may be as well.
    """

    def __init__(self, path: Path, *, at: durable.At = durable.nowhere) -> None:
        self._path = path
        self._at = at
        self._by_minor: dict[int, frozenset[int]] = {}

    def open(self) -> None:
        """What an earlier agent wrote. A file that makes no sense is logged and taken for none."""
        try:
            facts = durable.read(self._path)
            self._by_minor = {int(minor): frozenset(map(int, uids)) for minor, uids in facts.items()}
        except FileNotFoundError:
            self._by_minor = {}
        except (OSError, ValueError, TypeError, AttributeError):
            log.exception("visitors.unreadable", extra={"path": str(self._path)})

    def note(self, minors: Iterable[int], uid: int) -> None:
        """Raises OSError, and then he must not get them."""
        new = {one: self.of([one]) | {uid} for one in minors if one >= 0 and uid not in self.of([one])}
        if new:
            facts = {str(minor): sorted(uids) for minor, uids in (self._by_minor | new).items()}
            durable.write(self._path, facts, at=self._at, lasting=False)  # no process outlives the machine
            self._by_minor |= new

    def of(self, minors: Iterable[int]) -> frozenset[int]:
        return frozenset[int]().union(*(self._by_minor.get(one, ()) for one in minors))

    def left(self, minors: Iterable[int]) -> None:
        """Nobody is there. The file says so with its next change."""
        for one in minors:
            self._by_minor.pop(one, None)
