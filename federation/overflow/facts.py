"""PURE: what is known of waiting jobs, of the rules and of the pools, and what is decided of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Opt(StrEnum):
    OUT = "out"  # every job may go, but those with --burst=never
    IN = "in"  # only those with --burst


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One partition's, from fed.yaml. Empty sets: any."""

    opt: Opt = Opt.OUT
    after_s: int = 600  # waited so long
    start_later_s: int = 0  # expected to start no sooner than so much from now, where anybody can tell
    least_waiting: int = 0  # jobs that wait in the partition
    least_priority: int = 0
    qos: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    most_jobs: int = 1000  # of it that are widened or run there, at once
    spend_per_day: float | None = None  # None: any
    most_input_bytes: int = 1 << 30  # of one job
    recall: bool = True  # one that local room comes for first is taken back


class Wish(StrEnum):
    """--burst, as job_submit has left it on the job."""

    NONE = ""
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"
    POOL = "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A record of Slurm's that waits: a job, or what waits of an array."""

    job_id: int
    root: int  # the array's id; of any other job its own
    tasks: int = 1
    uid: int
    account: str = ""
    qos: str = ""
    priority: int
    partitions: tuple[str, ...]
    since: int  # Unix seconds from which it could have started
    starts_at: float | None = None  # here, as Slurm or the pool expects; None: nobody can tell
    wish: Wish = Wish.NONE
    pin: str = ""  # what --burst=NAME named
    obstacle: str = ""  # why it can run here only
    held: str = ""  # why room would not start it
    open: bool = False  # what it last started elsewhere is not over yet
    input_bytes: int = 0
    slices: bool = False  # it asks for some: virtual nodes have no more than their pools, and nothing else holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class Widened:
    """What was widened here, as it is on record: an array whole, by the id of the array."""

    root: int
    submitted_at: int
    uid: int
    rule: str  # partition
    partitions: tuple[str, ...]  # that it had
    price: float  # of one element, for its whole time limit
    account: str
    at: float  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a pool says to a job."""

    pool: str  # SITE/POOL
    money: float = 0.0
    no: str = ""  # why it does not take it; empty: it does
    says: str = ""  # when it would start there, and what for, of one that it takes
    away_s: float = 0.0  # since its site was last heard of


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known beside the jobs themselves."""

    now: float  # Unix seconds
    cloud: str  # the partition
    rules: Mapping[str, Rule]
    widened: Mapping[int, Widened] = field(default_factory=dict)  # by root
    offers: Mapping[int, tuple[Offer, ...]] = field(default_factory=dict)  # by job id: of the pools it may go to at all
    running: Mapping[str, int] = field(default_factory=dict)  # by rule: jobs that run there
    spent: Mapping[str, float] = field(default_factory=dict)  # by rule, today
    left: Mapping[str, float] = field(default_factory=dict)  # by account, of today's budget; not in it: any
    room: Mapping[str, int] = field(default_factory=dict)  # by pool: how many more jobs; not in it: any


class Verdict(StrEnum):
    WIDEN = "widen"
    LEAVE = "leave"
    RECALL = "recall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    job: Waiting
    verdict: Verdict
    why: str
    rule: str = ""  # partition
    tasks: int = 0  # of WIDEN: so many elements, the first ones
    partitions: tuple[str, ...] = ()  # of WIDEN and RECALL: what it is to have
    price: float = 0.0  # of WIDEN: of one element
    word: str = ""  # for the job itself; empty: nothing that stays so
