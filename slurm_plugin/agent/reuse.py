"""Is what is known of a job's id an older run's? Signs of it, seen when a step starts.

A slurmctld that was killed gives the ids of jobs that it forgot to new ones, and a slurmd that knows such an id runs no
prolog for the new job. Its first task then meets what the forgotten job had. Slurm could be asked at each step; that
would double what a job costs slurmctld, so it is asked where one of these is seen:

    the first step that comes to this node comes long after the run's start     (a long prolog does that, too)
    a run's first step comes a second time, from another slurmstepd             (numbers of steps are used once)
    the first step is another user's
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from slurm_plugin.agent.peer import Peer, StepProcess
from slurm_plugin.model import RunKey

PROMPT_S = 2.0  # from a run's start to its first step; Slurm tells whole seconds
FORGET = 2  # jobs looked at for each new one, so that no more are kept than run at a time
FIRST = frozenset({"batch", "interactive", "extern", "0"})
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class _Seen:
    run: RunKey
    firsts: dict[str, str] = field(default_factory=dict)  # step -> slurmstepd


class Reuse:
    """`run_of` says what is known of a job now: what is known no more is forgotten here as well."""

    def __init__(self, run_of: Callable[[int], RunKey | None]) -> None:
        self._run_of = run_of
        self._seen: dict[int, _Seen] = {}

    def is_likely(self, run: RunKey, step: StepProcess, peer: Peer) -> bool:
        """`run`: what is known of the step's job."""
        seen = self._seen.get(run.job_id)
        if seen is None or seen.run != run:
            self._remember(run, step)
            return _started_at(step) - run.started_at > PROMPT_S or peer.uid not in (0, run.uid)
        before = seen.firsts.get(step.step, step.key)
        if step.step in FIRST:
            seen.firsts[step.step] = step.key
        return before != step.key

    def _remember(self, run: RunKey, step: StepProcess) -> None:
        for job_id in list(islice(self._seen, FORGET)):
            seen = self._seen.pop(job_id)
            if self._run_of(job_id) == seen.run:
                self._seen[job_id] = seen
        self._seen[run.job_id] = _Seen(run=run, firsts={step.step: step.key} if step.step in FIRST else {})


def _started_at(step: StepProcess) -> float:
    """Unix seconds."""
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - step.started / _TICKS_S)
