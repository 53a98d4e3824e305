"""Is what is known of a job's id an older run's? Signs of it, seen when a step starts.

A slurmctld that was killed gives the ids of jobs that it forgot to new ones, and a slurmd that knows such an id runs no
prolog for the new job. Its first task then meets what the forgotten job had. Slurm could be asked at each step; that
would double what a job costs slurmctld, so it is asked where one of these is seen:

    the first step that comes to this node comes long after the run's start, and after it had its slices here
                                                                                (a long prolog does that, too)
    a step comes a second time, from another slurmstepd                         (numbers of steps are used once)
    the batch script comes after another step, or a step after the batch script's end
    a step is another user's
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
_LEADERS = frozenset({"batch", "interactive"})  # before every other step on their node, and there as long as any
_KEPT = _LEADERS | {"extern", "0"}  # a job may have very many steps
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class _Seen:
    run: RunKey
    steps: dict[str, StepProcess] = field(default_factory=dict)  # the first ones
    stranger: str = ""  # the last step that another user's process was in


class Reuse:
    """`run_of` says what is known of a job now: what is known no more is forgotten here as well."""

    def __init__(self, run_of: Callable[[int], RunKey | None], is_alive: Callable[[StepProcess], bool]) -> None:
        self._run_of = run_of
        self._is_alive = is_alive
        self._seen: dict[int, _Seen] = {}

    def is_likely(self, run: RunKey, step: StepProcess, peer: Peer, *, since: float = 0.0) -> bool:
        """`run`: what is known of the step's job, and `since` when it has had its slices (Unix seconds)."""
        seen = self._seen.get(run.job_id)
        if seen is None or seen.run != run:
            seen = self._remember(run)
            likely = _started_at(step) - max(run.started_at, since) > PROMPT_S
        else:
            likely = self._contradicts(seen, step)
        if step.step in _KEPT:
            seen.steps[step.step] = step
        if peer.uid not in (0, run.uid) and seen.stranger != step.key:
            seen.stranger, likely = step.key, True
        return likely

    def _contradicts(self, seen: _Seen, step: StepProcess) -> bool:
        before = seen.steps.get(step.step)
        if before is not None:
            return before != step
        if step.step in _LEADERS:
            return bool(seen.steps.keys() - {"extern"})
        leaders = [one for name, one in seen.steps.items() if name in _LEADERS]
        return any(not self._is_alive(one) for one in leaders)

    def _remember(self, run: RunKey) -> _Seen:
        for job_id in list(islice(self._seen, FORGET)):
            seen = self._seen.pop(job_id)
            if self._run_of(job_id) == seen.run:
                self._seen[job_id] = seen
        self._seen[run.job_id] = _Seen(run=run)
        return self._seen[run.job_id]


def _started_at(step: StepProcess) -> float:
    """Unix seconds."""
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - step.started / _TICKS_S)
