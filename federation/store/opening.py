"""Opening a journal: what is not safe to write to, or not understood, is refused with what to do about it."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from federation.errors import StoreUnfit
from federation.store.queries import migrations
from federation.store.transactions import REPAIR

APPLICATION_ID = 0x66656401  # tells our file from any other SQLite file
BUSY_S = 2.0  # another daemon on the same journal is told after this
CHECKPOINT_PAGES = 200  # of the log, brought into the database at once: the next commits wait for that
WAL_KEPT_BYTES = 64 << 20
NETWORKED = frozenset({"nfs", "nfs4", "lustre", "cifs", "smb3", "9p", "ceph", "gpfs", "beegfs", "afs", "fuse.sshfs"})
"""File systems on which the write-ahead log's shared memory or fsync can't be trusted."""

At = Callable[[str], None]
"""Called with a place's name wherever something is about to become lasting, and when it has: a test dies there."""


def nowhere(_place: str) -> None:
    """In service nobody dies on purpose."""


def connect(path: Path, *, at: At = nowhere, mountinfo: Path = Path("/proc/self/mountinfo")) -> sqlite3.Connection:
    """Open or make the file, mode 0600, and bring it to the present version.

    Raises StoreUnfit. Crash: the old version or the new one, whole.
    """
    folder = path.parent
    if (kind := filesystem_of(folder.resolve(), mountinfo.read_text())) in NETWORKED:
        raise StoreUnfit(
            f"{folder} is on {kind}: a journal there can be damaged", hint="set state_dir to a folder on a local disk"
        )
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return _opened(path, at)
    except (sqlite3.DatabaseError, OSError) as error:
        raise _unfit(path, error) from error


def in_memory() -> sqlite3.Connection:
    """The same without a file: for simulations."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    _migrate(connection, Path(":memory:"), nowhere)
    return connection


def _opened(path: Path, at: At) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
    try:
        connection.row_factory = sqlite3.Row
        _settle(connection, path)
        _migrate(connection, path, at)
        _checked(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _settle(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    if mode != "wal" or synchronous != 2:
        raise StoreUnfit(
            f"{path}: this SQLite gives no write-ahead log with synchronous=FULL (got {mode}, {synchronous})"
        )
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")


def _migrate(connection: sqlite3.Connection, path: Path, at: At) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (ours,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and ours != APPLICATION_ID:
        raise StoreUnfit(f"{path} is another program's file", hint="set state_dir to a folder of the daemon's own")
    if version > len(migrations()):
        raise StoreUnfit(
            f"{path} is of version {version}, and this release knows {len(migrations())}",
            hint="start the newer release again, or put back the journal that was saved before the upgrade",
        )
    for number, text in enumerate(migrations()[version:], version + 1):
        at(f"migration {number}: before")
        connection.executescript(
            f"BEGIN IMMEDIATE; {text} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number}; COMMIT;"
        )
        at(f"migration {number}: after")


def _checked(connection: sqlite3.Connection, path: Path) -> None:
    """Every table and index can be read at its root: what a torn or overwritten file does not survive.

    `whole` reads it all; at 1,000,000 jobs that takes too long for each start.
    """
    connection.execute("BEGIN IMMEDIATE")
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        connection.execute(f'SELECT * FROM "{name}" LIMIT 1').fetchall()  # noqa: S608 - names from our own schema
    connection.execute("COMMIT")
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'jobs'").fetchone():
        raise StoreUnfit(f"{path} lacks its tables", hint=REPAIR)


def whole(path: Path) -> str:
    """Read all of a journal that no daemon has open: what is wrong with it, or "". One that is not there is fine.

    Raises StoreUnfit: it can't be read now.
    """
    if not path.exists():
        return ""
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if (unfit := _unfit(path, error)).hint != REPAIR:
            raise unfit from error
        return str(unfit)
    finally:
        connection.close()
    return "" if found == "ok" else str(_unfit(path, sqlite3.DatabaseError(found)))


def _unfit(path: Path, error: Exception) -> StoreUnfit:
    text = str(error)
    if "locked" in text:
        return StoreUnfit(f"{path} is open in another daemon", hint="one daemon a journal: stop the other one")
    if isinstance(error, OSError) or "unable to open" in text or "readonly" in text:
        return StoreUnfit(f"{path} can't be opened: {text}", hint="the daemon's user has to own its state_dir")
    if "full" in text:
        return StoreUnfit(f"{path} can't be opened: {text}", hint="make room on its disk")
    return StoreUnfit(f"{path} is damaged: {text}", hint=REPAIR)


def filesystem_of(folder: Path, mountinfo: str) -> str:
    """The type of the file system that a resolved folder is on. Source: proc_pid_mountinfo(5)."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mounted = Path(_unescaped(before.split()[4]))
        if folder.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, kind = len(mounted.parts), after.split()[0]
    return kind


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
