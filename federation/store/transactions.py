"""Transactions on one SQLite connection: all of one or nothing, several together, and the number of each change."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from federation.errors import StoreError, StoreFull, StoreUnfit
from federation.store.queries import queries

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
REPAIR = "stop the daemon: fed doctor reads it all then; docs/federation_jobs.md says what becomes of its jobs"


class Transactions:
    """What a store's records are read and written through. Used by one transaction at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._sql = queries()
        self._revision: int | None = None  # the newest, if a change got one in this transaction

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing. Raises StoreFull; Crash: the same."""
        self.begin()
        try:
            yield
            self.close_up()
            self.commit()
        except BaseException:
            self.roll_back()
            raise
        self.committed()

    def begin(self) -> None:
        """A transaction in steps, of which one waits for the disk: `begin`, `close_up`, `commit`, `committed`.

        When one of them raises, `roll_back`.
        """
        self._execute("BEGIN IMMEDIATE")

    def close_up(self) -> None:
        self._write_revision()

    def commit(self) -> None:
        """What takes the disk's time. Raises StoreFull."""
        self._execute("COMMIT")

    def committed(self) -> None:
        """What is kept for one transaction may go."""

    @contextmanager
    def part(self) -> Iterator[None]:
        """One of several transactions that become durable together: undone alone when it fails."""
        self._execute("SAVEPOINT part")
        revision, before = self._revision, self.changes()
        try:
            yield
        except BaseException:
            if self.changes() != before:
                self._forget_all()
            self._revision = revision
            if self._connection.in_transaction:
                self._execute("ROLLBACK TO part")
                self._execute("RELEASE part")
            raise
        self._execute("RELEASE part")

    def roll_back(self) -> None:
        self._forget_all()
        if self._connection.in_transaction:
            self._execute("ROLLBACK")

    def _forget_all(self) -> None:
        """What is kept in memory may not be in the file."""
        self._revision = None

    def changes(self) -> int:
        """Rows written since it was opened: whether a transaction changed anything."""
        return self._connection.total_changes

    def rows(self, query: str, **values: Any) -> list[sqlite3.Row]:
        """For records of other packages: what a named query tells."""
        return self._all(query, **values)

    def write(self, query: str, values: Mapping[str, Any] | tuple[Any, ...]) -> int:
        """Likewise: how many rows a named statement wrote."""
        return self._execute(self._sql[query], values).rowcount

    def close(self) -> None:
        self._connection.close()

    def _next_revision(self) -> int:
        """Written once a transaction, before it is durable."""
        if self._revision is None:
            row = self._one("meta", name="revision")
            self._revision = row["value"] if row else 0
        self._revision += 1
        revision = self._revision
        if not self._connection.in_transaction:
            self._write_revision()
        return revision

    def _write_revision(self) -> None:
        if self._revision is not None:
            self._run("set_meta", name="revision", value=self._revision)
            self._revision = None

    def _execute(self, sql: str, values: Mapping[str, Any] | tuple[Any, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._connection.execute(sql, values)
        except sqlite3.DatabaseError as error:
            _tell(error)

    def _run(self, query: str, **values: Any) -> int:
        return self._execute(self._sql[query], values).rowcount

    def _one(self, query: str, **values: Any) -> sqlite3.Row | None:
        cursor = self._execute(self._sql[query], values)
        try:
            row: sqlite3.Row | None = cursor.fetchone()
        except sqlite3.DatabaseError as error:
            _tell(error)
        return row

    def _all(self, query: str, **values: Any) -> list[sqlite3.Row]:
        cursor = self._execute(self._sql[query], values)
        try:
            return cursor.fetchall()
        except sqlite3.DatabaseError as error:
            _tell(error)


def _tell(error: sqlite3.DatabaseError) -> NoReturn:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in DAMAGED:
        raise StoreUnfit(f"the journal is damaged: {error}", hint=REPAIR) from error
    if not isinstance(error, sqlite3.OperationalError):
        raise error
    if code == sqlite3.SQLITE_FULL:
        raise StoreFull("the journal has no room", hint="make room on the disk of state_dir") from error
    raise StoreError(f"the journal can't be used: {error}", hint="look at the disk of state_dir") from error
