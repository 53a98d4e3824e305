"""What the engine wants done once its transaction is durable. None is kept: what still matters is wanted again."""

from dataclasses import dataclass
from typing import TypeAlias

from federation.model.messages import Message
from federation.model.spec import JobSpec
from federation.model.states import Outcome
from federation.model.token import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    site: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Give it to the pool's backend."""

    pool: str
    key: Key
    spec: JobSpec
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    pool: str
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Claim it so that it never runs, or end what runs of it."""

    pool: str
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """One at a time of each attempt, in their order; never one after a newer one."""

    pool: str
    key: Key
    number: int
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Its output may go."""

    pool: str
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class PushInputs:
    site: str
    key: Key
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResults:
    site: str
    key: Key
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Of ours, with one job: somebody should hear of it."""

    about: str
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """What an attempt left at a target may go, unfetched: somebody may look for it."""

    site: str  # where it lies, or, at the target, whose it was
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A message that is one too many."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Of what a site asked: a line of the audit log."""

    site: str
    what: str
    about: str
    verdict: bool = True
    why: str = ""


Effect: TypeAlias = (
    Send | HandOver | Look | Fence | Deliver | Forget | PushInputs | FetchResults | LetGo | Fault | Dropped | Decided
)
