"""The virtual nodes of the Slurm here: their counts follow what the pools behind them offer, and say why they do not.

Slurm starts a job on a virtual node when the node offers a slice of its class, and any other job when the node is in
the partition and that is UP. Neither is so after a restart or a reconfigure of slurmctld: slurm.conf has the partition
DOWN and the counts untyped. So nothing starts there that nobody has said may start, and running jobs go on.

A slurmctld that forgot a job's start ends what it then finds of it as the node registers. Started anew in that second,
the job would be refused by slurmd for its credential, and Slurm would call it FAILED. So the partition is opened with a
node that was there at two looks in a row.

A node is never drained. Why its pool takes nothing is its Comment: a Reason, which is drains' own, does not stay on a
node in service. The partition is the breaker: one update closes it,
for all nodes, when no pool takes jobs, when the site drains and when the daemon ends. What an admin has set to another
state than DOWN or UP is left alone.

Crash: what was offered stays so. A job that starts then waits in its proxy for the next daemon.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from federation.config_overflow import OverflowConfig
from federation.overflow.bursts import far_jobs
from federation.overflow.loop import Loop
from federation.overflow.pacing import apart_s
from federation.overflow.told import CLOSED, OPEN, Changes, Far, Near, decide
from federation.ports import Now
from federation.runner import Runner
from federation.store.store import Store
from slurm_plugin.config import load_pool
from slurm_plugin.errors import ConfigError, SlurmError
from slurm_plugin.pool import GresNames
from slurm_plugin.ports import JobRun, QueuedJob, SlurmNode
from slurm_plugin.slurm.gateway import TOTAL
from slurm_plugin.slurm.hostlist import compress

log = logging.getLogger(__name__)

LOOK_S = 2.0  # between looks, at least: Slurm needs less than that to start what it may
CALM_S = 10.0  # between two changes of the partition that open more of it: Slurm looks at all nodes anew for each
_UNKNOWN = "UNKNOWN"  # a node that this slurmctld has not heard of yet
CLOSE_S = 3.0  # longest that the daemon's end waits for the partition to be closed


class NodesSlurm(Protocol):
    """Of `slurm_plugin.slurm.commands.SlurmCommands`. Every call raises SlurmError."""

    async def nodes(self, names: Sequence[str] = ()) -> tuple[SlurmNode, ...]: ...
    async def runs_on(self, node: str) -> tuple[JobRun, ...]: ...
    async def vgpu_jobs(self, partitions: Sequence[str] = ()) -> tuple[QueuedJob, ...]: ...
    async def partitions(self) -> dict[str, dict[str, str]]: ...
    async def set_gres(self, nodes: Sequence[str], gres: str) -> None: ...
    async def set_comment(self, nodes: Sequence[str], comment: str) -> None: ...
    async def set_partition(self, name: str, **fields: str) -> None: ...


def far_of(store: Store, runner: Runner, now: Now) -> Far:
    """Inside a transaction."""
    found = far_jobs(store)
    return Far(
        pools={pool.name: pool for pool in runner.engine.sites.pools(store.jobs(), now)},
        open={job_id: one.pool for job_id, one in found.items()},
        sent=frozenset(job_id for job_id, one in found.items() if one.sent),
        begun=frozenset(job_id for job_id, one in found.items() if one.begun),
    )


def gres_of(config: OverflowConfig) -> GresNames:
    """What slices are called here: as pool.yaml says, where fed.yaml names one."""
    names = GresNames()
    if config.pool_yaml is not None:
        try:
            names = load_pool(config.pool_yaml).gres
        except ConfigError as error:
            log.warning("nodes.no_pool_yaml", extra={"why": str(error), "instead": names.name})
    return replace(names, total=TOTAL)


class NodesLoop:
    """`config` tells what fed.yaml says now."""

    def __init__(
        self,
        config: Callable[[], OverflowConfig],
        runner: Runner,
        slurm: NodesSlurm,
        clock: Callable[[], Now],
    ) -> None:
        self._config, self._runner, self._slurm, self._clock = config, runner, slurm, clock
        self._gres = gres_of(config())
        self._there: frozenset[str] = frozenset()  # nodes at the last look, where it was closed
        self._moved_at = -CALM_S  # seconds that only pass: when the partition was last changed
        self.loop = Loop("virtual nodes", self.look, lambda took_s: asyncio.sleep(apart_s(LOOK_S, took_s)))

    async def run(self) -> None:
        """Until cancelled. The partition is closed then: a proxy would wait for the next daemon."""
        try:
            await self.loop.run()
        finally:
            await self._close()

    async def look(self) -> None:
        """One look, and what follows from it. Raises SlurmError, ConfigError, FedError."""
        config = self._config()
        now = self._clock()
        far = await self._runner.read(lambda store: far_of(store, self._runner, now))
        near = await self._near(config)
        await self._tell(config, decide(config, self._gres, near, far, draining=self._runner.draining))

    async def _near(self, config: OverflowConfig) -> Near:
        names = tuple(name for nodes in config.nodes.values() for name in nodes.names)
        before, self._there = self._there, frozenset()
        nodes = await self._slurm.nodes(names)
        partitions = await self._slurm.partitions()
        if config.partition not in partitions:
            raise SlurmError(f"Slurm has no partition {config.partition}", hint="fed render --check")
        there = frozenset(node.name for node in nodes if not node.state.startswith(_UNKNOWN))
        is_open = partitions[config.partition].get("State") == OPEN
        self._there = frozenset() if is_open else there
        return Near(
            nodes={node.name: node for node in nodes},
            partition=partitions[config.partition],
            running=await self._slurm.runs_on(compress(names)),
            waiting=await self._slurm.vgpu_jobs((config.partition,)),
            unsettled=set(names) - (there if is_open else there & before),
        )

    async def _tell(self, config: OverflowConfig, changes: Changes) -> None:
        """Counts first: a partition that opens finds them there, and one that closes needs none."""
        for gres, nodes in _grouped(changes.gres).items():
            await self._slurm.set_gres(nodes, gres)
            log.info("nodes.published", extra={"nodes": compress(nodes), "gres": gres})
        if changes.partition and not (changes.opens and self._clock().mono - self._moved_at < CALM_S):
            await self._slurm.set_partition(config.partition, **changes.partition)
            self._moved_at = self._clock().mono
            log.info("nodes.partition", extra={"partition": config.partition} | changes.partition)
        for comment, nodes in _grouped(changes.comments).items():
            await self._slurm.set_comment(nodes, comment)
            log.info("nodes.comment", extra={"nodes": compress(nodes), "why": comment})

    async def _close(self) -> None:
        name = self._config().partition
        try:
            async with asyncio.timeout(CLOSE_S):
                if (await self._slurm.partitions()).get(name, {}).get("State") == OPEN:
                    await self._slurm.set_partition(name, State=CLOSED)
                    log.info("nodes.partition", extra={"partition": name, "State": CLOSED})
        except (SlurmError, TimeoutError) as error:
            log.warning("nodes.not_closed", extra={"partition": name, "why": str(error)})


def _grouped(by_node: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for node, text in by_node.items():
        groups.setdefault(text, []).append(node)
    return groups
