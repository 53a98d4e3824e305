"""Bursts in the site's journal. Synchronous: used inside a transaction."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from sqlite3 import Row
from uuid import UUID

from federation.model.states import Origin
from federation.overflow.burst import Burst, Phase
from federation.store.store import Store

MOST_OPEN = 20_000  # not closed at once; more are looked at once some have closed
MOST_LISTED = 10_000
MOST_LOOKED_AT = 20_000  # newest ones among which those of one user are looked for
MOST_DROPPED = 500  # of one transaction
OVER = frozenset({Origin.RESULTS_PENDING, Origin.DONE})
"""States of the federation's job in which its site has confirmed that nothing of it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FarJob:
    """How far what runs elsewhere, or may, has come."""

    pool: str  # SITE/POOL
    sent: bool  # the pool's room counts it
    begun: bool  # the pool's slices count it


def open_bursts(store: Store) -> list[Burst]:
    """All that are not CLOSED, oldest first."""
    return [_burst(row) for row in store.rows("open_bursts", most=MOST_OPEN)]


def burst_of(store: Store, job_id: int) -> Burst | None:
    """The one of this id that is not CLOSED: there is at most one."""
    rows = store.rows("open_burst_of", job_id=job_id)
    return _burst(rows[0]) if rows else None


def by_token(store: Store, token: UUID) -> Burst | None:
    rows = store.rows("burst", token=token.bytes)
    return _burst(rows[0]) if rows else None


def bursts_of(store: Store, job_id: int) -> list[Burst]:
    """Every one that is remembered of this id, newest first: also of other jobs that had it."""
    return [_burst(row) for row in store.rows("bursts_of", job_id=job_id, most=MOST_LISTED)]


def bursts_of_array(store: Store, array_id: int, task_id: int = -1) -> list[Burst]:
    """Of all of an array's elements, or of one."""
    rows = store.rows("bursts_of_array", array_id=array_id, task_id=task_id, most=MOST_LISTED)
    return [_burst(row) for row in rows]


def newest_bursts(store: Store, user: str, most: int) -> list[Burst]:
    """Of one user; "": of all. Bound: only MOST_LOOKED_AT of all users' are looked at."""
    rows = store.rows("newest_bursts", user=user, most=min(most, MOST_LISTED), looked=MOST_LOOKED_AT)
    return [_burst(row) for row in rows]


def others_newest(store: Store, user: str) -> int:
    """How many of other users there are among those."""
    return int(store.rows("others_newest_bursts", user=user, looked=MOST_LOOKED_AT)[0]["n"])


def names(store: Store, tokens: Iterable[UUID]) -> dict[UUID, str]:
    """What Slurm's commands call those of these that are jobs of Slurm's."""
    found = (by_token(store, token) for token in tokens)
    return {one.token: one.name for one in found if one is not None}


def written(store: Store, tokens: Collection[UUID]) -> set[UUID]:
    """Of these, those that are over and whose output is all in the job's own files."""
    found = [by_token(store, token) for token in tokens]
    return {one.token for one in found if one is not None and one.phase is Phase.CLOSED and one.written}


def far_jobs(store: Store) -> Mapping[int, FarJob]:
    """Of all that are not CLOSED, by JobId."""
    return {
        row["job_id"]: FarJob(
            pool=row["pool"],
            sent=row["state"] not in (None, Origin.QUEUED),
            begun=row["started_at"] is not None or row["state"] in OVER,
        )
        for row in store.rows("bursts_far", most=MOST_OPEN)
    }


def save(store: Store, burst: Burst) -> None:
    """Raises sqlite3.IntegrityError for a second one of an id that is not CLOSED."""
    store.write("save_burst", _row(burst))


def drop_closed(store: Store, before: float) -> int:
    """Forget some that closed before this. Tells how many; 0: there is none left."""
    return store.write("drop_closed_bursts", {"before": before, "most": MOST_DROPPED})


def _row(burst: Burst) -> tuple[object, ...]:
    """In the order of the table's columns, which is that of the record's fields."""
    stored = {"token": burst.token.bytes, "phase": burst.phase.value, "partitions": ",".join(burst.partitions)}
    return tuple(stored.get(one.name, getattr(burst, one.name)) for one in fields(Burst))


def _burst(row: Row) -> Burst:
    facts = dict(zip(row.keys(), row, strict=True))
    names = facts["partitions"]
    return Burst(
        **facts
        | {
            "token": UUID(bytes=facts["token"]),
            "phase": Phase(facts["phase"]),
            "suspended": bool(facts["suspended"]),
            "written": bool(facts["written"]),
            "partitions": tuple(names.split(",")) if names else (),
        }
    )
