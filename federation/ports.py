"""What the engine needs of the world, as protocols.

Adapters: `federation.executors` (a pool's backend), `federation.peer` and `federation.server` (other sites).
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from federation.model.messages import Message, Room
from federation.model.spec import JobSpec
from federation.model.states import Outcome
from federation.model.token import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The time, twice: records want the calendar, which may be set; silence wants seconds that only pass."""

    wall: float  # Unix seconds
    mono: float  # seconds since this daemon's own zero


def now() -> Now:
    """By this host's clocks."""
    return Now(wall=time.time(), mono=time.monotonic())


class Sight(StrEnum):
    """What a backend and the claim of an attempt show together."""

    ABSENT = "absent"  # every source agrees that it is not there, and nobody has claimed it; see `Seen.handle`
    PENDING = "pending"
    RUNNING = "running"  # claimed
    EXITED = "exited"  # its exit is on record
    FENCED = "fenced"  # claimed by a fence: it never runs
    GONE = "gone"  # claimed; every source agrees that it is not there; no exit on record


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    sight: Sight
    handle: str = ""  # the backend's own name for it; evidence, never an identity. Of ABSENT: it was there, in vain
    started_at: float | None = None
    outcome: Outcome | None = None  # of EXITED


class Executor(Protocol):
    """One pool's backend. A job there carries its key before it can exist.

    Its wrapper claims the attempt by an atomic create before any code of the user's; who loses the claim runs nothing.
    So handing over one attempt twice is harmless. Every call raises Unavailable when the backend does not answer.
    """

    async def room(self) -> Room: ...

    async def submit(self, key: Key, spec: JobSpec, user: str) -> str:
        """Hand it over, and tell the backend's name for it.

        Raises Refused (for good), Unavailable (certain: it is not there), of that NoRoom (it is full now, which is no
        failure), OutcomeUnknown (it may be there).
        """

    async def look(self, keys: Sequence[Key]) -> Mapping[Key, Seen]:
        """What is known of these. A key that could not be observed is left out: that is not ABSENT."""

    async def fence(self, key: Key) -> bool:
        """Claim the attempt, so that it never runs. False: it has been claimed by its own start."""

    async def stop(self, key: Key) -> None:
        """End what runs of it: ask, verify, then kill. Does nothing when nothing does."""

    async def signal(self, key: Key, signal: int) -> None: ...

    async def forget(self, key: Key) -> None:
        """Its output was fetched. The claim stays: it is what makes a late duplicate harmless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an attempt's files are on this host. An executor whose jobs run elsewhere keeps a copy of them here."""

    folder: Path  # the job's own folder: inputs are put here before it is handed over, outputs are taken from here
    stdout: Path
    stderr: Path
    threads: ThreadPoolExecutor | None = None  # that its files are used on; None: the event loop's own


class Places(Protocol):
    """The files of one pool's attempts. What implements Executor implements this, too."""

    async def place(self, key: Key, user: str) -> Place:
        """Made for that user when it is not there yet; the same every time. Raises Refused, Unavailable."""


class Peers(Protocol):
    """The links to other sites."""

    def send(self, site: str, message: Message) -> bool:
        """Hand over for sending, or drop: False, link down or its queue full. Never waits."""


class Mover(Protocol):
    """Bytes between sites: resumed at the byte where they were cut, whole by their hashes. Told to go on any number of
    times; reports to the engine when all of it is here and durable.
    """

    def push_inputs(self, site: str, key: Key, spec: JobSpec) -> None: ...

    def fetch_results(self, site: str, key: Key, outcome: Outcome) -> None: ...
