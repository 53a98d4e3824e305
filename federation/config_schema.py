"""The shape of fed.yaml, version 1. Nothing is guessed: types are strict and unknown keys are errors."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from federation.access.acting import LEAST_UID
from federation.access.audit import KEEP, MAX_BYTES
from federation.access.environment import DEFAULT_ALLOW, check_pattern
from federation.errors import ConfigError
from federation.pki.names import check_site
from slurm_plugin.catalogue import DEFAULT_PATH
from slurm_plugin.ports import VIRTUAL

MAX_PEERS = 1000
MAX_NAMES = 100_000  # users or accounts of one peer
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
_PREFIX = re.compile(r"[A-Za-z]([A-Za-z0-9-]{0,46}[A-Za-z0-9])?")


def _site(text: str) -> str:
    try:
        return check_site(text)
    except ConfigError as error:
        raise ValueError(f"{error} ({error.hint})") from None


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(f"'{text[:64]}' is no name (letters, digits, _ . @ + -, at most 128)")
    return text


def _mortal(text: str) -> str:
    if text == "root" or text.isdecimal():
        raise ValueError(f"'{text}' can't be given: never root, and never a number; write a user's name")
    return _word(text)


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"{path} must be an absolute path")
    return path


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"'{text}' is not host:port")
    return text


def _site_pool(text: str) -> str:
    site, slash, pool = text.partition("/")
    if not slash:
        raise ValueError(f"'{text[:64]}' is no pool: write SITE/POOL")
    return f"{_site(site)}/{_word(pool)}"


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ValueError(f"'{text[:64]}' can't begin the names of nodes (letters, digits, - inside, at most 48)")
    if not f"{text}-".startswith(VIRTUAL):
        raise ValueError(f"'{text}' can't begin the names of virtual nodes: write {VIRTUAL}NAME, for the pool's nodes")
    return text


Site = Annotated[str, AfterValidator(_site)]
SitePool = Annotated[str, AfterValidator(_site_pool)]
Prefix = Annotated[str, AfterValidator(_prefix)]
Word = Annotated[str, AfterValidator(_word)]
Account = Literal[""] | Word
Mortal = Annotated[str, AfterValidator(_mortal)]
File = Annotated[Path, Field(strict=False), AfterValidator(_absolute)]
Address = Annotated[str, AfterValidator(_address)]
Pattern = Annotated[str, AfterValidator(check_pattern)]
Patterns = Annotated[list[Pattern], Field(max_length=1000)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Seconds = Annotated[int, Field(ge=0, le=1 << 30)]
Money = Annotated[float, Field(ge=0, le=1e9, strict=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TlsSection(_Section):
    certificate: File
    key: File | None = None
    ca: Annotated[list[File], Field(min_length=1, max_length=64)]
    crl: Annotated[list[File], Field(max_length=64)] = []


class LocalSection(_Section):
    socket: File = Path("/run/fed/fed.sock")
    admins: Annotated[list[Mortal], Field(max_length=1000)] = []
    accounts: Annotated[dict[Account, list[Word]], Field(max_length=MAX_NAMES)] | None = None
    environment: Patterns = list(DEFAULT_ALLOW)


class AuditSection(_Section):
    path: File = Path("/var/log/fed/audit.log")
    max_mib: Annotated[int, Field(ge=1, le=10_240)] = MAX_BYTES >> 20
    keep: Annotated[int, Field(ge=1, le=1000)] = KEEP


class RateSection(_Section):
    per_s: Count
    burst: Count


class PeerSection(_Section):
    address: Address | None = None
    ca: File | None = None
    pools: Annotated[list[Word], Field(max_length=1000)] = []
    users: Annotated[dict[Word, Mortal], Field(max_length=MAX_NAMES)] = {}
    accounts: Annotated[dict[Account, Account], Field(max_length=MAX_NAMES)] | None = None
    environment: Patterns = ["*"]
    most_jobs: Count = 10_000
    most_input_mib: Annotated[int, Field(ge=0, le=1 << 30)] = 1 << 20
    most_held_mib: Annotated[int, Field(ge=0, le=1 << 32)] = 10 << 20
    most_output_mib: Annotated[int, Field(ge=0, le=1 << 30)] = 1 << 20
    messages: RateSection = RateSection(per_s=5_000, burst=10_000)


class LocalPoolSection(_Section):
    """A pool of this host's own processes."""

    folder: File
    cpus: Annotated[int, Field(ge=1, le=65_536)] | None = None
    memory_mib: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    longest_s: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    price_per_hour: Money = 0.0


class SlurmPoolSection(_Section):
    """Slurm, whose commands run on this host; `folder` is at the same path on every node."""

    folder: File
    partition: Literal[""] | Word = ""
    account: Account = ""  # of jobs that name none
    qos: Literal[""] | Word = ""
    conf: File | None = None
    bin_dir: File | None = None
    catalogue: File = Path(DEFAULT_PATH)
    starts_in_s: Annotated[float, Field(ge=0, le=1e9, strict=False)] = 0.0
    price_per_hour: Money = 0.0
    gpu_price_per_hour: Money = 0.0


class LoginSection(_Section):
    """Where to log in; both sides prove who they are."""

    host: Annotated[str, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=1, le=65_535)] = 22
    user: Word
    known_hosts: File
    key: File | None = None
    agent: bool = False


class SshPoolSection(LoginSection):
    """Slurm behind a login node, as one user of it. `folder`: of copies here; `there`: of the jobs there."""

    folder: File
    there: Annotated[str, Field(min_length=1, max_length=1024)] = ".fed"
    users: Annotated[list[Mortal], Field(min_length=1, max_length=MAX_NAMES)]
    jump: LoginSection | None = None
    partition: Literal[""] | Word = ""
    account: Account = ""
    qos: Literal[""] | Word = ""
    bin_dir: File | None = None
    catalogue: File = Path(DEFAULT_PATH)
    starts_in_s: Annotated[float, Field(ge=0, le=1e9, strict=False)] = 0.0
    price_per_hour: Money = 0.0
    gpu_price_per_hour: Money = 0.0


class PoolSection(_Section):
    most_jobs: Count = 10_000
    local: LocalPoolSection | None = None
    slurm: SlurmPoolSection | None = None
    ssh: SshPoolSection | None = None

    @model_validator(mode="after")
    def _one(self) -> "PoolSection":
        if sum(one is not None for one in (self.local, self.slurm, self.ssh)) != 1:
            raise ValueError("a pool has one of local, slurm and ssh")
        return self


class PlacingSection(_Section):
    allow: Annotated[dict[Account, list[str]], Field(max_length=MAX_NAMES)] = {}
    deny: Annotated[dict[Account, list[str]], Field(max_length=MAX_NAMES)] = {}
    local_bonus_s: Annotated[float, Field(ge=0, le=1e9, strict=False)] = 60.0
    budget_per_day: Annotated[dict[Literal["*"] | Account, Money], Field(max_length=MAX_NAMES)] = {}
    seconds_per_money: Annotated[float, Field(ge=0, le=1e9, strict=False)] = 600.0


class VirtualNodesSection(_Section):
    """Nodes PREFIX-1..count of Slurm, whose jobs run in a pool."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    pool: SitePool
    gateway: Word
    cpus: Annotated[int, Field(ge=1, le=65_535)] = 4096
    memory_mib: Annotated[int, Field(ge=1, le=1 << 32)] = 4_000_000
    most_jobs: Annotated[int, Field(ge=1, le=100_000)] = 500
    shared_files: bool = False


class OverflowRuleSection(_Section):
    """When jobs that ask for one partition may go to the virtual nodes."""

    opt: Literal["out", "in"] = "out"
    after_s: Seconds = 600
    start_later_s: Seconds = 0
    least_waiting: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    least_priority: Annotated[int, Field(ge=0, le=1 << 32)] = 0
    qos: Annotated[list[Word], Field(max_length=1000)] = []
    accounts: Annotated[list[Word], Field(max_length=MAX_NAMES)] = []
    most_jobs: Annotated[int, Field(ge=0, le=100_000)] = 1000
    spend_per_day: Money | None = None
    most_input_mib: Annotated[int, Field(ge=0, le=1 << 30)] = 1024
    recall: bool = True


class OverflowSection(_Section):
    """Jobs of the Slurm here that run in pools and stay jobs of the Slurm here."""

    cluster: Word
    conf: File | None = None
    bin_dir: File | None = None
    socket: File = Path("/run/fed/gateway.sock")
    partition: Word = "cloud"
    wait_partition: Word = "vgpu-wait"
    longest_wait_s: Annotated[int, Field(ge=60, le=30 * 86_400)] = 86_400
    pool_yaml: File | None = None
    nodes: Annotated[dict[Prefix, VirtualNodesSection], Field(min_length=1, max_length=100)]
    rules: Annotated[dict[Word, OverflowRuleSection], Field(max_length=1000)] = {}

    @model_validator(mode="after")
    def _apart(self) -> "OverflowSection":
        if self.partition == self.wait_partition:
            raise ValueError(f"partition and wait_partition are both '{self.partition}': they must be two")
        if own := {self.partition, self.wait_partition} & self.rules.keys():
            raise ValueError(f"rules: '{min(own)}' is no partition that users wait in: name the one they ask for")
        return self


class FedFile(_Section):
    version: Literal[1]
    site: Site
    state_dir: File = Path("/var/lib/fed")
    listen: Address | None = None
    least_uid: Annotated[int, Field(ge=1, le=1 << 31)] = LEAST_UID
    tls: TlsSection
    local: LocalSection = LocalSection()
    audit: AuditSection = AuditSection()
    pools: Annotated[dict[Word, PoolSection], Field(max_length=1000)] = {}
    placing: PlacingSection = PlacingSection()
    peers: Annotated[dict[Site, PeerSection], Field(max_length=MAX_PEERS)] = {}
    overflow: OverflowSection | None = None


_SECTIONS: dict[str, type[BaseModel]] = {
    "tls": TlsSection,
    "local": LocalSection,
    "audit": AuditSection,
    "placing": PlacingSection,
    "overflow": OverflowSection,
}
_BACKENDS: dict[str, type[BaseModel]] = {"local": LocalPoolSection, "slurm": SlurmPoolSection, "ssh": SshPoolSection}


def keys_at(path: tuple[str | int, ...]) -> tuple[str, ...]:
    """The keys that are known at a place of the file."""
    section: type[BaseModel]
    match path:
        case ("peers", _):
            section = PeerSection
        case ("peers", _, "messages"):
            section = RateSection
        case ("pools", _):
            section = PoolSection
        case ("pools", _, backend) if backend in _BACKENDS:
            section = _BACKENDS[str(backend)]
        case ("pools", _, "ssh", "jump"):
            section = LoginSection
        case ("overflow", "nodes", _):
            section = VirtualNodesSection
        case ("overflow", "rules", _):
            section = OverflowRuleSection
        case (name,) if name in _SECTIONS:
            section = _SECTIONS[str(name)]
        case _:
            section = FedFile
    return tuple(section.model_fields)
