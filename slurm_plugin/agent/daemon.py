"""The agent's composition root: adapters plugged together, and the few things that run for ever."""

import asyncio
import contextlib
import logging
import resource
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from slurm_plugin.agent import convert
from slurm_plugin.agent.binding import Rules
from slurm_plugin.agent.book import Book
from slurm_plugin.agent.config import AgentConfig
from slurm_plugin.agent.device_cgroup import DeviceCgroup
from slurm_plugin.agent.devices import Devices
from slurm_plugin.agent.durable import At, nowhere, usable
from slurm_plugin.agent.endings import LOOK_S, Endings
from slurm_plugin.agent.idle import Idle
from slurm_plugin.agent.journal import Journal
from slurm_plugin.agent.ledger import marks_of
from slurm_plugin.agent.losses import Losses
from slurm_plugin.agent.ready import tell_ready
from slurm_plugin.agent.runs import Runs
from slurm_plugin.agent.server import CALLS, HookServer
from slurm_plugin.agent.session import ControllerSession, Dial, Stream
from slurm_plugin.agent.slices import Slices
from slurm_plugin.agent.stalls import Stalls
from slurm_plugin.agent.store import Store
from slurm_plugin.agent.tasks import Tasks
from slurm_plugin.agent.threads import Threads
from slurm_plugin.agent.vacancy import Watch
from slurm_plugin.agent.visitors import Visitors
from slurm_plugin.nvml.caps import CapMinors
from slurm_plugin.nvml.hiding import blind_to
from slurm_plugin.ports import Gpus, Slurm
from slurm_plugin.proto.vgpu.v1 import pool_pb2
from slurm_plugin.wire import gpu_to_wire, grant_to_wire

log = logging.getLogger(__name__)

RECONCILE_S = 30.0  # between two looks at Slurm's list of jobs, while anybody has a slice
LET_GO_S = 2.0  # the same, while a prolog waits for one
STALLS_S = 2.0  # between two looks for what stands still
READY_S = 60.0  # longest that slurmd waits for the GPUs after a boot: systemd would give the agent up after 90
REFRESH_S = 60.0  # between two looks for changes that are not ours
FILES = 4 * CALLS  # open at a time: a caller and a watched step hold one each, and there is room beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    slurm: Slurm
    gpus: Gpus
    dial: Dial


class Agent:
    """`at` is called at every place where something becomes lasting; see `durable`."""

    def __init__(
        self, config: AgentConfig, adapters: Adapters, *, proc: Path = Path("/proc"), at: At = nowhere
    ) -> None:
        self._config = config
        self._threads = Threads()
        self._started_at = time.time()
        self._version = version("vgpu-pool")
        self._unseen = blind_to()
        self.book = Book()
        store = Store(config.state_dir, marks=marks_of(config.socket), at=at)
        journal = Journal(config.state_dir / "gpus", at=at)
        devices = Devices(proc_root=config.proc_root, dev_root=config.dev_root)
        self.slices = Slices(
            self.book,
            gpus=adapters.gpus,
            devices=devices,
            threads=self._threads,
            journal=journal,
            visitors=Visitors(config.state_dir / "visitors.json", at=at),
            at=at,
        )
        rules = Rules(node=config.node, gres=config.gres, pad=config.pad, wait_s=config.wait_s)
        self.runs = Runs(rules, self.book, slurm=adapters.slurm, store=store, slices=self.slices, threads=self._threads)
        self.session = ControllerSession(adapters.dial, runs=self.runs, slices=self.slices, inventory=self.inventory)
        caps = CapMinors(config.proc_root)
        self.cgroup = DeviceCgroup(
            lambda: caps.of_gpus(self.book.pools()), proc_root=config.proc_root, folder=config.cgroup, proc=proc
        )
        self.tasks = Tasks(
            self.book,
            self.runs,
            slurm=adapters.slurm,
            store=store,
            threads=self._threads,
            cgroup=self.cgroup,
            proc=proc,
        )
        self._endings = Endings(
            self.runs, slurm=adapters.slurm, threads=self._threads, came=self.cgroup.came, proc=proc
        )
        self.losses = Losses(self.book, slurm=adapters.slurm, store=store, threads=self._threads, node=config.node)
        self.idle = Idle(self.book, gpus=adapters.gpus, threads=self._threads, moved=self.session.changed)
        self.stalls = Stalls(self.book, self._threads, moved=self.session.changed)
        self._server = HookServer(self.runs, self.tasks, profile_of=self._profile_of)
        rules.fence = self.session.fence
        self.slices.moved = self._moved
        self.slices.lost = self.losses.note
        self.slices.watch = Watch(hold=self.tasks.hold_still, go_on=self.cgroup.go_on)
        self.tasks.changed = self.session.changed

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Future[None]"]:
        """Serve for as long as the context is open. Yields its end: a future that fails when the agent can't go on.

        Raises ConfigError when state folder or socket can't be had.
        """
        with usable({"state_dir": self._config.state_dir, "socket": self._config.socket.parent}):
            await self.slices.open()
            await self.runs.start()
            await self.losses.start()
            await self.tasks.start()
            await self._server.listen(self._config.socket)
        log.info("agent.started", extra={"node": self._config.node, "grants": len(self.book.grants)})
        self._end = asyncio.get_running_loop().create_future()
        tasks = [
            asyncio.create_task(self._for_ever(forever))
            for forever in (
                self._meet_controller(),
                self.runs.binding.serve(),
                _every(RECONCILE_S, self.runs.reconcile),
                _every(LET_GO_S, self.runs.let_go),
                _every(LOOK_S, self._endings.look),
                _every(STALLS_S, self.stalls.look),
                _every(REFRESH_S, self._tend),
            )
        ]
        try:
            yield self._end
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._server.close()
            self.tasks.close()
            self.losses.close()
            self.slices.close()
            self._threads.close()

    async def _meet_controller(self) -> None:
        """Not before the GPUs have been seen: a node without any would be taken for one that lost them.

        Then their layouts are there again, as far as they can be, and slurmd may start. Bound: READY_S.
        """
        soon = asyncio.get_running_loop().call_later(READY_S, tell_ready)
        await self.slices.repair()
        await self.runs.settle_claims()
        soon.cancel()
        tell_ready()
        await self.session.run()

    async def _for_ever(self, work: Coroutine[None, None, None]) -> None:
        """That it ends is a defect. Whoever keeps us running starts us anew, from what is on disk."""
        try:
            await work
        except Exception as error:
            log.critical("agent.broken", exc_info=error)
            if not self._end.done():
                self._end.set_exception(error)

    async def _tend(self) -> None:
        await self.runs.tend()
        await self.slices.tend()
        await self.tasks.tend()
        await self.idle.look()

    def inventory(self, revision: int) -> pool_pb2.Inventory:
        held = self.stalls.withheld | self.book.haunted
        return pool_pb2.Inventory(
            node=self._config.node,
            revision=revision,
            gpus=[gpu_to_wire(gpu, held, self.idle.since) for gpu in self.book.gpus],
            grants=[grant_to_wire(grant, self.book.isolation(grant.run.job_id)) for grant in self.book.grants.values()],
            waiting=convert.waiting_to_wire(self.runs.binding.waiting),
            agent_version=self._version,
            started_at=self._started_at,
            clock=time.time(),
            alarms=[*self.losses.alarms(), *self.runs.alarms()],
            unconfined=self.cgroup.why_not,
            unseen=self._unseen,
            fault=self.runs.ledger.fault or self.stalls.fault,
            garbled=self.runs.claims.garbled,
            wait_s=self._config.wait_s,
        )

    def _profile_of(self, slice_uuid: str) -> str:
        found = self.book.instance(slice_uuid)
        return found[1].profile if found else ""

    def _moved(self) -> None:
        self.runs.binding.stir()
        self.session.changed()


async def _every(period_s: float, do: Callable[[], Awaitable[None]]) -> None:
    while True:
        await do()
        await asyncio.sleep(period_s)


async def serve(config: AgentConfig) -> None:
    """The real agent, until SIGTERM or SIGINT. Raises what broke it, if that ended it."""
    _raise_file_limit()
    async with Agent(config, _adapters(config)).running() as end:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _settle, end)
        await end
    log.info("agent.stopped", extra={"node": config.node})


def _settle(end: "asyncio.Future[None]") -> None:
    if not end.done():
        end.set_result(None)


def _adapters(config: AgentConfig) -> Adapters:
    from slurm_plugin.link.client import open_link
    from slurm_plugin.link.munge import Munge
    from slurm_plugin.nvml import NvmlGpus
    from slurm_plugin.slurm.commands import SlurmCommands
    from slurm_plugin.slurm.process import Site

    munge = Munge(config.munge_socket)

    @asynccontextmanager
    async def dial() -> AsyncIterator[Stream]:
        link = await open_link(config.controller, munge=munge, server_uid=config.controller_uid)
        async with link, link.session() as session:
            yield session

    return Adapters(
        slurm=SlurmCommands(Site(conf=config.slurm_conf, bin_dir=config.slurm_bin)),
        gpus=NvmlGpus(proc_root=config.proc_root, dev_root=config.dev_root),
        dial=dial,
    )


def _raise_file_limit() -> None:
    """To what is needed, as far as it may be; never down."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
