"""What `fed` shows, as documents of a stable shape: docs/json.md."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferView:
    what: str  # inputs, results
    moved: int  # bytes
    total: int  # bytes; 0: not known
    why: str  # why it does not go on; empty: it does


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonView:
    pool: str  # SITE/POOL
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FedJobView:
    job: str  # its token
    array: str  # the name of its array; empty: it is in none
    task: int | None  # its number there
    state: str
    name: str
    user: str
    account: str
    site: str  # empty until one is chosen
    pool: str
    attempt: int
    why: str
    accepted_at: float  # Unix seconds, as all that end so
    started_at: float | None
    ended_at: float | None
    end: str  # exited, signaled, timeout, ...; empty: it is not over
    exit_code: int | None
    signal: int | None
    cost: float  # money reserved; once it is over, spent
    stdout_size: int  # bytes, once it is over
    stderr_size: int
    reasons: tuple[ReasonView, ...]  # of the last choice, one a pool
    transfer: TransferView | None  # what is being moved
    slurm_job: str  # of the Slurm here, as its commands name it; empty: it is none


@dataclass(frozen=True, slots=True, kw_only=True)
class FedJobList:
    jobs: tuple[FedJobView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    site: str
    address: str  # empty: it dials us
    linked: bool
    silent_s: float  # seconds since anything was heard
    pools: int
    jobs: int  # of ours that it may have
    why: str  # there is no link, as far as anybody said


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerView:
    site: str  # none of ours, though a CA that is believed gave it a certificate
    ago_s: float  # seconds since it was turned away
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerList:
    site: str  # this one
    draining: bool
    trouble: str  # a fault of the daemon's own, for ten minutes; its log has more
    peers: tuple[PeerView, ...]
    turned_away: tuple[StrangerView, ...]  # in the last ten minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    pool: str  # SITE/POOL
    linked: bool
    free_jobs: int
    free_cpus: int
    slices: dict[str, int]  # class -> free ones that serve it: one slice counts for each class
    price_per_hour: float  # of a CPU, or of a slice where GPUs have no price
    gpu_price_per_hour: float  # of a whole GPU; 0: none
    longest_s: int  # 0: any
    why: str  # it takes no jobs now


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    account: str
    per_day: float
    spent: float  # today, or reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolList:
    pools: tuple[PoolView, ...]
    budgets: tuple[BudgetView, ...]  # of accounts that have one of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowRuleView:
    partition: str  # that users ask for
    waiting: int  # jobs, elements of arrays each
    widened: int  # of these, may run there
    running: int  # there
    most_jobs: int
    spent: float  # today, or reserved by what runs there
    reserved: float  # by what is widened
    spend_per_day: float | None  # None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowJobView:
    job: str  # as Slurm's commands name it
    uid: int
    partition: str  # whose rule is meant; empty: there is none
    state: str  # stays, widened, asked; to_widen, to_recall: not done, or not yet; elsewhere as a run's, or over
    elements: int  # of an array
    since: float  # Unix seconds from which it could have started; 0: it runs
    price: float  # of one element that is widened now
    pool: str  # where it runs, or is to
    token: str  # the federation's job, where it runs, or is to
    why: str
    reasons: tuple[ReasonView, ...]  # of the pools, while it waits here


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowView:
    cluster: str
    partition: str  # of the virtual nodes
    at: float  # Unix seconds of the look at the queue
    dry: bool  # nothing of it was done
    problem: str  # what keeps the daemon from its work, or why a rule means nothing
    rules: tuple[OverflowRuleView, ...]
    jobs: tuple[OverflowJobView, ...]  # that the caller may see
    more: int  # of them that are not listed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run elsewhere of a job of the Slurm here. Times are Unix seconds by the clock of the site where it ran."""

    job: str  # as Slurm's commands name it
    token: str  # the federation's job
    attempt: int
    user: str
    pool: str  # SITE/POOL
    gateway: str  # the virtual node
    state: str  # waiting, running, stopping, ended
    submitted_at: float  # by the clock here; of the requeue when it was requeued
    began_at: float  # likewise: when Slurm started it
    started_at: float | None  # there; None: no code of the user's ran
    ended_at: float | None
    end: str  # exited, signaled, ...; empty: it is not over
    exit_code: int | None
    signal: int | None
    node: str  # there; empty: not told
    cpu_s: float | None  # None: not told, as below
    memory_mib: int | None
    slices: str  # CUDA_VISIBLE_DEVICES there
    cost: float  # reserved; once it is over, spent
    limit_s: int  # the user's own time limit; 0: none
    closed: bool  # Slurm has its end on record, too
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    runs: tuple[RunView, ...]
