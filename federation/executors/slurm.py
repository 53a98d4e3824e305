"""A Slurm cluster as a pool, by its own commands, on this host or on one behind ssh.

A job carries its key as its name before it can exist, so it is found by it after any answer that did not come. What a
job left in its folder is believed first: its claim and its exit record. Slurm is asked about the others, by squeue and,
where there is one, by the accounting; and it is asked why a job did not end well, as only it knows of time limits,
memory and nodes.

Crash: whatever was begun is found by its name.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from federation.errors import FedError, NoRoom, OutcomeUnknown, Refused, Unavailable
from federation.executors import layout
from federation.executors import slurm_commands as commands
from federation.executors.host import Host
from federation.executors.layout import Ending, Record
from federation.executors.slices import Slices
from federation.executors.slurm_commands import Row, Where
from federation.executors.slurm_states import end_of, failed, is_over
from federation.executors.waits import Waits
from federation.model.messages import Room
from federation.model.spec import JobSpec
from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.ports import Place, Seen, Sight
from slurm_plugin.catalogue import DEFAULT_PATH
from slurm_plugin.errors import SlurmError, SlurmUnavailable, VgpuError

log = logging.getLogger(__name__)

SETTLES_S = 30.0  # how long Slurm may take to say why a job ended whose exit is on record
# Slurm says no, and may say yes later. Source: slurm_errno.c of 22.05 to 25.05.
_FULL = ("temporarily unable to accept", "policy (job submit limit", "maximum number of jobs")
_LATER = ("temporarily", "try again", "requested node configuration")
_SENT_BY_SLURM = frozenset({9, 15})  # to end a job; KILL is the kernel's too, when memory is short
_NO_ACCOUNTING = ("accounting storage is disabled", "accounting_storage/none")
_NO_JOB = ("invalid job id", "no job matching", "already completing")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPool:
    name: str
    where: Where = field(default_factory=Where)
    most_jobs: int = 10_000
    starts_in_s: float = 0.0  # what to tell of a job that does not fit now, where the queue does not
    price_per_hour: float = 0.0
    gpu_price_per_hour: float = 0.0
    catalogue: Path = Path(DEFAULT_PATH)  # of slices, where Slurm's commands run


class SlurmExecutor:
    """Implements `federation.ports.Executor` and `Places`."""

    def __init__(self, pool: SlurmPool, host: Host) -> None:
        self._pool, self._host = pool, host
        self._accounting = True  # until Slurm says that there is none
        self._slices = Slices(host, pool.catalogue, pool.where)
        self._waits = Waits(host, pool.where)

    async def room(self) -> Room:
        pool = self._pool
        try:
            room, gres = commands.parse_room(await self._run(commands.room(pool.where)), pool.name)
            offer = await self._slices.offer(gres)
        except ValueError as error:
            raise Unavailable(f"sinfo's answer can't be read: {error}") from None
        except VgpuError as error:
            raise Unavailable(str(error), hint=error.hint) from None
        return replace(
            room,
            catalogue=offer.catalogue,
            slices=offer.slices,
            complete=offer.complete,
            free_jobs=pool.most_jobs,
            starts_in_s=await self._waits.starts_in_s() or pool.starts_in_s,
            price_per_hour=pool.price_per_hour,
            gpu_price_per_hour=pool.gpu_price_per_hour,
        )

    async def place(self, key: Key, user: str) -> Place:
        return await self._host.place(key, user)

    async def submit(self, key: Key, spec: JobSpec, user: str) -> str:
        layout.check(spec)
        known = (await self._host.records([key])).get(key)
        if known is None:
            raise Unavailable("the job's folder can't be read")
        if known.claim is not None:
            return ""
        folder = await self._host.lay(key, spec, user)
        try:
            said = await self._host.run(commands.submit(key, spec, folder, self._pool.where), user)
        except SlurmUnavailable as error:
            raise OutcomeUnknown(str(error)) from None
        except SlurmError as error:
            raise _no(str(error).lower())(str(error), hint=error.hint) from None
        job_id = commands.parse_submit(said)
        if not job_id:
            raise OutcomeUnknown(f"sbatch said no id: {said[:200]!r}")
        log.info("slurm.submitted", extra={"job": str(key), "slurm_job": job_id, "user": user})
        return job_id

    # -- what is known of a job

    async def look(self, keys: Sequence[Key]) -> Mapping[Key, Seen]:
        records = await self._host.records(keys)
        asked = [key for key, record in records.items() if _wants_slurm(record)]
        rows: dict[Key, list[Row]] = {}
        unknown: set[Key] = set()
        for portion in layout.portions(asked, commands.NAMES_A_CALL):
            try:
                rows |= await self._rows(portion, records)
            except Unavailable as error:
                log.warning("slurm.not_seen", extra={"jobs": len(portion), "why": str(error)})
                unknown.update(portion)
        # A job may have claimed, and ended, since its folder was read: what Slurm said is newer.
        records = {**records, **await self._host.records([key for key in asked if key not in unknown])}
        seen = {}
        for key, record in records.items():
            try:
                one = None if key in unknown else await self._see(key, record, rows.get(key, []))
            except Unavailable as error:  # of its folder: the others are seen
                log.warning("slurm.not_seen", extra={"job": str(key), "why": str(error)})
                continue
            if one is not None:
                seen[key] = one
        return seen

    async def _rows(self, keys: Sequence[Key], records: Mapping[Key, Record]) -> dict[Key, list[Row]]:
        """Of the jobs with these names that are their owners'. Raises Unavailable."""
        rows = _owned(await self._read(commands.queue(keys)), records)
        rest = [key for key in keys if not any(not is_over(row.state) for row in rows.get(key, []))]
        if rest and self._accounting:
            since = min(records[key].since for key in rest) or time.time()
            for key, more in _owned(await self._read(commands.accounting(rest, since)), records).items():
                # An accounting that missed the end of a job calls it running for ever: squeue knows what lives.
                rows.setdefault(key, []).extend(row for row in more if is_over(row.state))
        return rows

    async def _read(self, argv: Sequence[str]) -> dict[Key, list[Row]]:
        try:
            return commands.parse_rows(await self._run(argv))
        except ValueError as error:
            raise Unavailable(f"{argv[0]}'s answer can't be read: {error}") from None

    async def _run(self, argv: Sequence[str]) -> str:
        try:
            return await self._host.run(argv)
        except SlurmError as error:
            said = str(error).lower()
            if argv[0] == "sacct" and any(text in said for text in _NO_ACCOUNTING):
                self._accounting = False
                return ""
            raise Unavailable(str(error), hint=error.hint) from None

    async def _see(self, key: Key, record: Record, rows: Sequence[Row]) -> Seen | None:
        """None: it can't be said yet."""
        live = [row for row in rows if not is_over(row.state)]
        over = [row for row in rows if is_over(row.state)]
        handle = max((row.job_id for row in live or over), key=lambda one: (len(one), one), default="")
        claim = record.claim
        if record.fenced:
            return _fenced(record)
        if claim is None:
            if live or all(map(_not_launched, over)):
                return Seen(sight=Sight.PENDING if live else Sight.ABSENT, handle=handle)
            return await self._ended_unclaimed(key, handle, over)
        started = Seen(sight=Sight.RUNNING, handle=handle, started_at=claim.at)
        if record.ending is None and live:
            return started
        outcome = _outcome(record, over)
        if outcome is None:
            return replace(started, sight=Sight.GONE)
        if live and not _plain(record) and time.time() < (outcome.ended_at or 0.0) + SETTLES_S:
            return started
        if not await self._host.here(key, outcome):
            return started
        return replace(started, sight=Sight.EXITED, outcome=outcome)

    async def _ended_unclaimed(self, key: Key, handle: str, over: Sequence[Row]) -> Seen | None:
        """Somebody cancelled it while it waited, or its node could not start it: so nobody may start it any more.

        Crash: how it ended stands in the claim, for whoever looks next.
        """
        end = next((end for row in over if (end := end_of(row.state)) is not None), End.LOST)
        if not await self._host.fence(key, end):
            return None
        why = f"Slurm says {over[-1].state.split(' ')[0]} of job {handle}, which never claimed its attempt"
        return Seen(sight=Sight.EXITED, handle=handle, outcome=Outcome(end=end, ended_at=time.time(), reason=why))

    # -- ending it

    async def fence(self, key: Key) -> bool:
        """What is fenced still waits in Slurm: it is taken out, as far as that is possible now."""
        record = (await self._host.records([key])).get(key)
        ours = await self._host.fence(key)
        if ours and record is not None and record.uid is not None:
            try:
                await self._end(key, record.uid)
            except Unavailable as error:
                log.warning("slurm.not_cancelled", extra={"job": str(key), "why": str(error)})
        return ours

    async def stop(self, key: Key) -> None:
        """Slurm asks all of the job's processes to end, and ends them after its KillWait. `look` verifies it."""
        record = (await self._host.records([key])).get(key)
        if record is not None and record.uid is not None and record.ending is None:
            await self._end(key, record.uid)

    async def _end(self, key: Key, uid: int) -> None:
        try:
            await self._host.run(commands.cancel(key, uid))
        except SlurmError as error:
            if not any(text in str(error).lower() for text in _NO_JOB):
                raise Unavailable(str(error), hint=error.hint) from None

    async def signal(self, key: Key, signal: int) -> None:
        record = (await self._host.records([key])).get(key)
        if record is None or record.uid is None or record.claim is None or record.ending is not None:
            return
        try:
            await self._host.run(commands.signal(key, record.uid, signal))
        except SlurmError as error:
            raise Unavailable(str(error), hint=error.hint) from None

    async def forget(self, key: Key) -> None:
        await self._host.forget(key)


def _fenced(record: Record) -> Seen:
    """It never runs: since somebody wanted that, or since Slurm had ended it."""
    if record.claim is None or record.claim.end is None:
        return Seen(sight=Sight.FENCED)
    why = f"Slurm said {record.claim.end.value} before it started"
    outcome = Outcome(end=record.claim.end, ended_at=record.since or time.time(), reason=why)
    return Seen(sight=Sight.EXITED, outcome=outcome)


def _wants_slurm(record: Record) -> bool:
    return not record.fenced and not (record.ending is not None and _plain(record))


def _plain(record: Record) -> bool:
    """Whether Slurm could add nothing to how it ended."""
    ending = record.ending
    return (
        ending is not None and not ending.by_term and (ending.outcome.end, ending.outcome.exit_code) == (End.EXITED, 0)
    )


def _outcome(record: Record, over: Sequence[Row]) -> Outcome | None:
    """How a claimed attempt ended, by its own record and by Slurm's word; None: neither says."""
    mine = [row for row in over if not _is_later(record, row)]
    taken_back, over = len(mine) < len(over), mine
    end = next((end for row in over if (end := end_of(row.state)) is not None), None)
    if record.ending is not None:
        outcome = record.ending.outcome
        if taken_back and record.ending.by_term:
            why = "its slurmctld forgot that it had started it, and ended it"
            return replace(outcome, end=End.LOST, reason=why)
        if any(failed(row.state) for row in over):
            return outcome  # what Slurm took back before it started has the same name, and another end
        if end is None or outcome.end is End.TIMEOUT or not _is_why(end, record.ending):
            return outcome
        return replace(outcome, end=end)
    if end is None or record.claim is None:
        return None
    out, err = record.sizes
    why = f"Slurm says {end.value}; it left no exit record"
    return Outcome(
        end=end, started_at=record.claim.at, ended_at=time.time(), stdout_size=out, stderr_size=err, reason=why
    )


def _is_later(record: Record, row: Row) -> bool:
    """A slurmctld that forgot the start of what claimed has ended that, and this is of its next start, which its slurmd
    refused and cancelled, or which found the claim. Other ends are never such a one's, however far clocks are apart.
    """
    at = record.claim.at if record.claim is not None else None
    return at is not None and row.started_at > at and end_of(row.state) in (None, End.CANCELLED)


def _not_launched(row: Row) -> bool:
    """Its slurmd could not start it, as one whose number is a forgotten job's, and cancelled it, or its wrapper could
    not claim it: nobody wanted that.

    Somebody who cancels a job does so while it waits, or runs; and what runs has claimed.
    """
    return row.placed and (end_of(row.state) is End.CANCELLED or failed(row.state))


def _is_why(end: End, ending: Ending) -> bool:
    """Whether it ended since Slurm ended it. What exited, or died by what Slurm never sends, was over before that: a
    slurmctld or a slurmd that was away calls it cancelled, or its node failed, for want of a better word.
    """
    return end is End.OUT_OF_MEMORY or ending.by_term or ending.outcome.signal in _SENT_BY_SLURM


def _no(said: str) -> type[FedError]:
    """What it is that sbatch did not take a job, by what it said in small letters."""
    if any(text in said for text in _FULL):
        return NoRoom
    return Unavailable if any(text in said for text in _LATER) else Refused


def _owned(rows: Mapping[Key, Sequence[Row]], records: Mapping[Key, Record]) -> dict[Key, list[Row]]:
    """Anybody may give a job any name."""
    return {key: [row for row in some if row.uid == records[key].uid] for key, some in rows.items() if key in records}
