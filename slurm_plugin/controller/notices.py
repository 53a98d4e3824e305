"""Why a job waits, in the job's AdminComment: where squeue and scontrol show it to who has no `vgpu`.

A job that has waited for AFTER_S gets a line, if it is among the FIRST in order; it is looked at again every CALM_S.
One that starts has what it got there instead, and one that something else keeps back has none. Each update takes
slurmctld's locks and makes it look at its queue once more: so they are few, one after the other, and on the path of no
pass and no fence.

Crash: a line may be out of date until the next controller has read them all.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slurm_plugin import notice
from slurm_plugin.controller.demand import demands
from slurm_plugin.controller.desk import Desk
from slurm_plugin.controller.explain import explain
from slurm_plugin.controller.state import Decision, State
from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.explanation import Clock
from slurm_plugin.model import RunKey
from slurm_plugin.pool import Mode
from slurm_plugin.ports import QueuedJob, Slurm

log = logging.getLogger(__name__)

AFTER_S = 10.0  # most jobs start sooner, and need no line
FIRST = 30  # of those that wait, by the pool's order
ROUND_S = 10.0  # between two rounds
A_ROUND = 5  # jobs looked at in one, and updates at the most
SHARE = 20  # a round takes at most one part in so many of the time
CALM_S = 60.0  # between two looks at one job that waits
REREAD_S = 600.0  # until all lines are read back, for what an admin or a slurmctld that was killed has changed
_HALF_A_DAY_S = 12 * 3600.0


@dataclass(slots=True, kw_only=True)
class Known:
    """What stands on the jobs, as far as we know."""

    notes: dict[int, str] = field(default_factory=dict)  # job -> its line, not empty
    since: dict[int, float] = field(default_factory=dict)  # job -> when it got its first one
    looked_at: dict[int, float] = field(default_factory=dict)
    private: bool = False

    def on(self, job: QueuedJob) -> str:
        """The line on a job; an element of an array took along that of the array when it started."""
        if job.job_id in self.notes or not job.started_at:
            return self.notes.get(job.job_id, "")
        since = self.since.get(job.array_id)
        return self.notes.get(job.array_id, "") if since is not None and int(since) <= job.started_at else ""

    def wrote(self, job_id: int, note: str, now: float) -> None:
        self.looked_at[job_id] = now
        if note:
            self.notes[job_id] = note
            self.since.setdefault(job_id, now)
        else:
            self.notes.pop(job_id, None)
            self.since.pop(job_id, None)

    def keep(self, jobs: Mapping[int, QueuedJob]) -> None:
        """Forget jobs that are over; an array is not while any element is there."""
        there = jobs.keys() | {job.array_id for job in jobs.values()}
        for known in (self.notes, self.since, self.looked_at):
            for job_id in known.keys() - there:
                del known[job_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    run: RunKey
    note: str


def due(state: State, decision: Decision, known: Known) -> list[Notice]:
    """What is to be written now, and the jobs whose lines are right though they were looked at. Bound: A_ROUND."""
    wrong = list(_wrong(state, known))[:A_ROUND]
    if not state.config.notices:
        return wrong
    jobs = {job.job_id: job for job in state.jobs if not job.on_nodes}
    waiting = (one for one in demands(state) if state.now - one.submitted_at >= AFTER_S)
    first = dict.fromkeys(one.job_id for one in heapq.nsmallest(FIRST, waiting, key=lambda one: one.rank))
    look = [jobs[job_id] for job_id in first if abs(state.now - known.looked_at.get(job_id, -CALM_S)) >= CALM_S]
    for job in look[: A_ROUND - len(wrong)]:
        said = notice.waits(explain(state, decision, job), _clock(state.now), private=known.private)
        wrong.append(Notice(run=_run(job), note=said))
    return wrong


def _wrong(state: State, known: Known) -> Iterator[Notice]:
    """Jobs with a line of a time that is over: they run by now, or something else keeps them back."""
    for job in state.jobs:
        note = known.on(job)
        if job.on_nodes and note:
            said = _got(state, job) if state.config.notices else ""
        elif note and (not job.eligible or not state.config.notices or not note.startswith("waits")):
            said = ""
        else:
            continue
        if said is not None and said != note:
            yield Notice(run=_run(job), note=said)


def _got(state: State, job: QueuedJob) -> str | None:
    """None: not all of its nodes have told."""
    found: list[tuple[str, int, str]] = []
    for name in job.on_nodes:
        node = state.nodes.get(name)
        if node is None or (job.job_id, job.started_at) not in node.view.bound:
            return None
        for gpu in node.view.gpus:
            for one in gpu.instances:
                grant = node.view.holder.get(one.uuid)
                if grant is not None and grant.run.job_id == job.job_id:
                    found.append((name, gpu.index, one.profile))
    return notice.runs(found) if found else None


def _run(job: QueuedJob) -> RunKey:
    return RunKey(job_id=job.job_id, started_at=job.started_at, uid=job.uid)


def _clock(now: float) -> Clock:
    def shown(at: float) -> str:
        form = "%H:%M" if abs(at - now) < _HALF_A_DAY_S else "%Y-%m-%d %H:%M"
        return time.strftime(form, time.localtime(at))

    return shown


class Notices:
    def __init__(self, desk: Desk, slurm: Slurm) -> None:
        self._desk = desk
        self._slurm = slurm
        self._known = Known()
        self._read_at = float("-inf")

    async def run(self) -> None:
        """For ever, whatever Slurm says. A line is a courtesy: no error of ours in one ends the controller."""
        problems = self._desk.problems
        while True:
            began = time.monotonic()
            try:
                await self._round()
            except SlurmError as error:
                log.warning("notices.slurm", extra={"error": str(error)})
            except Exception as error:
                problems["notices"] = f"jobs are not told why they wait: {type(error).__name__}: {error}"
                log.exception("notices.failed")
            else:
                problems.pop("notices", None)
            await asyncio.sleep(max(ROUND_S, SHARE * (time.monotonic() - began)))

    async def _round(self) -> None:
        desk, known = self._desk, self._known
        config, decision = desk.config, desk.decision
        if decision is None or config.mode is Mode.OBSERVE or not (config.notices or known.notes):
            return
        if not desk.has_agents:
            return
        if config.notices and desk.tick() - self._read_at >= REREAD_S:
            await self._read()
        state = desk.state(desk.views(), config)
        jobs = {job.job_id: job for job in state.jobs}
        known.keep(jobs)
        for one in await asyncio.to_thread(due, state, decision, known):
            if one.note != known.on(jobs[one.run.job_id]):
                await self._write(one)
            known.wrote(one.run.job_id, one.note, desk.clock())

    async def _write(self, one: Notice) -> None:
        """What Slurm refuses is tried again when all lines have been read back. Raises SlurmUnavailable."""
        facts = {"job": one.run.job_id, "note": one.note}
        try:
            await self._slurm.note(one.run, one.note)
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            log.warning("notice.refused", extra=facts | {"error": str(error)})
        else:
            log.info("notice.written", extra=facts)

    async def _read(self) -> None:
        """Raises SlurmError."""
        desk, known = self._desk, self._known
        found = await self._slurm.notes((*desk.config.partitions, desk.config.wait_partition))
        now = desk.clock()
        self._read_at = desk.tick()
        known.private, known.notes = found.private, dict(found.by_job)
        known.since = {job_id: known.since.get(job_id, now) for job_id in found.by_job}
