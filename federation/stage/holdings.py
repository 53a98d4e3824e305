"""What a site may touch here: its own attempts, as the journal has them now."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from federation.access.acting import Account, account_of
from federation.access.names import asked
from federation.errors import Refused
from federation.model.job import Attempt
from federation.model.spec import JobSpec
from federation.model.states import Target
from federation.model.token import Key
from federation.ports import Place, Places
from federation.store.store import Store

T = TypeVar("T")

Watching = Callable[[Key, Callable[[], None]], AbstractContextManager[None]]
"""Inside, what it is given is called when that attempt has changed."""


class Journal(Protocol):
    async def read(self, call: Callable[[Store], T]) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    attempt: Attempt
    spec: JobSpec | None  # None: it has been released
    account: Account  # whose files they are here


class Holdings:
    """`places`: one a pool."""

    def __init__(self, journal: Journal, places: Mapping[str, Places], *, least_uid: int) -> None:
        self._journal = journal
        self._places = places
        self._least_uid = least_uid

    async def of(self, site: str, key: Key) -> Held:
        """Raises Refused: not this site's, or never let in; Unavailable: its user is not known now.

        Nobody is told of another site's attempt.
        """
        attempt, spec = await self._journal.read(lambda store: (store.attempt(key), store.attempt_spec(key)))
        if attempt is None or attempt.origin != site or not attempt.user:
            raise Refused(f"attempt {key} of {site} is not here")
        account = await asked(partial(account_of, attempt.user, least_uid=self._least_uid))
        return Held(attempt=attempt, spec=spec, account=account)

    async def staging(self, keys: Sequence[Key]) -> set[Key]:
        """Those of these attempts that wait for inputs."""
        found = await self._journal.read(lambda store: [store.attempt(key) for key in keys])
        return {one.key for one in found if one is not None and one.state is Target.STAGING}

    async def place(self, held: Held) -> Place:
        """Raises what `Places.place` raises."""
        places = self._places.get(held.attempt.pool)
        if places is None:
            raise Refused(f"pool {held.attempt.pool} is no more")
        return await places.place(held.attempt.key, held.attempt.user)
