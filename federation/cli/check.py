"""`fed check-config`: is fed.yaml right, and is everything there that it names?"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from federation.cli.options import DEFAULT_CONFIG, Config, Json
from slurm_plugin.cli.output import emit, emit_document

if TYPE_CHECKING:
    from federation.config import FedConfig

FOUND = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    site: str
    peers: tuple[str, ...]
    certificate_ends_at: float  # Unix seconds
    problems: tuple[str, ...]  # what will not work; the daemon starts all the same


def check_config(config: Config = DEFAULT_CONFIG, json: Json = False) -> None:
    """Read fed.yaml and the files it names; exit code 1 when something will not work, 2 when the daemon can't start."""
    from federation.config import load_config

    now = datetime.now(UTC)
    found = load_config(config)
    ends = found.credentials().leaf.not_valid_after_utc
    problems = problems_of(found, config, now)
    if json:
        view = Checked(
            site=found.site, peers=tuple(found.peers), certificate_ends_at=ends.timestamp(), problems=problems
        )
        emit_document("checked", view)
    else:
        emit([f"site {found.site}: {len(found.peers)} peers, certificate until {ends:%Y-%m-%d %H:%M} UTC", *problems])
    if problems:
        raise typer.Exit(FOUND)


def problems_of(found: "FedConfig", config: Path, now: datetime) -> tuple[str, ...]:
    """What will not work. Raises ConfigError when the daemon can't start."""
    credentials = found.credentials()
    credentials.check(now)
    ends = credentials.leaf.not_valid_after_utc
    ending = [f"our certificate ends on {ends:%Y-%m-%d}: renew it"] if credentials.ending(now) else []
    return (*ending, *_users(found), *_placing(found), *_places(found, config))


def _placing(found: "FedConfig") -> list[str]:
    """A rule about a pool that there is none of is a slip that lets jobs go where they may not, or nowhere."""
    wrong = []
    for what, rules in (("allow", found.placing.allow), ("deny", found.placing.deny)):
        for account, names in rules.items():
            for name in names:
                site, _, pool = name.partition("/")
                if site == found.site and pool and pool not in found.pools:
                    wrong.append(f"placing.{what}.{account or '(none)'}: this site has no pool {pool}")
                elif site != found.site and site not in found.peers:
                    wrong.append(f"placing.{what}.{account or '(none)'}: there is no site {site}")
    return wrong


def _users(found: "FedConfig") -> list[str]:
    """Whom a peer's users are mapped to must be somebody here."""
    from federation.access.acting import account_of
    from federation.errors import FedError

    wrong = []
    for site, rules in found.peers.items():
        for theirs, ours in rules.guest.users.items():
            try:
                account_of(ours, least_uid=found.least_uid)
            except FedError as error:
                wrong.append(f"peers.{site}.users.{theirs}: {error}")
    return wrong


def _places(found: "FedConfig", config: Path) -> list[str]:
    from federation.config_pools import MountedPool
    from federation.errors import ConfigError
    from federation.pki.files import check_place

    folders = (found.audit.path.parent, found.local.socket.parent)
    shared = [pool.backend.folder for pool in found.pools.values() if isinstance(pool.backend, MountedPool)]
    lacking = [
        f"there is no folder {place}: is it mounted? Make it with mode 0711" for place in shared if not place.is_dir()
    ]
    wrong = lacking + [f"there is no folder {place}" for place in folders if not place.is_dir()]
    wrong += [
        f"pools.{name}.slurm.catalogue: there is no {slurm.catalogue}: only slices that Slurm publishes are offered"
        for name, pool in found.pools.items()
        if (slurm := pool.told.slurm) and "catalogue" in slurm.model_fields_set and not slurm.catalogue.is_file()
    ]
    for place in (config, *(one for one in folders if one.is_dir())):
        try:
            check_place(place)
        except ConfigError as error:
            wrong.append(str(error))
    return wrong
