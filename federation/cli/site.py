"""`fed daemon`, `peers`, `pools`, `drain`, `doctor`: what is asked about a site."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from federation.cli import setup
from federation.cli.check import FOUND, problems_of
from federation.cli.client import ask
from federation.cli.options import DEFAULT_CONFIG, DEFAULT_SOCKET, Config, Json, Socket
from federation.cli.overflow import overflow_view
from federation.cli.render import peer_lines, peer_list, pool_lines, pool_list, printable
from federation.desk.view import PeerList, PoolList
from federation.errors import FedError, Unavailable
from slurm_plugin.cli.output import emit, emit_document

if TYPE_CHECKING:
    from federation.config import FedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    site: str
    problems: tuple[str, ...]


def daemon(
    config: Config = DEFAULT_CONFIG,
    level: Annotated[str, typer.Option("--log-level", envvar="FED_LOG_LEVEL", help="DEBUG, INFO, WARNING.")] = "INFO",
) -> None:
    """Serve this site, until SIGTERM. It logs to stderr."""
    import asyncio
    import gc
    import os

    gc.disable()  # until it serves: nothing of what is loaded is rubbish, and looking for some takes a tenth of a start
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # no child of ours uses gRPC
    from federation.daemon import run
    from slurm_plugin import children, logs

    logs.to_stderr(level)
    children.heard_by_pidfd()
    asyncio.run(run(config))


def peers(socket: Socket = DEFAULT_SOCKET, json: Json = False) -> None:
    """List the sites that this one knows."""
    found = peer_list(ask(socket, "peers"))
    emit_document("fed-peers", found) if json else emit(peer_lines(found))


def pools(socket: Socket = DEFAULT_SOCKET, json: Json = False) -> None:
    """List the pools that jobs can go to now."""
    found = pool_list(ask(socket, "pools"))
    emit_document("fed-pools", found) if json else emit(pool_lines(found))


def drain(
    end: Annotated[bool, typer.Option("--end", help="Take jobs again.")] = False,
    socket: Socket = DEFAULT_SOCKET,
    json: Json = False,
) -> None:
    """Take no new jobs, of users or of peers, until --end; those that are here go on."""
    ask(socket, "drain", on=not end)
    if json:
        emit_document("fed-peers", peer_list(ask(socket, "peers")))


def doctor(config: Config = DEFAULT_CONFIG, socket: Socket = DEFAULT_SOCKET, json: Json = False) -> None:
    """Look for what is wrong: in fed.yaml, in the files it names, in the daemon, its peers and pools."""
    from federation.config import load_config

    found = load_config(config)
    problems = list(problems_of(found, config, datetime.now(UTC)))
    problems += _of_slurm(found)
    try:
        problems += _in_service(peer_list(ask(socket, "peers")), pool_list(ask(socket, "pools")))
        if found.overflow is not None and (wrong := overflow_view(ask(socket, "overflow")).problem):
            problems.append(f"overflow: {wrong}")
    except Unavailable as error:
        problems += [_said(error), *_of_journal(found)]
    except FedError as error:
        problems.append(_said(error))
    if json:
        emit_document("fed-doctor", DoctorReport(site=found.site, problems=tuple(problems)))
    else:
        emit(map(printable, problems or [f"site {found.site}: nothing is wrong"]))
    if problems:
        raise typer.Exit(FOUND)


def _said(error: FedError) -> str:
    return f"{error}" + (f" ({error.hint})" if error.hint else "")


def _of_journal(config: "FedConfig") -> list[str]:
    """All of it is read. While a daemon serves it has the journal for itself."""
    from federation.store.opening import whole

    try:
        damage = whole(config.state_dir / "fed.db")
    except (FedError, OSError) as error:
        return [f"the journal can't be read: {error}"]
    return [damage] if damage else []


def _of_slurm(config: "FedConfig") -> list[str]:
    """What of the Slurm here keeps its jobs from flowing over."""
    if config.overflow is None:
        return []
    try:
        found = setup.problems_of(config.overflow)
    except FedError as error:
        return [_said(error)]
    return [f"{one.what}: {one.paste}" for one in found]


def _in_service(known: PeerList, offered: PoolList) -> list[str]:
    problems = ["the site is draining: it takes no jobs; fed drain --end"] if known.draining else []
    if known.trouble:
        problems.append(f"a fault of the daemon's, told in its log: {known.trouble}")
    for peer in known.peers:
        if peer.linked:
            continue
        reason = f"its daemon, its address {peer.address}" if peer.address else "it dials us: its daemon"
        why = peer.why or f"look at {reason}, and both logs"
        problems.append(f"no link to {peer.site} for {peer.silent_s:.0f} s: {why}")
    problems += [f"{one.site} was turned away {one.ago_s:.0f} s ago: {one.why}" for one in known.turned_away]
    problems += [
        f"pool {pool.pool} takes no job: {pool.why or 'it is full'}" for pool in offered.pools if not pool.free_jobs
    ]
    return problems if offered.pools else [*problems, "no pool is known: jobs have nowhere to go"]
