"""Why there is no link with a site: the last word of our dialling, of its gate, or of ours. In memory, and bounded."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import grpc.aio

from federation.errors import FedError
from federation.wire.status import from_status

MOST = 1024  # sites: a CA may have given certificates to many that are no peers of ours
LASTS_S = 600.0  # how long a site that is none of our peers is told of after it was turned away


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    at: float  # seconds that only pass
    why: str


class Faults:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, Fault] = {}

    def note(self, site: str, why: str) -> None:
        """The oldest goes when there are too many."""
        self._known.pop(site, None)
        if len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
        self._known[site] = Fault(at=self._clock(), why=why)

    def linked(self, site: str) -> None:
        self._known.pop(site, None)

    def of(self, site: str) -> str:
        """Empty: nothing was heard."""
        found = self._known.get(site)
        return found.why if found else ""

    def lately(self) -> dict[str, tuple[float, str]]:
        """By site, how many seconds ago, and why."""
        now = self._clock()
        return {site: (now - one.at, one.why) for site, one in self._known.items() if now - one.at < LASTS_S}

    @contextmanager
    def dialling(self, site: str) -> Iterator[None]:
        """What ends the block is noted, and goes on."""
        try:
            yield
        except (FedError, grpc.aio.AioRpcError) as error:
            self.note(site, _word(site, error))
            raise


def _word(site: str, error: FedError | grpc.aio.AioRpcError) -> str:
    told = error if isinstance(error, FedError) else from_status(error)
    said = f"{told} ({told.hint})" if told.hint else str(told)
    if isinstance(error, FedError):
        return said
    return f"the link was cut: {said}" if error.code() is grpc.StatusCode.UNAVAILABLE else f"{site} says: {said}"
