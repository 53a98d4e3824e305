"""Runs that Slurm takes for running, and that have ended on this node.

A slurmctld that is killed forgets that a job has ended. No epilog comes then, or one that must be taken for an older
run's, and whoever asks is told that the run goes on. Slurm finds out when a slurmd registers, up to half an hour later.

A batch script is there as long as its job is. So where one was, and no step of its job is any more, the run is over.
Then its slices are given back, and the controller, to which no agent tells of the run, has Slurm end it.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from slurm_plugin.agent.peer import jobs_with_steps
from slurm_plugin.agent.runs import Runs
from slurm_plugin.agent.threads import Threads
from slurm_plugin.errors import SlurmError
from slurm_plugin.model import RunKey
from slurm_plugin.ports import Slurm

log = logging.getLogger(__name__)

LOOK_S = 10.0
GONE_S = 15.0  # without a step, of a run that had one here
STARTS_S = 300.0  # ... of one that had none yet: the site's own prologs may take long


class Endings:
    """`came`: has a task of this run been here? Crash: the next one looks anew; kept epilogs are lost."""

    def __init__(
        self, runs: Runs, *, slurm: Slurm, threads: Threads, came: Callable[[RunKey], bool], proc: Path = Path("/proc")
    ) -> None:
        self._runs = runs
        self._slurm = slurm
        self._threads = threads
        self._came = came
        self._proc = proc
        self._since: dict[RunKey, float] = {}  # when a run was first found without a step
        self._goes_on: set[RunKey] = set()  # without a step here, and Slurm says why

    async def look(self) -> None:
        """Give back what runs have that are over."""
        held = {grant.run for grant in self._runs.book.grants.values()}
        busy = await self._threads.looks(jobs_with_steps, self._proc) if held else frozenset()
        if None in busy:
            return  # whose it is, is told by the next look
        now = time.monotonic()
        self._since = {run: self._since.get(run, now) for run in held if run.job_id not in busy}
        self._goes_on &= held
        self._runs.kept &= self._since.keys()
        for run in [run for run, since in self._since.items() if now - since >= GONE_S]:
            try:
                if await self._is_over(run, now - self._since[run]):
                    log.warning("run.ended_unheard", extra={"job_id": run.job_id, "started_at": run.started_at})
                    await self._runs.release_lost(run)
            except SlurmError as error:
                log.warning("endings.no_answer", extra={"error": str(error)})
                return

    async def _is_over(self, run: RunKey, quiet_s: float) -> bool:
        """Raises SlurmError."""
        if run in self._goes_on or quiet_s < (GONE_S if await self._threads.cgroups(self._came, run) else STARTS_S):
            return False
        if run in self._runs.kept:
            return True
        said = await self._slurm.run_of(run.job_id)
        if said is None or said.key != run or said.state != "RUNNING":
            return False  # reconciling is for those
        if said.batch_host == self._runs.rules.node:
            return True
        self._goes_on.add(run)
        return False
