"""Undoing what Slurm does to a virtual node of its own after a daemon of its was killed.

A slurmctld that is killed forgets jobs and gives their ids to the next ones. A slurmd that still knows one refuses
the other. A slurmd that is killed forgets which prologs it has run, and refuses the jobs that it had run them for.
Slurm then drains the node and holds the job. Nothing of a user's runs on a virtual node, and what runs elsewhere is
told apart by more than an id. So the node is resumed, and the jobs that were refused in our partition are released,
each a few times. A drain for any other reason is somebody's, and left alone, and so are the jobs then.

Crash: the next daemon finds the node as this one did, and jobs that are held, too; so it does where a slurmctld that
was killed remembers a job's hold but not the drain.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from federation.config_overflow import OverflowConfig
from federation.overflow.burst import SlurmJob
from federation.overflow.loop import Loop
from federation.overflow.slurm_site import SlurmSite
from federation.ports import Now
from slurm_plugin.controller.drains import drained_by_itself
from slurm_plugin.ports import SlurmNode

log = logging.getLogger(__name__)

LOOK_S = 5.0  # between looks
PATIENCE_S = 3.0  # a node must be found so for so long: Slurm takes a moment to put the job back
OFTEN_S = 300.0  # after a node was found so refused jobs are looked for each time, else
SELDOM_S = 60.0  # so often: it takes a look at all that wait for the partition
TIMES = 3  # a job that is refused so often is for a person to look at
_REFUSED = "launch failed requeued held"


class DrainsSlurm(Protocol):
    """Of `slurm_plugin.slurm.commands.SlurmCommands`. Every call raises SlurmError."""

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]: ...
    async def resume(self, node: str) -> None: ...


class Drains:
    """`config` tells what fed.yaml says now."""

    def __init__(
        self, slurm: DrainsSlurm, site: SlurmSite, config: Callable[[], OverflowConfig], clock: Callable[[], Now]
    ) -> None:
        self._slurm, self._site, self._config, self._clock = slurm, site, config, clock
        self._since: dict[str, float] = {}  # by node: when it was found drained first
        self._found = self._looked = -math.inf  # when a node was so last, and when refused jobs were looked for
        self._times: Counter[str] = Counter()  # by job: how often it was released
        self.loop = Loop("drains of virtual nodes", self.look, lambda _: asyncio.sleep(LOOK_S))

    async def look(self) -> None:
        """Raises SlurmError, FedError: Slurm does not answer, or says no."""
        now = self._clock().mono
        names = tuple(name for nodes in self._config().nodes.values() for name in nodes.names)
        nodes = await self._slurm.nodes(names)
        drained = {node.name: node.reason for node in nodes if drained_by_itself(node)}
        self._since = {name: self._since.get(name, now) for name in drained}
        if drained:
            self._found = now
        for name in drained:
            if now - self._since[name] >= PATIENCE_S:
                log.warning("drain.resume", extra={"node": name, "reason": drained[name]})
                await self._slurm.resume(name)
        due = now - self._found < OFTEN_S or now - self._looked >= SELDOM_S
        if due and not any("DRAIN" in node.state for node in nodes):
            await self._release()
            self._looked = now

    async def _release(self) -> None:
        jobs = await self._site.jobs_on(self._config().partition)
        names = {job.name for job in jobs}
        self._times = Counter({name: times for name, times in self._times.items() if name in names})
        for job in jobs:
            if _refused(job) and self._times[job.name] < TIMES:
                self._times[job.name] += 1
                log.warning("drain.release", extra={"job": job.name})
                await self._site.release(job.name)


def _refused(job: SlurmJob) -> bool:
    return job.waits and job.reason.replace("_", " ") == _REFUSED
