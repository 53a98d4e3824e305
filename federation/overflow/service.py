"""Overflow in service, put together from fed.yaml's `overflow:` and what the daemon has."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from federation.access.acting import Account
from federation.config_overflow import OverflowConfig
from federation.model.job import Job
from federation.overflow.attaching import Attaching, Desk, Slurm
from federation.overflow.burst import Burst
from federation.overflow.changes import Changes
from federation.overflow.drains import Drains
from federation.overflow.expected import Controller
from federation.overflow.gateway import Gateway
from federation.overflow.looking import Sources
from federation.overflow.loop import Loop
from federation.overflow.nodes import NodesLoop, gres_of
from federation.overflow.notes import moving
from federation.overflow.reconcile import Place, Reconcile
from federation.overflow.slurm_side import SlurmSide
from federation.overflow.unheard import Unheard
from federation.overflow.visit import Staff
from federation.overflow.waiting import Queue
from federation.overflow.widening import Widening
from federation.ports import now
from federation.runner import Runner
from federation.stage.mover import Mover
from federation.stage.spool import Spool
from federation.tasks import together
from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.process import Runner as Commands
from slurm_plugin.slurm.queue import Pool

READING = "inputs are read"  # on the gateway, before the job is handed over

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What the daemon has. `account`: a user of this host; `environment`: what crosses without being asked for."""

    runner: Runner
    mover: Mover
    spool: Spool
    account: Callable[[str], Account]
    environment: Callable[[], tuple[str, ...]]


class Overflow:
    """`open` and `run` are its whole use."""

    def __init__(self, config: OverflowConfig, house: House, slurm: Slurm) -> None:
        self._config = config
        self._progress = house.mover.progress
        self.side = SlurmSide(house.runner, slurm, config.longest_wait_s, now)
        place = Place(
            partition=config.partition,
            serves=lambda node: config.serving(node) is not None,
            attended=lambda job_id: self.gateway.attends(job_id),
            moving=self._moving,
        )
        self.reconcile = Reconcile(house.runner, slurm, self.side, place, now)
        desk = Desk(
            config=config,
            rules=lambda: self._config.rules,
            runner=house.runner,
            slurm=slurm,
            side=self.side,
            spool=house.spool,
            account=house.account,
            environment=house.environment,
            settled=self.reconcile.poke,
        )
        staff = Staff(runner=house.runner, mover=house.mover, side=self.side, settled=self.reconcile.poke)
        self._attaching = Attaching(desk)
        self.gateway = Gateway(self._attaching, staff)
        commands = Commands(config.slurm)
        sources = Sources(
            config=lambda: self._config,
            journal=house.runner,
            engine=house.runner.engine,
            queue=Queue(commands),
            expects=Controller(config.pool_yaml) if config.pool_yaml else None,
        )
        self.widening = Widening(sources, Changes(commands))
        names = Pool(gres=gres_of(config).name, wait_partition=config.wait_partition)
        own = SlurmCommands(config.slurm, names)
        self.nodes = NodesLoop(lambda: self._config, house.runner, own, now)
        self.unheard = Unheard(house.runner, slurm, place, now)
        self.drains = Drains(own, slurm, lambda: self._config, now)

    @property
    def config(self) -> OverflowConfig:
        return self._config

    def follow(self, config: OverflowConfig) -> None:
        """These rules from now on; all else waits for a restart."""
        self._config = config
        self.widening.poke()

    def _moving(self, burst: Burst, fed: Job | None) -> str:
        if fed is None:
            return READING if burst.token in self._attaching.reading else ""
        progress = self._progress.get(fed.key)
        if progress is None:
            return ""
        return moving(progress.what, progress.moved, progress.total, stopped=bool(progress.why))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The gateway's socket, for as long as the block lasts. Raises ConfigError."""
        async with self.gateway.open(self._config.socket):
            log.info("overflow.open", extra={"partition": self._config.partition})
            yield

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Each knows what is wrong with it."""
        reconcile = self.reconcile
        slurms = (self.nodes.loop, self.drains.loop, self.unheard.loop)
        return self.widening.loop, reconcile.loop, reconcile.forgets, *slurms

    async def run(self) -> None:
        """Until cancelled."""
        others = (loop.run() for loop in self.loops if loop is not self.nodes.loop)
        await together(self.nodes.run(), *others)
