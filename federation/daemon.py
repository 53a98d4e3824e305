"""A site's daemon: where everything is put together.

Crash: nothing that was told to anybody is lost; after the start everything open is looked at before anything is done.
"""

import asyncio
import gc
import logging
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from federation.access.acting import Account, account_of
from federation.access.audit import Audit
from federation.backends import backends
from federation.config import FedConfig, load_config
from federation.desk.answers import Answers, Office
from federation.desk.desk import Desk, Staff
from federation.desk.submit import Front as SubmitFront
from federation.engine.origin import OriginRules
from federation.engine.site import SiteEngine, SiteRules
from federation.errors import ConfigError, FedError
from federation.model.token import Key
from federation.pki.credentials import Keeper
from federation.pki.files import check_place
from federation.policy.admit import Guest, House
from federation.ports import Now
from federation.reloading import change
from federation.runner import Adapters, Runner
from federation.server.service import Bulk
from federation.serving import Front, Lines, links, served
from federation.stage.far import Far, Near
from federation.stage.holdings import Holdings
from federation.stage.inputs import Inputs
from federation.stage.mover import Mover
from federation.stage.outputs import Outputs
from federation.stage.results import Results
from federation.stage.spool import Spool
from federation.store.writer import Writer
from federation.tasks import end_process, ended, heed, together
from federation.tidying import Written, tidied, tidy_jobs
from slurm_plugin.agent.ready import tell_ready

if TYPE_CHECKING:  # a daemon without an overflow starts without all of that
    from federation.desk.overflow import OverflowAnswers
    from federation.overflow.service import Overflow

log = logging.getLogger(__name__)


class _Themselves(Mapping[str, str]):
    """This site's own users are who they are; never root."""

    def __getitem__(self, user: str) -> str:
        if not user or user == "root":
            raise KeyError(user)
        return user

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def local_account(name: str) -> Account:
    """A user of this host whose files we write where he submitted. Raises Refused, Unavailable."""
    if name == "root":
        return Account(name=name, uid=0, gid=0, groups=(0,), home="/root")
    return account_of(name, least_uid=1)


class Daemon:
    """One site. `running` is its whole use."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError, StoreUnfit: then it can't start. Call it inside the event loop."""
        self.config = config = load_config(path)
        self._path, self._begun = path, dict(config.pools)
        self._keeper = Keeper(lambda: load_config(path).credentials())
        _make_state(config.state_dir)
        self._audit = Audit(config.audit.path, max_bytes=config.audit.max_bytes, keep=config.audit.keep)
        self._lines = Lines()
        self._front = Front(config=lambda: self.config, keeper=self._keeper, audit=self._audit, lines=self._lines)
        self._links = links(self._front, lambda: self.runner, f"fed {version('vgpu-pool')}")
        self._spool = Spool(config.state_dir / "jobs")
        self._mover = Mover(self._spool, lambda: self.runner, self._far, local_account, self._most)
        self._backends = backends(config.pools, self._changed)
        self._writer = Writer(config.state_dir / "fed.db", journal=uuid4())
        adapters = Adapters(
            executors=self._backends.pools, peers=self._links, mover=self._mover, decided=self._front.decided
        )
        engine = SiteEngine(_rules(config), Now(wall=time.time(), mono=time.monotonic()))
        self.runner = Runner(engine, self._writer, adapters)
        holdings = Holdings(self.runner, self._backends.pools, least_uid=config.least_uid)
        self._bulk = Bulk(
            inputs=Inputs(
                config.state_dir / "staging", holdings, self.runner.inputs_here, self.runner.watching_attempt
            ),
            results=Results(holdings),
            outputs=Outputs(holdings, self.runner.watching_attempt),
        )
        self._overflow = self._made_overflow()
        self._desk = Desk(self._staff())
        self._near = Near(config.site, self._bulk.inputs, self._bulk.results, self._bulk.outputs)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Yields the task that ends only when something is broken."""
        config = self.config
        async with AsyncExitStack() as stack:
            stack.callback(self._audit.close)
            stack.push_async_callback(self._writer.close)
            stack.push_async_callback(self._backends.close)
            task = asyncio.create_task(self._serve())
            stack.push_async_callback(ended, task)
            stack.push_async_callback(self._mover.close)
            stack.push_async_callback(self._bulk.inputs.close)
            port = await stack.enter_async_context(served(self._front, self._links, self._bulk))
            await stack.enter_async_context(self._desk.open(config.local.socket))
            if self._overflow is not None:
                await stack.enter_async_context(self._overflow.open())
            gc.enable()
            gc.freeze()  # what a daemon is made of lives as long as it does: no collection has to look at it
            log.info("daemon.started", extra={"site": config.site, "port": port, "pools": list(config.pools)})
            yield task

    async def _serve(self) -> None:
        tidying = tidied(self._tidy_jobs, self._bulk.inputs.tidy, self._mover.tidy)
        works = [self.runner.run(), self._writer.damage(), tidying]
        if self._overflow is not None:
            works.append(self._overflow.run())
        await together(*works)

    def _far(self, site: str) -> Far | None:
        return self._near if site == self.config.site else self._lines.remotes.get(site)

    def _most(self, site: str) -> int:
        """Bytes of a job's output that are taken from there."""
        peer = self.config.peers.get(site)
        return 1 << 62 if peer is None else peer.most_output_bytes

    def _changed(self, pool: str, keys: tuple[Key, ...]) -> None:
        self.runner.look(pool, keys)

    def _staff(self) -> Staff:
        config = self.config
        addresses = {name: peer.address for name, peer in config.peers.items()}
        front = SubmitFront(
            runner=self.runner,
            spool=self._spool,
            environment=config.local.environment,
            targets=frozenset(name for name, address in addresses.items() if address),
            accounts=config.local.accounts,
        )
        answers = Answers(Office(runner=self.runner, mover=self._mover, addresses=addresses, faults=self._lines.faults))
        return Staff(
            front=front,
            answers=answers,
            mover=self._mover,
            audit=self._audit,
            admins=config.local.admins,
            overflow=self._overflow_answers(),
        )

    def _overflow_answers(self) -> "OverflowAnswers | None":
        if (overflow := self._overflow) is None:
            return None
        from federation.desk.overflow import OverflowAnswers

        return OverflowAnswers(overflow.widening, self.runner, lambda: overflow.config, overflow.loops)

    def _made_overflow(self) -> "Overflow | None":
        config = self.config.overflow
        if config is None:
            return None
        from federation.overflow.questions import SharedSlurm
        from federation.overflow.service import House as OverflowHouse
        from federation.overflow.service import Overflow

        house = OverflowHouse(
            runner=self.runner,
            mover=self._mover,
            spool=self._spool,
            account=local_account,
            environment=lambda: self.config.local.environment,
        )
        return Overflow(config, house, SharedSlurm(config.slurm))

    async def reload(self) -> None:
        """Take up what fed.yaml says now, as far as that goes. Raises FedError: what it said before is in force."""
        found = change(self.config, await asyncio.to_thread(load_config, self._path), self._begun)
        rules, now = _rules(found.config), Now(wall=time.time(), mono=time.monotonic())
        self._backends.add(backends(found.fresh, self._changed))
        self._begun.update(found.fresh)
        self._keeper.reload()
        await self.runner.act(lambda store: self.runner.engine.reload(store, rules, now))
        self.config = found.config
        self._lines.follow(self._links, self._keeper, self.config.peers)
        if self._overflow is not None and self.config.overflow is not None:
            self._overflow.follow(self.config.overflow)
        self._desk.staff = self._staff()
        with suppress(FedError):  # they are told again and again
            await self.runner.tell_rooms()
        log.info("daemon.reloaded", extra={"restart_for": list(found.restart_for)})

    async def _tidy_jobs(self) -> None:
        await tidy_jobs(self.runner, self._spool, self._written())

    def _written(self) -> Written:
        if self._overflow is None:
            return lambda _store, _tokens: set()
        from federation.overflow.bursts import written

        return written


def _make_state(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't make {folder}: {error.strerror}", hint="see state_dir in fed.yaml") from None
    check_place(folder)


def _rules(config: FedConfig) -> SiteRules:
    most = 1 << 62
    own = Guest(
        pools=tuple(config.pools),
        users=_Themselves(),
        most_jobs=10_000_000,
        most_input_bytes=most,
        most_held_bytes=most,
    )
    guests = {name: peer.guest for name, peer in config.peers.items()} | {config.site: own}
    house = House(pools={name: pool.most_jobs for name, pool in config.pools.items()}, guests=guests)
    return SiteRules(
        name=config.site, peers=tuple(config.peers), origin=OriginRules(placing=config.placing), house=house
    )


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def reloaded(daemon: Daemon, reread: asyncio.Event) -> None:
    """Reload whenever it is asked for, until cancelled; what fails is told, and ends nothing."""
    while True:
        await reread.wait()
        reread.clear()
        try:
            await daemon.reload()
        except FedError as error:
            heed()
            log.warning("daemon.not_reloaded", extra={"why": str(error), "hint": error.hint})
        except Exception:
            heed()
            log.exception("daemon.not_reloaded")


async def run(path: Path) -> None:
    """Until SIGTERM or SIGINT; SIGHUP reads fed.yaml again. Raises what broke. Call it once a process."""
    stop, reread = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reread.set)
    daemon = Daemon(path)
    async with daemon.running() as serving:
        tell_ready()
        stopping, reloading = asyncio.create_task(_set(stop)), asyncio.create_task(reloaded(daemon, reread))
        await asyncio.wait((serving, stopping, reloading), return_when=asyncio.FIRST_COMPLETED)
        end_process()
        await ended(stopping, reloading)
        for task in (serving, reloading):
            if task.done() and not task.cancelled():
                task.result()
    await ended(*(asyncio.all_tasks() - {asyncio.current_task()}))
    log.info("daemon.stopped")
