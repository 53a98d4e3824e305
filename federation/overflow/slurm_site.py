"""What overflow asks and tells its own cluster's Slurm: each call one or two short commands.

No text of a user's can pass for a field: see `slurm_plugin.slurm.table`. AdminComment is read for our own note only.
"""

import logging
import re
from collections.abc import Sequence
from typing import Protocol

from federation.errors import Refused, Unavailable
from federation.executors.slurm_commands import seconds
from federation.overflow.burst import WAITING, Burst, SlurmJob, same_job
from federation.overflow.changes import Change, Changes, is_busy
from federation.overflow.notes import note_in, noted
from slurm_plugin.errors import ConfigError, SlurmError, SlurmUnavailable
from slurm_plugin.slurm import table
from slurm_plugin.slurm.hostlist import expand
from slurm_plugin.slurm.process import Runner, Runs, Site

log = logging.getLogger(__name__)

IDS_A_CALL = 5000  # of 10 digits: one argument may have 128 KiB
YEAR_S = 365 * 86_400  # what Slurm gives a job that it starts without a limit

FIELDS = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "UserID", "State", "Reason", "Partition", "NodeList", "RestartCnt"),
    *("SubmitTime", "StartTime", "TimeLimit", "BatchFlag", "Requeue", "admin_comment"),
)
_SIGNAL = re.compile(r"\s--signal[= ]((?:[RB]{1,2}:)?[A-Z0-9+]{1,16}(?:@\d{1,5})?)(?=\s|$)")
_SQUEUE = ("squeue", "--noheader", "--all", "--local")
_NO_COMMENT = "(null)"
_UNKNOWN_JOB = "invalid job id"
_NOTHING = frozenset({"", "N/A", "Unknown", "None", "(null)", "NONE"})
_NOT_SET = frozenset({"NOT_SET", "INVALID", *_NOTHING})


class SlurmSite(Protocol):
    """Every call raises Unavailable when slurmctld does not answer: that decides nothing. Refused: it said no.

    `name` is a job's as `SlurmJob.name` has it; Slurm's own forms such as `12_[3-7]` are names too.
    """

    async def job(self, job_id: int) -> SlurmJob | None:
        """None: slurmctld answers, and does not know it."""

    async def jobs(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        """Of these, those that slurmctld knows, by id, ended ones too."""

    async def jobs_on(self, partition: str) -> tuple[SlurmJob, ...]:
        """Those that wait for, or run in, this partition."""

    async def set_limit(self, name: str, limit_s: int) -> None:
        """Whole minutes. Of a job that runs, the end moves by as much; one in the past is now."""

    async def set_end(self, name: str, at: int) -> None:
        """When a job that runs is to end, Unix seconds. Refused: it does not run, or that is past."""

    async def requeue(self, job: SlurmJob) -> None:
        """Also one whose user said --no-requeue: that is about his script, which does not run again."""

    async def cancel(self, name: str) -> None: ...

    async def release(self, name: str) -> None: ...

    async def widen(self, names: Sequence[str], partitions: Sequence[str]) -> tuple[str, ...]:
        """Let them start in these only, the first ones first. Tells who could not be, such as one that has started."""

    async def note(self, burst: Burst, json_text: str) -> None:
        """Put this on its job, in the place of what overflow wrote there before; empty: nothing.

        Does nothing for a job that is over, which can't be changed, or where another has its id by now.
        """

    async def signal_request(self, job_id: int) -> str:
        """What the command line of its `sbatch` asked for with --signal, such as `USR1@60`; "": nothing that is known.

        slurmctld tells nobody: it is in slurmdbd's record of the job, where there is one.
        """


class OwnSlurm:
    """Implements SlurmSite by squeue, scontrol and scancel."""

    def __init__(self, site: Site | None = None, *, runner: Runs | None = None) -> None:
        self._runner: Runs = runner or Runner(site or Site())
        self._changes = Changes(self._runner)
        self._accounting = True  # until Slurm says that there is none

    async def job(self, job_id: int) -> SlurmJob | None:
        return (await self.jobs((job_id,))).get(job_id)

    async def jobs(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        found: dict[int, SlurmJob] = {}
        wanted = sorted(set(job_ids))
        for at in range(0, len(wanted), IDS_A_CALL):
            some = wanted[at : at + IDS_A_CALL]
            rows = await self._rows(FIELDS, "--states=all", f"--jobs={','.join(map(str, some))}")
            told = {job.job_id: job for job in _jobs(rows)}
            found |= {job_id: told[job_id] for job_id in some if job_id in told}
        return found

    async def jobs_on(self, partition: str) -> tuple[SlurmJob, ...]:
        return tuple(_jobs(await self._rows(FIELDS, f"--partition={partition}")))

    async def set_limit(self, name: str, limit_s: int) -> None:
        await self._update(name, f"timelimit={-(-limit_s // 60)}")

    async def set_end(self, name: str, at: int) -> None:
        await self._update(name, f"endtime=uts{at}")

    async def requeue(self, job: SlurmJob) -> None:
        if not job.requeue:
            await self._update(job.name, "requeue=1")
        await self._run(["scontrol", "requeue", job.name])
        log.info("slurm.job_requeued", extra={"job": job.name})

    async def cancel(self, name: str) -> None:
        await self._run(["scancel", "--quiet", name])
        log.info("slurm.job_cancelled", extra={"job": name})

    async def release(self, name: str) -> None:
        await self._run(["scontrol", "release", name])

    async def widen(self, names: Sequence[str], partitions: Sequence[str]) -> tuple[str, ...]:
        to = (f"partition={','.join(partitions)}",)
        applied = await self._changes.apply([Change(name=name, to=to) for name in names])
        return tuple(applied.refused)

    async def note(self, burst: Burst, json_text: str) -> None:
        job = await self.job(burst.job_id)
        if job is None or not job.lives or not same_job(burst, job):
            return
        if (wanted := noted(job.comment, json_text)) != job.comment:
            await self._update(job.name, f"admincomment={wanted}")

    async def signal_request(self, job_id: int) -> str:
        if not self._accounting:
            return ""
        try:
            argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--local", f"--jobs={job_id}"]
            text = await self._runner.run([*argv, "--format=SubmitLine"])
        except SlurmUnavailable as error:
            raise Unavailable(str(error), hint=error.hint) from None
        except SlurmError as error:
            self._accounting = "accounting" not in str(error).lower()
            return ""
        found = _SIGNAL.findall(text)
        return str(found[-1]) if found else ""

    async def _update(self, name: str, change: str) -> None:
        applied = await self._changes.apply([Change(name=name, to=(change,))])
        if said := applied.refused.get(name):
            raise (Unavailable if is_busy(said) else Refused)(said)

    async def _rows(self, fields: Sequence[str], *selection: str) -> list[list[str]]:
        mark = table.new_mark()
        argv = [*_SQUEUE, *selection, "-O", table.squeue_format(fields, mark)]
        try:
            text = await self._runner.run(argv)
        except SlurmUnavailable as error:
            raise Unavailable(str(error), hint=error.hint) from None
        except SlurmError as error:
            one = any(some.startswith("--jobs=") and "," not in some for some in selection)
            if one and _UNKNOWN_JOB in str(error).lower():  # of several, it says nothing of the others
                return []
            raise Unavailable(str(error), hint=error.hint) from None
        try:
            return table.parse_table(text, len(fields), mark)
        except SlurmError as error:
            raise Unavailable(str(error)) from None

    async def _run(self, argv: Sequence[str]) -> None:
        try:
            await self._runner.run(argv)
        except SlurmUnavailable as error:
            raise Unavailable(str(error), hint=error.hint) from None
        except SlurmError as error:
            raise Refused(str(error), hint=error.hint) from None


def _jobs(rows: Sequence[Sequence[str]]) -> list[SlurmJob]:
    """Rows of FIELDS. What can't be read says nothing of any job: raises Unavailable."""
    try:
        return [_job(row) for row in rows]
    except (ConfigError, ValueError) as error:
        raise Unavailable(f"squeue's answer can't be read: {error}") from None


def _job(row: Sequence[str]) -> SlurmJob:
    own, array, task, uid, state, reason, partitions, nodes, *rest = row
    restarts, submitted, start, limit, batch, requeue, comment = rest
    waits = state in WAITING
    return SlurmJob(
        job_id=_number(own),
        array_id=0 if task in _NOTHING else _number(array),
        task_id=int(task) if task.isdecimal() else -1,
        uid=_number(uid),
        state=state,
        reason=reason,
        partitions=tuple(partitions.split(",")),
        nodes=() if waits else expand(nodes),
        restarts=_number(restarts),
        submitted_at=_number(submitted),
        started_at=0 if waits else _number(start),
        limit_s=_limit(limit),
        batch=_number(batch) > 0,
        requeue=_number(requeue) > 0,
        note=note_in(comment),
        comment="" if comment == _NO_COMMENT else comment,
    )


def _limit(text: str) -> int:
    limit_s = 0 if text in _NOT_SET else seconds(text)
    return limit_s if limit_s < YEAR_S else 0


def _number(text: str) -> int:
    return 0 if text in _NOTHING else int(text)
