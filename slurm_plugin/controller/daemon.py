"""The controller's composition root: pool.yaml, Slurm's commands, munge and the one TLS port around the engine."""

import asyncio
import contextlib
import logging
import os
import pwd
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from slurm_plugin import trust
from slurm_plugin.config import load_pool
from slurm_plugin.controller.engine import Engine
from slurm_plugin.controller.keep import claimed
from slurm_plugin.errors import ConfigError
from slurm_plugin.link.munge import Munge
from slurm_plugin.link.server import raise_file_limit, serve
from slurm_plugin.pool import PoolConfig, QueueReader
from slurm_plugin.ports import Slurm
from slurm_plugin.slurm.commands import SlurmCommands
from slurm_plugin.slurm.process import Site
from slurm_plugin.slurm.pyslurm_queue import PyslurmQueue
from slurm_plugin.slurm.queue import Pool

log = logging.getLogger(__name__)

SWITCH_S = 0.0005  # a thread that decides gives way so soon: a fence has a dozen short turns, and waits for each
CLOCKS_S = 60.0  # so long it is told that an agent was refused for its clock: longer than until it dials again
STOP_S = 1.0  # sessions are cut after so long; agents dial again


@asynccontextmanager
async def running(
    config: PoolConfig,
    slurm: Slurm,
    *,
    reload: Callable[[], PoolConfig],
    on_end: Callable[[], None],
    clock: Callable[[], float] = time.time,
    tick: Callable[[], float] = time.monotonic,
) -> AsyncIterator[tuple[Engine, int]]:
    """A controller that serves while the context is open: (engine, port). `on_end` is called should its loop break.

    Raises LinkError when the port can't be had, ConfigError when the user it must run as does not exist.
    """
    operators = {0, uid_of(config.controller.user)}
    engine = Engine(config, slurm, reload=reload, operators=operators, clock=clock, tick=tick)
    munge = Munge(config.controller.munge_socket)
    trusted = frozenset(operators | {os.getuid()})
    place, agents = config.controller, len(config.hosts)
    clocks = _Clocks(engine.desk.problems)
    server, port = await serve(
        engine, listen=place.listen, munge=munge, trusted=trusted, agents=agents, mistimed=clocks.differ
    )
    loop = asyncio.create_task(engine.run())

    def broken(task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            log.critical("controller.broken", exc_info=task.exception())
            on_end()

    loop.add_done_callback(broken)
    try:
        yield engine, port
    finally:
        loop.cancel()
        await server.stop(STOP_S)
        with contextlib.suppress(asyncio.CancelledError):
            await loop


class _Clocks:
    """An agent whose clock is far from ours never gets in, so it can't tell of that itself."""

    def __init__(self, problems: dict[str, str]) -> None:
        self._problems = problems
        self._over: asyncio.TimerHandle | None = None

    def differ(self, host: str) -> None:
        if self._over is not None:
            self._over.cancel()
        self._problems["clocks"] = f"munge refuses {host}: its clock is not the controller's"
        self._over = asyncio.get_running_loop().call_later(CLOCKS_S, self._problems.pop, "clocks", None)


async def run(path: Path) -> None:
    """The real controller, until SIGTERM or SIGINT."""
    sys.setswitchinterval(SWITCH_S)
    raise_file_limit()
    config = load_pool(path)
    check_user(config.controller.user)
    for ours in filter(
        None, (path, config.controller.state_dir, config.controller.catalogue, config.controller.job_ids)
    ):
        trust.check(ours, also=uid_of(config.controller.user))
    site = Site(conf=config.controller.slurm_conf or _environment_conf(), bin_dir=config.controller.slurm_bin)
    through = PyslurmQueue(site, config.gres.name) if config.controller.queue_reader is QueueReader.PYSLURM else None
    pool = Pool(gres=config.gres.name, wait_partition=config.wait_partition)
    slurm = SlurmCommands(site, pool, pyslurm=through)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ended: list[bool] = []

    def on_end() -> None:
        ended.append(True)
        stop.set()

    with claimed(config.controller.state_dir):
        async with running(config, slurm, reload=lambda: load_pool(path), on_end=on_end) as (_, port):
            log.info("controller.started", extra={"pool": config.pool, "port": port, "mode": str(config.mode)})
            await stop.wait()
    await slurm.close()
    log.info("controller.stopped", extra={"pool": config.pool})
    if ended:
        raise SystemExit(1)


def check_user(user: str) -> None:
    """Raises ConfigError when we run as somebody else: munge would give us none of the credentials made for `user`."""
    uid, own = uid_of(user), os.geteuid()
    if uid != own:
        raise ConfigError(
            f"controller.user: the controller runs as uid {own}, and pool.yaml says '{user}' (uid {uid})",
            hint=f"User={user} in its unit, as `vgpu render vgpu-controller.service` has it, or change pool.yaml",
        )


def uid_of(user: str) -> int:
    """Raises ConfigError when this host has no such user."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ConfigError(f"controller.user: there is no user '{user}' on this host") from None


def _environment_conf() -> Path | None:
    text = os.environ.get("SLURM_CONF", "")
    return Path(text) if text else None
