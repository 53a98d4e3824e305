"""What two sites tell each other about jobs. Every message may be lost, doubled, late or out of order.

An origin asks, for one attempt; a target answers with what is on its record of that attempt, so any message may be sent
again. Besides, whatever changes at a target gets the next *revision* of its journal, and the origin follows from the
revision that it has applied. A journal has a name: a target that lost its own says so by a new one.
"""

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from federation.model.spec import JobSpec
from federation.model.states import Outcome, Target
from federation.model.token import Key

MOST_CHANGES = 200  # records of one Changes: so many, and there may be more
CONT, STOP, TSTP = 18, 19, 20
STATES = frozenset({CONT, STOP, TSTP})  # whether it goes on: the newest counts, and to say one twice does no harm


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    key: Key
    pool: str
    spec: JobSpec
    again: bool = False  # it was sent before: it may be there, whatever the journal there says
    over: bool = False  # and has ended there: what it left is wanted, and it must not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """This attempt shall not run, whether it is there yet or not. `pool`: where its claim is to be looked for."""

    key: Key
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """`number` counts an attempt's signals: one that was delivered is not delivered again.

    Told one by one: the next only when this one is confirmed, which confirms all that were before it.
    """

    key: Key
    number: int
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The origin has all it wants of this attempt."""

    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Tell what changed after this revision of that journal. Sent every few seconds: it is the heartbeat as well."""

    journal: UUID | None
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a target has on record of an attempt. `revision` orders the records of one journal."""

    key: Key
    revision: int
    state: Target
    outcome: Outcome | None = None  # of ENDED and RELEASED
    started_at: float | None = None
    signals: int = 0  # the number of the last one delivered
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The answer to a message about one attempt."""

    journal: UUID
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """No verdict: this attempt is not on record, and can't be put there now."""

    key: Key
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Every record of this origin that changed after revision `after`, up to `upto`; the newest of each attempt."""

    journal: UUID
    after: int
    upto: int
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a pool can take now."""

    pool: str
    catalogue: str = ""  # its text: what a request for slices means there; empty: it has none
    slices: tuple[tuple[str, int], ...] = ()  # class -> free ones
    free_jobs: int  # how many more it would accept
    free_cpus: int  # idle now
    starts_in_s: float = 0.0  # the pool's own estimate for a job that does not fit now
    price_per_hour: float = 0.0  # of one CPU; of one slice for a job that has slices, unless GPUs have a price
    gpu_price_per_hour: float = 0.0  # of a whole GPU: a slice pays its part of the memory; 0: none
    longest_s: int = 0  # time limit that it allows; 0: any
    why: str = ""  # it takes no jobs now
    batch: bool = False  # it knows what a job of Slurm's wants
    most_cpus: int = 0  # of one job, whatever is free; 0: not told
    most_memory_mib: int = 0  # likewise
    complete: bool = False  # what its catalogue does not have, or that it has none, stays so


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """All pools of a site, whenever one changed."""

    pools: tuple[Room, ...]


FromOrigin: TypeAlias = Submit | Cancel | Signal | Release | Follow
FromTarget: TypeAlias = Told | Busy | Changes | Rooms
Message: TypeAlias = FromOrigin | FromTarget
