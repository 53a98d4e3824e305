"""fed.yaml, read strictly: every mistake is told with file, line and the nearest thing that would be right."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from federation.access.rates import Rate
from federation.config_overflow import OverflowConfig, overflow_config, unknown_pool
from federation.config_pools import PoolRules, pool_rules
from federation.config_schema import FedFile, PeerSection, PlacingSection, keys_at
from federation.errors import ConfigError
from federation.pki.credentials import Credentials, Files, Peer, load
from federation.policy.admit import Guest
from federation.policy.choose import Rules
from slurm_plugin.document import FILE_BYTES, Document, first_mistake
from slurm_plugin.errors import ConfigError as Mistake

_EXAMPLE = "configs/fed.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRules:
    """One site on the list."""

    address: str  # where we dial it; empty: it dials us
    guest: Guest
    messages: Rate
    most_output_bytes: int  # of one job of ours there: what we take back


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRules:
    socket: Path
    admins: tuple[str, ...]
    environment: tuple[str, ...]  # what of a submitter's environment crosses without being asked for
    accounts: Mapping[str, frozenset[str]] | None  # account -> its users; None: anybody may name any


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRules:
    path: Path
    max_bytes: int
    keep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FedConfig:
    site: str
    state_dir: Path
    pools: Mapping[str, PoolRules]
    placing: Rules
    listen: str  # empty: nobody dials us
    least_uid: int
    files: Files
    local: LocalRules
    audit: AuditRules
    peers: Mapping[str, PeerRules]
    overflow: OverflowConfig | None = None  # None: no job of a Slurm here leaves it

    def credentials(self) -> Credentials:
        """What the files of `tls` hold now, and that it is this site's. Raises ConfigError."""
        found = load(self.files)
        if found.site != self.site:
            raise ConfigError(f"{self.files.certificate} is {found.site}'s, and this is site {self.site}")
        return found


def load_config(path: Path) -> FedConfig:
    """Raises ConfigError with `path:line: what` for the first mistake, and the others counted in the hint."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}", hint=f"{_EXAMPLE} is a commented example") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {error}") from None
    return parse_config(text, source=str(path))


def parse_config(text: str, *, source: str = "fed.yaml") -> FedConfig:
    """The same from a text. Raises ConfigError."""
    try:
        document = Document(text, source, example=_EXAMPLE)
        try:
            file = FedFile.model_validate(document.data)
        except ValidationError as wrong:
            raise first_mistake(wrong, document, keys_at) from None
    except Mistake as mistake:
        raise ConfigError(str(mistake), hint=mistake.hint) from None
    if file.site in file.peers:
        where = document.where(("peers", file.site))
        raise ConfigError(f"{where}: peers: {file.site} is this site itself")
    if file.listen is None and (silent := [name for name, peer in file.peers.items() if peer.address is None]):
        where = document.where(("peers", silent[0]))
        hint = "give it an address, or this site one to listen on"
        raise ConfigError(f"{where}: peers: neither {silent[0]} nor this site can dial the other", hint=hint)
    if file.overflow is not None and (unknown := unknown_pool(file, file.overflow)):
        prefix, why = unknown
        raise ConfigError(
            f"{document.where(('overflow', 'nodes', prefix, 'pool'))}: overflow.nodes.{prefix}.pool: {why}"
        )
    return _config(file)


def _config(file: FedFile) -> FedConfig:
    files = Files(
        certificate=file.tls.certificate,
        key=file.tls.key or file.tls.certificate,
        authorities=tuple(file.tls.ca),
        crls=tuple(file.tls.crl),
        peers=tuple(Peer(site=name, ca=peer.ca) for name, peer in file.peers.items()),
    )
    accounts = file.local.accounts
    local = LocalRules(
        socket=file.local.socket,
        admins=tuple(file.local.admins),
        environment=tuple(file.local.environment),
        accounts=None if accounts is None else {name: frozenset(users) for name, users in accounts.items()},
    )
    return FedConfig(
        site=file.site,
        state_dir=file.state_dir,
        pools={name: pool_rules(name, pool, file.least_uid) for name, pool in file.pools.items()},
        placing=_placing(file.placing),
        listen=file.listen or "",
        least_uid=file.least_uid,
        files=files,
        local=local,
        audit=AuditRules(path=file.audit.path, max_bytes=file.audit.max_mib << 20, keep=file.audit.keep),
        peers={name: _rules(peer) for name, peer in file.peers.items()},
        overflow=overflow_config(file.overflow) if file.overflow else None,
    )


def _placing(placing: PlacingSection) -> Rules:
    allow = {account: tuple(pools) for account, pools in placing.allow.items()}
    deny = {account: tuple(pools) for account, pools in placing.deny.items()}
    return Rules(
        allow=allow,
        deny=deny,
        budget_per_day=dict(placing.budget_per_day),
        seconds_per_money=placing.seconds_per_money,
        local_bonus_s=placing.local_bonus_s,
    )


def _rules(peer: PeerSection) -> PeerRules:
    guest = Guest(
        pools=tuple(peer.pools),
        users=dict(peer.users),
        accounts=None if peer.accounts is None else dict(peer.accounts),
        environment=tuple(peer.environment),
        most_jobs=peer.most_jobs,
        most_input_bytes=peer.most_input_mib << 20,
        most_held_bytes=peer.most_held_mib << 20,
    )
    rate = Rate(per_s=peer.messages.per_s, burst=peer.messages.burst)
    most = peer.most_output_mib << 20
    return PeerRules(address=peer.address or "", guest=guest, messages=rate, most_output_bytes=most)
