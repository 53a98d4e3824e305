"""Journals of a test's own, and what they are filled with."""

import sqlite3
import weakref
from pathlib import Path
from uuid import UUID

from federation.model.job import Job
from federation.model.spec import JobSpec, Lease
from federation.model.states import Origin
from federation.store.opening import connect
from federation.store.room import Room
from federation.store.store import Store
from federation.store.writer import Writer

JOURNAL = UUID(int=99)
SMALL = 1 << 20


def opened(path: Path) -> Store:
    connection = connect(path)
    store = Store(connection, journal=JOURNAL)
    weakref.finalize(store, connection.close)
    return store


def writer(path: Path, *, reserve_bytes: int = 0, ballast_bytes: int = SMALL) -> Writer:
    room = Room(path, reserve_bytes=reserve_bytes, ballast_bytes=ballast_bytes)
    return Writer(path, journal=JOURNAL, room=room)


def job(number: int, state: Origin = Origin.QUEUED, ended_at: float | None = None) -> Job:
    due_at = None if state is Origin.DONE else 0.0
    return Job(
        token=UUID(int=number),
        state=state,
        user="ann",
        lease=Lease(),
        accepted_at=0.0,
        due_at=due_at,
        ended_at=ended_at,
    )


def tear(path: Path) -> None:
    """Overwrite most of a journal that `add` made, and leave what is looked at when it is opened."""
    with sqlite3.connect(path) as connection:
        roots = {root for (root,) in connection.execute("SELECT rootpage FROM sqlite_schema")}
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    data = bytearray(path.read_bytes())
    pages = len(data) // size
    for page in range(pages // 2, pages):
        if page + 1 not in roots:
            data[page * size : (page + 1) * size] = b"\xff" * size
    path.write_bytes(data)


def add(store: Store, number: int, script: bytes = b"") -> None:
    store.add_job(job(number), JobSpec(user="ann", script=script))


def numbers(store: Store) -> set[int]:
    return {one.token.int for one in store.due_jobs(0.0, 100_000)}
