"""What was widened here, in the site's journal, and what it costs. Synchronous, as `bursts` is.

A row outlives its job by the day whose money it counts for: which partition a job asked for is nowhere in Slurm once it
runs in another.
"""

from collections.abc import Collection, Iterable
from typing import Any

from federation.overflow.facts import Widened
from federation.store.store import Store

MOST = 100_000  # rows; what is widened beyond them is taken for what its user asked for
KEEP_S = 2 * 86_400.0  # after this a job that neither waits nor runs is forgotten


def widened(store: Store) -> dict[int, Widened]:
    """By the id of the job or its array."""
    return {row["root"]: _widened(dict(row)) for row in store.rows("widened", most=MOST)}


def widened_as(store: Store, root: int) -> Widened | None:
    """One of them."""
    rows = store.rows("widened_as", root=root)
    return _widened(dict(rows[0])) if rows else None


def save(store: Store, rows: Iterable[Widened]) -> None:
    """One of the same job stays as it is: what it had before it was first widened is what it is given back."""
    known = widened(store)
    for one in rows:
        before = known.get(one.root)
        if before is None or (before.uid, before.submitted_at) != (one.uid, one.submitted_at):
            store.write("save_widened", _values(one))


def drop(store: Store, *, keep: Collection[int], now: float) -> int:
    """Forget what is old and not to be kept. Tells how many."""
    old = [one.root for one in widened(store).values() if one.at < now - KEEP_S and one.root not in keep]
    return sum(store.write("drop_widened", {"root": root}) for root in old)


def spent(store: Store, day: int) -> dict[str, float]:
    """By rule: what its jobs have cost or reserved on this day (since 1970, of UTC)."""
    return {row["rule"]: row["money"] for row in store.rows("spent_by_rule", day=day)}


def booked(store: Store) -> frozenset[int]:
    """Ids of jobs that run elsewhere, and whose price is in what was spent."""
    return frozenset(row["job_id"] for row in store.rows("booked_jobs"))


def _values(one: Widened) -> dict[str, Any]:
    return {
        "root": one.root,
        "submitted_at": one.submitted_at,
        "uid": one.uid,
        "rule": one.rule,
        "partitions": ",".join(one.partitions),
        "price": one.price,
        "account": one.account,
        "at": one.at,
    }


def _widened(row: dict[str, Any]) -> Widened:
    return Widened(**row | {"partitions": tuple(row["partitions"].split(","))})
