"""Undoing what Slurm does to a virtual node of its own after a daemon of its was killed.

A slurmctld that is killed forgets jobs and gives their ids to the next ones. A slurmd that still knows one refuses
the other. A slurmd that is killed forgets which prologs it has run, and refuses the jobs that it had run them for.
Slurm then drains the node and holds the job. Nothing of a user's runs on a virtual node, and what runs elsewhere is
told apart by more than an id. So the node is resumed, and the jobs that were refused in our partition are released,
each a few times. A drain for any other reason is somebody's, and left alone.

Crash: the next daemon finds the node as this one did; a job that is still held then is for an admin to release.
"""

import asyncio
import logging
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
RELEASE_S = 300.0  # after a node was found so: how long refused jobs are looked for
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
        self._until = 0.0  # refused jobs are looked for until then
        self._times: Counter[str] = Counter()  # by job: how often it was released
        self.loop = Loop("drains of virtual nodes", self.look, lambda _: asyncio.sleep(LOOK_S))

    async def look(self) -> None:
        """Raises SlurmError, FedError: Slurm does not answer, or says no."""
        now = self._clock().mono
        names = tuple(name for nodes in self._config().nodes.values() for name in nodes.names)
        drained = {node.name: node.reason for node in await self._slurm.nodes(names) if drained_by_itself(node)}
        self._since = {name: self._since.get(name, now) for name in drained}
        if drained:
            self._until = now + RELEASE_S
        for name in drained:
            if now - self._since[name] >= PATIENCE_S:
                log.warning("drain.resume", extra={"node": name, "reason": drained[name]})
                await self._slurm.resume(name)
        if now < self._until and not drained:
            await self._release()
        elif not drained:
            self._times.clear()

    async def _release(self) -> None:
        for job in await self._site.jobs_on(self._config().partition):
            if _refused(job) and self._times[job.name] < TIMES:
                self._times[job.name] += 1
                log.warning("drain.release", extra={"job": job.name})
                await self._site.release(job.name)


def _refused(job: SlurmJob) -> bool:
    return job.waits and job.reason.replace("_", " ") == _REFUSED
