"""What a task sees of its job's slices.

The batch script sees all of them. A step sees what it asked for: all, some, or none (`--gres=none`); steps that ask for
some at a time get different ones while there are enough. A step of as many tasks as slices has one a task. Only Slurm
knows what a step asked for, and nothing tells when it ends: a step's share is looked up at its first task and hangs on
the life of its slurmstepd.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from slurm_plugin.agent.book import Book
from slurm_plugin.agent.device_cgroup import DeviceCgroup
from slurm_plugin.agent.outlived import Outlived
from slurm_plugin.agent.peer import Peer, StepProcess, read, step_of
from slurm_plugin.agent.reuse import Reuse
from slurm_plugin.agent.runs import Runs
from slurm_plugin.agent.store import Store
from slurm_plugin.agent.threads import Threads
from slurm_plugin.errors import SlurmError, SlurmUnavailable
from slurm_plugin.model import Grant, RunKey
from slurm_plugin.ports import Slurm

log = logging.getLogger(__name__)

ASK_TRIES = 3  # times Slurm is asked what a step wants, before the step gets all its job has
ASK_PAUSE_S = 1.0
SEEN_TRIES = 100  # times a task looks whether all slices of its job have been read, before it is refused
SEEN_PAUSE_S = 0.1
SHARES_MAX = 4096  # steps of jobs with slices that run on one node at a time
SEES_ALL = frozenset({"batch", "interactive", "extern"})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one task may use. `grant` is None for a job without slices: its environment is none of our business."""

    grant: Grant | None
    slices: tuple[str, ...] = ()


class Refused(Exception):
    """This task must not start. The text is for its user."""


class Tasks:
    def __init__(
        self,
        book: Book,
        runs: Runs,
        *,
        slurm: Slurm,
        store: Store,
        threads: Threads,
        cgroup: DeviceCgroup,
        proc: Path = Path("/proc"),
    ) -> None:
        self._book = book
        self._runs = runs
        self._slurm = slurm
        self._store = store
        self._threads = threads
        self._cgroup = cgroup
        self._proc = proc
        self._reuse = Reuse(book.run_of, self._is_there)
        self._shares: dict[str, tuple[str, ...]] = {}  # by StepProcess.key
        self._watched: dict[str, int] = {}  # the same steps' pidfds
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by step
        self.ask_pause_s = ASK_PAUSE_S
        self.seen_pause_s = SEEN_PAUSE_S
        self.changed: Callable[[], None] = lambda: None  # what is told of a grant differs

    async def start(self) -> None:
        """Take up the shares of steps that are still running, and see which jobs are confined."""
        await self._threads.cgroups(self._cgroup.start)
        await self._look_at_lock()
        for key, slices in (await self._threads.disk(self._store.leases)).items():
            pid, _, started = key.partition(":")
            step = step_of(int(pid), self._proc) if pid.isdecimal() else None
            if step is not None and step.key == f"{pid}:{started}" and self._watch(step):
                self._shares[key] = slices

    async def tend(self) -> None:
        """Away with what is over; and can this node confine tasks by now?"""
        await self._threads.cgroups(self.sweep)
        await self._look_at_lock()
        if before := set(self._book.unconfined):
            gone = before - await self._threads.cgroups(self._strays)
            self._book.unconfined -= gone
            if gone:
                self.changed()

    async def _look_at_lock(self) -> None:
        confines = not self._cgroup.why_not
        if confines != self._book.confines:
            self._book.unconfined |= await self._threads.cgroups(self._strays)
            self._book.confines = confines
            self.changed()

    def _strays(self) -> set[int]:
        """Jobs with slices of which a process of their user's is outside its cgroup: its prolog found no agent."""
        runs = {job_id: grant.run for job_id, grant in tuple(self._book.grants.items())}
        found: set[int] = set()
        for pid in [int(entry.name) for entry in self._proc.iterdir() if entry.name.isdecimal()] if runs else ():
            step = step_of(pid, self._proc)
            run = runs.get(step.job_id) if step is not None and step.pid != pid else None
            if run is not None and _uid_of(pid, self._proc) == run.uid and not self._cgroup.confines(pid, run):
                found.add(run.job_id)
        return found

    def close(self) -> None:
        for fd in self._watched.values():
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._watched.clear()

    async def enter(self, peer: Peer, *, task: int = -1, tasks: int = -1) -> View:
        """`view` for a task that is about to start: from here on it can open no slice of the pool but its job's.

        While the pool is only observed, what jobs without its slices open is none of its business.
        """
        view = await self.view(peer, task=task, tasks=tasks)
        step = step_of(peer.pid, self._proc)
        if step is None:
            raise Refused("this process is in no job step of this node")
        run = view.grant.run if view.grant else self._book.without.get(step.job_id)
        if run is not None and (view.grant or not self._book.terms.observe):
            minors = await self._minors(view.grant) if view.grant else []
            self._note(run, confined=await self._threads.cgroups(self._cgroup.confine, run, minors, peer.pid, step))
        return view

    async def _minors(self, grant: Grant) -> list[int]:
        """Of all its slices: a list without some of them would lock the whole job out of those.

        An agent that has just started serves tasks before the driver has told it anything.
        Raises Refused. Bounds: SEEN_TRIES, SEEN_PAUSE_S.
        """
        for _ in range(SEEN_TRIES):
            there = self._book.slices(grant)
            if len(there) == len(grant.slices):
                return [minor for _, one in there for minor in one.caps]
            await asyncio.sleep(self.seen_pause_s)
        log.warning("task.slices_unseen", extra={"job_id": grant.run.job_id, "slices": grant.slices})
        raise Refused(f"the GPU of a slice of job {grant.run.job_id} can't be read now; try again")

    def _note(self, run: RunKey, *, confined: bool) -> None:
        grant, before = self._book.grants.get(run.job_id), run.job_id not in self._book.unconfined
        if grant is not None and grant.run == run and confined != before:
            (self._book.unconfined.discard if confined else self._book.unconfined.add)(run.job_id)
            self.changed()

    def hold_still(self, runs: frozenset[RunKey]) -> tuple[Outlived, ...]:
        """What is left of these runs, which had a slice that nobody has now. On the cgroups' thread.

        It can open nothing more, and holds still where its run is over. A run that goes on has lost its slice: what it
        has open is of the slice's next instance too.
        """
        self.sweep()
        alive = self._alive()
        garbled = self._runs.claims.garbled
        over = [run for run in runs - alive if run.job_id not in garbled]
        held = self._cgroup.hold_still(over, {run.job_id for run in alive})
        return (*held, *(one for run in runs & alive for one in self._cgroup.present(run)))

    def sweep(self) -> None:
        """Away with the cgroups of runs that are over; who is left opens nothing more. On the cgroups' thread."""
        self._cgroup.sweep(self._alive(), tuple(self._runs.claims.garbled))

    def _alive(self) -> frozenset[RunKey]:
        grants = tuple(self._book.grants.values())
        return frozenset({*(grant.run for grant in grants), *tuple(self._book.without.values())})

    async def view(self, peer: Peer, *, task: int = -1, tasks: int = -1) -> View:
        """For the process at the other end: `task` is its number on this node, of `tasks`; -1 when not known.

        Raises Refused: the process is in no step, or its job's run has nothing though it asked, or is another user's.
        """
        step = step_of(peer.pid, self._proc)
        if step is None:
            raise Refused("this process is in no job step of this node")
        known = self._book.run_of(step.job_id)
        had = self._book.grants.get(step.job_id)
        if known is not None and self._reuse.is_likely(known, step, peer, since=had.made_at if had else 0.0):
            self._book.doubted.add(step.job_id)
        grant = await self._grant(step)
        if grant is None:
            return View(grant=None)
        if peer.uid not in (0, grant.run.uid):
            raise Refused(f"job {step.job_id} is another user's")
        if grant.run in self._book.lost:
            raise Refused(f"a slice of job {step.job_id} was destroyed on this node; see 'vgpu show job {step.job_id}'")
        slices = await self._share(step, grant)
        if len(slices) > 1 and tasks == len(slices) and 0 <= task < tasks:
            slices = (slices[task],)
        return View(grant=grant, slices=slices)

    async def _grant(self, step: StepProcess) -> Grant | None:
        job_id = step.job_id
        try:
            ready = self._book.knows(job_id) or await (
                self._runs.begin(job_id, lambda: self._is_there(step))
                if step.step == "batch"
                else self._runs.late(job_id)
            )
        except SlurmError:
            raise Refused(f"Slurm does not say what job {job_id} asked for; try again") from None
        if not ready:
            raise Refused(f"job {job_id} has no slice on this node; see 'vgpu show job {job_id}'")
        return self._book.grants.get(job_id)

    async def _share(self, step: StepProcess, grant: Grant) -> tuple[str, ...]:
        if step.step in SEES_ALL:
            return grant.slices
        lock = self._locks.get(step.key) or asyncio.Lock()
        self._locks[step.key] = lock
        async with lock:  # its tasks come together: one asks Slurm for all
            share = self._shares.get(step.key)
            if share is None:
                count = await self._asked(step, grant)
                share = self._least_used(grant, count)
                if len(self._shares) >= SHARES_MAX:
                    log.warning("step.too_many", extra={"job_id": step.job_id, "most": SHARES_MAX})
                elif self._watch(step):
                    self._shares[step.key] = share
                    await self._save()
        return tuple(slice_ for slice_ in share if slice_ in grant.slices)

    async def _asked(self, step: StepProcess, grant: Grant) -> int:
        """How many slices a step asked for on this node."""
        for left in reversed(range(ASK_TRIES)):
            try:
                steps = await self._slurm.step_gres(step.job_id)
            except SlurmUnavailable:
                if left:
                    await asyncio.sleep(self.ask_pause_s)
                continue
            except SlurmError as error:
                log.warning("step.unreadable", extra={"job_id": step.job_id, "error": str(error)})
                break
            gres = {name.rpartition(".")[2]: items for name, items in steps.items()}.get(step.step)
            if gres is None:
                break
            return min(len(grant.slices), sum(item.count for item in gres if item.name == self._runs.rules.gres))
        log.warning("step.unknown", extra={"job_id": step.job_id, "step": step.step})
        return len(grant.slices)

    def _least_used(self, grant: Grant, count: int) -> tuple[str, ...]:
        """Different slices for steps side by side; steps that overlap more than there are share evenly."""
        whole = len(grant.slices)
        used = Counter(slice_ for share in self._shares.values() if len(share) < whole for slice_ in share)
        best = sorted(grant.slices, key=lambda slice_: (used[slice_], grant.slices.index(slice_)))[:count]
        return tuple(slice_ for slice_ in grant.slices if slice_ in best)

    def _watch(self, step: StepProcess) -> bool:
        """Have the share end with the step's slurmstepd. False when that one is gone already."""
        try:
            fd = os.pidfd_open(step.pid)
        except OSError:
            return False
        if not self._is_there(step):  # the number was another process's by then
            os.close(fd)
            return False
        self._watched[step.key] = fd
        asyncio.get_running_loop().add_reader(fd, self._ended, step.key)
        return True

    def _is_there(self, step: StepProcess) -> bool:
        return step_of(step.pid, self._proc) == step

    def _ended(self, key: str) -> None:
        fd = self._watched.pop(key)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._shares.pop(key, None)

    async def _save(self) -> None:
        try:
            await self._threads.disk(self._store.save_leases, dict(self._shares))
        except OSError:
            log.exception("leases.not_saved")


def _uid_of(pid: int, proc: Path) -> int:
    """The real one, which no program of its user's changes; -1: it is gone."""
    try:
        lines = read(f"{proc}/{pid}/status").splitlines()
    except OSError:
        return -1
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Uid:")), -1)


def task_environment(view: View, profile_of: Callable[[str], str]) -> list[str]:
    """The lines a task prolog prints. A job without slices keeps its environment: gres/gpu may have set it."""
    if view.grant is None:
        return []
    visible = ",".join(view.slices)
    return [
        f"export CUDA_VISIBLE_DEVICES={visible}",
        f"export NVIDIA_VISIBLE_DEVICES={visible or 'void'}",
        f"export VGPU_SLICES={visible}",
        f"export VGPU_PROFILES={','.join(profile_of(slice_) for slice_ in view.slices)}",
        f"export VGPU_CLASS={view.grant.gres_class if view.slices else ''}",
    ]
