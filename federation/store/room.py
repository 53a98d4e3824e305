"""Room on the journal's disk: new jobs are accepted while there is plenty, and what is under way may use the rest.

A *ballast* file holds a part of the disk for the journal alone. When the disk is full in spite of the reserve, as when
others fill it, the ballast is given up, and what was under way goes on: acknowledgements, ends, releases. Whatever else
the daemon writes beside the journal, inputs and outputs, leaves the room for both.
"""

import errno
import os
from pathlib import Path

BALLAST_BYTES = 16 << 20  # about 20,000 records and their log
RESERVE_BYTES = 64 << 20  # less free than this, and no new job is accepted
FILES_LEAVE_BYTES = RESERVE_BYTES + BALLAST_BYTES  # the ballast can be taken back while files wait for room
BLOCK = bytes(1 << 16)


class Room:
    """Of one journal. `reserve_bytes` may be set lower for a small disk, as an edge box has."""

    def __init__(self, path: Path, *, reserve_bytes: int = RESERVE_BYTES, ballast_bytes: int = BALLAST_BYTES) -> None:
        self._folder = path.parent
        self._ballast = path.with_name(path.name + ".ballast")
        self._reserve_bytes = reserve_bytes
        self._ballast_bytes = ballast_bytes

    def may_accept(self) -> bool:
        """The ballast is there, and the reserve beside it is free."""
        return self._held() and self._free() >= self._reserve_bytes

    def hold(self) -> bool:
        """Take the ballast, where that leaves the reserve free. Raises nothing for a full disk: False.

        Crash: a ballast that is cut short, made whole next time.
        """
        if self._held():
            return True
        if self._free() < self._reserve_bytes + self._ballast_bytes:
            return False
        try:
            with self._ballast.open("wb") as file:
                for _ in range(0, self._ballast_bytes, len(BLOCK)):
                    file.write(BLOCK)
        except OSError:
            self.give_up()
            return False
        return True

    def give_up(self) -> bool:
        """False: there was none to give up."""
        try:
            self._ballast.unlink()
        except OSError:
            return False
        return True

    def _held(self) -> bool:
        try:
            return self._ballast.stat().st_size >= self._ballast_bytes
        except OSError:
            return False

    def _free(self) -> int:
        return _free(self._folder)


def leave_room(place: Path | int, more: int) -> None:
    """Before `more` bytes of inputs or outputs are written there. Raises OSError, as a full disk does."""
    if _free(place) - more < FILES_LEAVE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _free(place: Path | int) -> int:
    facts = os.statvfs(place)
    return facts.f_bavail * facts.f_frsize
