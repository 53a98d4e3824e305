"""The audit log: one JSON object a line for every decision about somebody, only ever added to.

`at` Unix seconds, `who` the site or local user, `what` was asked, `about` which job, pool or file, `verdict` yes or no,
`why`. Whatever a stranger wrote is ASCII with escapes in it, and cut at MAX_TEXT: no line can be forged by one.

Crash: whole lines, and perhaps half of the last; the next line then begins on a line of its own.
"""

import json
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from federation.errors import ConfigError, FedError
from federation.pki.files import check_place

log = logging.getLogger(__name__)

MAX_TEXT = 1024  # characters of one field
MAX_BYTES = 64 << 20  # of one file; then it becomes audit.log.1
KEEP = 8  # older files
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    at: float
    who: str
    what: str
    about: str | bytes = ""
    verdict: bool
    why: str = ""


class Audit:
    """One file. What could not be written is counted, and told in the next line that is."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> None:
        """Raises ConfigError for a place that others can write, or read."""
        check_place(path)
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self.lost = 0  # entries since the last that was written
        self._torn = b""  # what ends the half line that a full disk left
        self._handle = _open(path)

    def write(self, entry: Entry) -> bool:
        """Is it in the file? It survives this process; not the machine, for some seconds."""
        line = json.dumps(_plain(entry) | ({"lost": self.lost} if self.lost else {})).encode("ascii") + b"\n"
        try:
            self._make_room(len(line) + 1)
            written = os.write(self._handle, self._torn + line)
            if written == len(self._torn + line):
                self.lost, self._torn = 0, b""
                return True
            self._torn = b"\n"
        except (OSError, FedError) as error:
            if not self.lost:
                log.error("audit.lost", extra={"path": str(self._path), "why": str(error)})  # noqa: TRY400
        self.lost += 1
        return False

    def close(self) -> None:
        os.close(self._handle)

    def _make_room(self, wanted: int) -> None:
        if os.fstat(self._handle).st_size + wanted <= self._max_bytes:
            return
        os.fsync(self._handle)
        new = self._path.with_name(f"{self._path.name}.new")
        fresh = _open(new)
        try:
            if self._path.exists():
                self._put_aside()
            new.rename(self._path)
        except OSError:
            os.close(fresh)
            raise
        os.close(self._handle)
        self._handle = fresh

    def _put_aside(self) -> None:
        """Where this fails half-way a number is free: next time none is moved beyond it."""
        numbers = range(1, self._keep)
        free = next((nth for nth in numbers if not self._numbered(nth).exists()), self._keep)
        for nth in range(free - 1, 0, -1):
            self._numbered(nth).rename(self._numbered(nth + 1))
        self._path.rename(self._numbered(1))

    def _numbered(self, nth: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{nth}")


def _plain(entry: Entry) -> dict[str, object]:
    return {
        "at": entry.at,
        "who": _text(entry.who),
        "what": _text(entry.what),
        "about": _text(entry.about),
        "verdict": entry.verdict,
        "why": _text(entry.why),
    }


def _text(value: str | bytes) -> str:
    """Bytes that are no text become \\xNN; JSON escapes the rest."""
    text = value[: 4 * MAX_TEXT].decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def _open(path: Path) -> int:
    try:
        handle = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        raise ConfigError(f"can't open the audit log {path}: {error.strerror}") from None
    facts = os.fstat(handle)
    wrong = ""
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
        wrong = "is no file of its own"
    elif stat.S_IMODE(facts.st_mode) & 0o077:
        wrong = "can be read by others"
    if wrong:
        os.close(handle)
        raise ConfigError(f"the audit log {path} {wrong}", hint=f"chmod 600 {path}, or move it away")
    if facts.st_size and os.pread(handle, 1, facts.st_size - 1) != b"\n":
        os.write(handle, b"\n")
    return handle
