"""What a transaction may do to a site's journal. Synchronous: used by one transaction at a time."""

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

from federation.model.job import Attempt, Job
from federation.model.spec import JobSpec
from federation.model.states import OPEN, Origin
from federation.model.token import Key
from federation.store import convert
from federation.store.recent import Recent
from federation.store.sums import Sums

T = TypeVar("T")

LATEST_S = 330.0  # furthest ahead that anything is put due; further: the calendar was set back

MOST_LOOKED_AT = 20_000  # newest jobs among which those of one user are looked for


class Kind(StrEnum):
    CANCEL = "cancel"
    SIGNAL = "signal"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What an origin owes a target until it is confirmed."""

    key: Key
    kind: Kind
    site: str
    pool: str
    number: int = 0  # of a signal
    value: int = 0  # a signal
    due_at: float
    tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    site: str
    journal: UUID
    cursor: int


class Store(Sums):
    """Records by name. What is kept in memory (counts of open ones, those of a moment ago) is read anew after anything
    was rolled back.
    """

    def __init__(self, connection: sqlite3.Connection, *, journal: UUID, may_accept: Callable[[], bool] = lambda: True):
        """`journal` names a file that has no name yet. `may_accept` tells whether there is room for new jobs."""
        super().__init__(connection)
        self._jobs: Counter[tuple[Origin, str, str]] | None = None
        self._attempts: Counter[tuple[str, str]] | None = None
        self._done: int | None = None
        self._recent_jobs: Recent[UUID, Job] = Recent()
        self._recent_attempts: Recent[Key, Attempt] = Recent()
        self._followed: dict[str, Followed] = {}
        self._new_specs: dict[UUID | Key, JobSpec] = {}  # of this transaction
        self.watched: Container[UUID] = frozenset()  # jobs, and attempts, of which `take_saved` tells
        self.watched_attempts: Container[Key] = frozenset()
        self._saved: list[Job | Key] = []
        self._saved_before = 0  # this transaction
        self.may_accept = may_accept
        with self.transaction():
            found = self._one("meta", name="journal")
            if found is None:
                self._run("set_meta", name="journal", value=journal.bytes)
                self._run("set_meta", name="revision", value=0)
            self.journal = journal if found is None else UUID(bytes=found["value"])

    @property
    def draining(self) -> bool:
        """No new jobs, of users or of peers."""
        found = self._one("meta", name="draining")
        return found is not None and bool(found["value"])

    def drain(self, on: bool) -> None:
        self._run("set_meta", name="draining", value=int(on))

    def _forget_all(self) -> None:
        super()._forget_all()
        self._jobs = self._attempts = self._done = None
        self._recent_jobs.clear()
        self._recent_attempts.clear()
        self._followed.clear()
        self._new_specs.clear()

    def committed(self) -> None:
        self._new_specs.clear()

    @contextmanager
    def part(self) -> Iterator[None]:
        before = len(self._saved)
        try:
            with super().part():
                yield
        except BaseException:
            del self._saved[before:]
            self._followed.clear()  # one that is not lasting may be another in memory
            raise

    def begin(self) -> None:
        self._saved_before = len(self._saved)
        super().begin()

    def roll_back(self) -> None:
        del self._saved[self._saved_before :]
        super().roll_back()

    def take_saved(self) -> list[Job | Key]:
        """What is watched and has changed since this was last asked: jobs as they were then, and attempts whose state
        is another.
        """
        found, self._saved = self._saved, []
        return found

    # -- the origin's records

    def job(self, token: UUID) -> Job | None:
        if (known := self._recent_jobs.get(token)) is not None:
            return known
        row = self._one("job", token=token.bytes)
        if row is None:
            return None
        known = convert.job_from_row(row)
        self._recent_jobs.put(token, known)
        return known

    def open_jobs(self, user: str, most: int) -> list[Job]:
        """Newest first. Of one user; "": of all."""
        return [convert.job_from_row(row) for row in self._all("open_jobs", user=user, most=most)]

    def newest_jobs(self, user: str, most: int) -> list[Job]:
        """The same, with those that are done. Bound: only MOST_LOOKED_AT of all users' are looked at."""
        rows = self._all("newest_jobs", user=user, most=most, looked=MOST_LOOKED_AT)
        return [convert.job_from_row(row) for row in rows]

    def others(self, user: str, *, done: bool) -> int:
        """How many of other users would be among open_jobs or, with those that are done, newest_jobs."""
        if not done:
            return int(self._all("others_open_jobs", user=user)[0]["n"])
        return int(self._all("others_newest_jobs", user=user, looked=MOST_LOOKED_AT)[0]["n"])

    def jobs_between(self, low: UUID, high: UUID, most: int) -> list[Job]:
        rows = self._all("jobs_between", low=low.bytes, high=high.bytes, most=most)
        return [convert.job_from_row(row) for row in rows]

    def add_job(self, job: Job, spec: JobSpec) -> None:
        self._run("add_spec", token=job.token.bytes, spec=convert.spec_to_blob(spec))
        self._new_specs[job.token] = spec
        self.save_job(job, was=None)

    def save_job(self, job: Job, *, was: Job | None) -> None:
        counts = self.jobs()
        if was is not None and was.state is not Origin.DONE:
            counts[was.state, was.site, was.pool] -= 1
        if job.state is not Origin.DONE:
            counts[job.state, job.site, job.pool] += 1
        elif self._done is not None and (was is None or was.state is not Origin.DONE):
            self._done += 1
        self._count_cost(job, was)
        self._execute(self._sql["save_job"], convert.job_to_row(job))
        self._recent_jobs.put(job.token, job)
        if job.token in self.watched:
            self._saved.append(job)

    def spec(self, token: UUID) -> JobSpec | None:
        if (known := self._new_specs.get(token)) is not None:
            return known
        row = self._one("spec", token=token.bytes)
        return None if row is None else convert.spec_from_blob(row["spec"])

    def drop_spec(self, token: UUID) -> None:
        self._run("drop_spec", token=token.bytes)
        self._new_specs.pop(token, None)

    def due_jobs(self, now: float, most: int) -> list[Job]:
        rows = self._all("due_jobs", now=now, latest=now + LATEST_S, most=most)
        found = [self.job(UUID(bytes=row["token"])) for row in rows]
        return [job for job in found if job is not None]

    def jobs(self) -> Counter[tuple[Origin, str, str]]:
        """How many jobs that are not done are in each (state, site, pool)."""
        if self._jobs is None:
            rows = self._all("count_jobs")
            self._jobs = Counter({(Origin(row["state"]), row["site"], row["pool"]): row["n"] for row in rows})
        return self._jobs

    def at_target(self, site: str, after: UUID, most: int) -> list[Job]:
        """Jobs that a site may have, or the output of, in the order of their tokens, after this one."""
        rows = self._all("at_target", site=site, after=after.bytes, most=most)
        return [convert.job_from_row(row) for row in rows]

    def leases_over_at(self, site: str, silence_s: float, most: int) -> list[Job]:
        """Jobs that a silent site may have, and that are to be replaced then."""
        rows = self._all("leases_over_at", site=site, silence=silence_s, most=most)
        return [convert.job_from_row(row) for row in rows]

    def wake_site(self, site: str, now: float) -> None:
        """All that waits for this site is due."""
        self._recent_jobs.clear()
        self._run("wake_site", site=site, now=now)
        self._run("wake_commands", site=site, now=now)

    def wake_queued(self, now: float, most: int) -> int:
        """Jobs that wait for a pool are due: those that were looked at longest ago. Tells how many."""
        self._recent_jobs.clear()
        return self._run("wake_queued", now=now, most=most)

    def forget_done(self, before: float, keep: int, most: int) -> int:
        """Drop jobs that ended before this, and the oldest of more than `keep`; at most so many now. Tells how many."""
        self._recent_jobs.clear()
        if self._done is None:
            row = self._one("count_done_jobs")
            self._done = row["n"] if row else 0
        dropped = self._run("drop_done_jobs", before=before, most=most)
        too_many = min(self._done - keep, most) - dropped
        if too_many > 0:
            dropped += self._run("drop_done_jobs", before=math.inf, most=too_many)
        self._done -= dropped
        return dropped

    # -- what it owes

    def save_command(self, command: Command) -> None:
        self._run(
            "save_command",
            token=command.key.token.bytes,
            attempt=command.key.attempt,
            kind=command.kind.value,
            number=command.number,
            value=command.value,
            site=command.site,
            pool=command.pool,
            due_at=command.due_at,
            tries=command.tries,
        )

    def due_commands(self, now: float, most: int) -> list[Command]:
        return [_command(row) for row in self._all("due_commands", now=now, latest=now + LATEST_S, most=most)]

    def commands_of(self, key: Key) -> list[Command]:
        return [_command(row) for row in self._all("commands_of", token=key.token.bytes, attempt=key.attempt)]

    def drop_command(self, key: Key, kind: Kind, upto: int = 0) -> None:
        self._run("drop_command", token=key.token.bytes, attempt=key.attempt, kind=kind.value, number=upto)

    def followed(self, site: str) -> Followed | None:
        if (known := self._followed.get(site)) is not None:
            return known
        row = self._one("followed", site=site)
        return None if row is None else Followed(site=site, journal=UUID(bytes=row["journal"]), cursor=row["cursor"])

    def save_followed(self, followed: Followed, *, lasting: bool = True) -> None:
        """Not `lasting`: until something is undone, or this process ends. Then it is followed from before again."""
        self._followed[followed.site] = followed
        if lasting:
            self._run("save_followed", site=followed.site, journal=followed.journal.bytes, cursor=followed.cursor)

    # -- the target's records

    def attempt(self, key: Key) -> Attempt | None:
        if (known := self._recent_attempts.get(key)) is not None:
            return known
        row = self._one("attempt", token=key.token.bytes, attempt=key.attempt)
        if row is None:
            return None
        known = convert.attempt_from_row(row)
        self._recent_attempts.put(key, known)
        return known

    def add_attempt(self, attempt: Attempt, spec: JobSpec, *, was: Attempt | None = None) -> Attempt:
        """`was`: it was there already, without a spec."""
        blob = convert.spec_to_blob(spec)
        self._run("add_attempt_spec", token=attempt.key.token.bytes, attempt=attempt.key.attempt, spec=blob)
        self._new_specs[attempt.key] = spec
        return self.save_attempt(attempt, was=was, told=True)

    def save_attempt(self, attempt: Attempt, *, was: Attempt | None, told: bool) -> Attempt:
        """With `told` it gets the next revision, so that its origin hears of it. Tells what was saved."""
        counts, place = self.attempts(), (attempt.pool, attempt.origin)
        counts[place] += (attempt.state in OPEN) - (was is not None and was.state in OPEN)
        self._count_held(attempt, was)
        if told:
            attempt = replace(attempt, revision=self._next_revision())
        self._execute(self._sql["save_attempt"], convert.attempt_to_row(attempt))
        self._recent_attempts.put(attempt.key, attempt)
        if attempt.key in self.watched_attempts and (was is None or was.state is not attempt.state):
            self._saved.append(attempt.key)
        return attempt

    def attempt_spec(self, key: Key) -> JobSpec | None:
        if (known := self._new_specs.get(key)) is not None:
            return known
        row = self._one("attempt_spec", token=key.token.bytes, attempt=key.attempt)
        return None if row is None else convert.spec_from_blob(row["spec"])

    def drop_attempt_spec(self, key: Key) -> None:
        self._run("drop_attempt_spec", token=key.token.bytes, attempt=key.attempt)
        self._new_specs.pop(key, None)

    def due_attempts(self, now: float, most: int) -> list[Attempt]:
        rows = self._all("due_attempts", now=now, latest=now + LATEST_S, most=most)
        found = [self.attempt(Key(UUID(bytes=row["token"]), row["attempt"])) for row in rows]
        return [attempt for attempt in found if attempt is not None]

    def attempts_since(self, origin: str, after: int, most: int) -> list[Attempt]:
        rows = self._all("attempts_since", origin=origin, after=after, most=most)
        return [convert.attempt_from_row(row) for row in rows]

    def attempts_after(self, after: Key, most: int) -> list[Attempt]:
        """Of all that are remembered, in the order of their keys."""
        rows = self._all("attempts_after", token=after.token.bytes, attempt=after.attempt, most=most)
        return [convert.attempt_from_row(row) for row in rows]

    def attempts(self) -> Counter[tuple[str, str]]:
        """How many attempts take room, for each (pool, origin)."""
        if self._attempts is None:
            rows = self._all("count_attempts")
            self._attempts = Counter({(row["pool"], row["origin"]): row["n"] for row in rows})
        return self._attempts

    def leases_over_from(self, origin: str, silence_s: float, most: int) -> list[Attempt]:
        rows = self._all("leases_over_from", origin=origin, silence=silence_s, most=most)
        return [convert.attempt_from_row(row) for row in rows]

    def has_lease(self, origin: str) -> bool:
        return self._one("has_lease", origin=origin) is not None

    def heard(self) -> dict[str, float]:
        """When each origin was heard, in Unix seconds, as it was last written down."""
        return {row["origin"]: row["at"] for row in self._all("heard")}

    def save_heard(self, origin: str, at: float) -> None:
        self._run("save_heard", origin=origin, at=at)

    def wake_attempts(self, now: float) -> None:
        """All that a backend may have is to be looked at."""
        self._recent_attempts.clear()
        self._run("wake_attempts", now=now)

    def wake_waiting(self, pool: str, now: float, most: int) -> int:
        """Attempts that wait to be handed to a pool are due: the next ones. Tells how many."""
        self._recent_attempts.clear()
        return self._run("wake_waiting", pool=pool, now=now, most=most)

    def forget_released(self, before: float, nobodys_before: float, most: int) -> int:
        """Drop tombstones older than this. Until then a late duplicate of a submit finds them. Tells how many.

        `nobodys_before`: those of attempts that ran as nobody.
        """
        self._recent_attempts.clear()
        nobodys = self._run("drop_nobodys", before=nobodys_before, most=most)
        return nobodys + self._run("drop_released", before=before, most=most)


def _command(row: sqlite3.Row) -> Command:
    return Command(
        key=Key(UUID(bytes=row["token"]), row["attempt"]),
        kind=Kind(row["kind"]),
        site=row["site"],
        pool=row["pool"],
        number=row["number"],
        value=row["value"],
        due_at=row["due_at"],
        tries=row["tries"],
    )
