"""Where a scheduler's commands run and its jobs' folders lie: this host, or, in ssh_host.py, one behind ssh."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from federation.access.acting import LEAST_UID, Account, account_of
from federation.access.names import asked
from federation.errors import Unavailable
from federation.executors import layout
from federation.executors.layout import Record
from federation.executors.marks import Marks
from federation.executors.spool import Spool
from federation.model.spec import JobSpec
from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.ports import Place
from slurm_plugin.catalogue import MAX_BYTES
from slurm_plugin.slurm.process import Identity, Runner, Site

log = logging.getLogger(__name__)

Changed = Callable[[tuple[Key, ...]], None]

MAX_TEXT = MAX_BYTES  # of a file of the cluster's; a longer one is cut, and can't be read then


class Host(Protocol):
    """Every call raises Unavailable when the host does not answer, or does not know a user; Refused for one that it
    does not take.
    """

    async def place(self, key: Key, user: str) -> Place:
        """See `federation.ports.Places`."""

    async def lay(self, key: Key, spec: JobSpec, user: str) -> str:
        """All that the job needs is in its folder, durably. The folder's path there.

        Raises NoRoom while it is on its way there: it goes on, and is asked for again.
        """

    async def records(self, keys: Sequence[Key]) -> Mapping[Key, Record]:
        """A folder that could not be read is left out."""

    async def here(self, key: Key, outcome: Outcome) -> bool:
        """Whether all that a job that ended left is in its `place`; what is not there yet is being brought."""

    async def fence(self, key: Key, end: End | None = None) -> bool:
        """See `federation.ports.Executor`. `end`: how the backend ended it before it started; it stays there."""

    async def forget(self, key: Key) -> None: ...

    async def text(self, path: Path) -> str:
        """Of a file of the cluster's, where its commands run; "": there is none that can be read."""

    async def run(self, argv: Sequence[str], user: str = "") -> str:
        """stdout of a command of Slurm's, as this user; else as whoever serves the pool.

        Raises SlurmError (it said no) or SlurmUnavailable (no answer: the outcome is unknown).
        """


class MountedHost:
    """This host, with the folders on a file system that every node of the cluster has at the same path.

    `changed` is told of attempts whose folder shows that they have begun or ended.
    """

    def __init__(
        self, spool: Spool, site: Site, *, least_uid: int = LEAST_UID, changed: Changed = lambda _: None
    ) -> None:
        self._spool, self._least_uid = spool, least_uid
        self._runner = Runner(site)
        self._marks = Marks(spool, changed)

    async def place(self, key: Key, user: str) -> Place:
        return await self._spool.on_thread(self._spool.place, key, await self._account(user))

    async def lay(self, key: Key, spec: JobSpec, user: str) -> str:
        account = await self._account(user)
        await self._spool.on_thread(self._spool.lay, key, account, layout.files(key, spec))
        self._marks.follow(key, begun=False)
        return str(self._spool.folder(key))

    async def records(self, keys: Sequence[Key]) -> Mapping[Key, Record]:
        found = await self._spool.on_thread(self._records, keys)
        for key, record in found.items():
            if record.uid is None or record.fenced or record.ending is not None:
                self._marks.drop(key)
            else:
                self._marks.follow(key, begun=record.claim is not None)
        return found

    def _records(self, keys: Sequence[Key]) -> dict[Key, Record]:
        found = {}
        for key in keys:
            try:
                found[key] = self._spool.record(key)
            except (OSError, Unavailable) as error:
                log.warning("spool.not_read", extra={"job": str(key), "why": str(error)})
        return found

    async def here(self, key: Key, outcome: Outcome) -> bool:  # noqa: ARG002
        return True

    async def fence(self, key: Key, end: End | None = None) -> bool:
        return await self._spool.on_thread(self._spool.fence, key, end)

    async def forget(self, key: Key) -> None:
        self._marks.drop(key)
        await self._spool.on_thread(self._spool.forget, key)

    async def text(self, path: Path) -> str:
        return await self._spool.on_thread(_text, path)

    async def run(self, argv: Sequence[str], user: str = "") -> str:
        if not user:
            return await self._runner.run(argv)
        account = await self._account(user)
        return await self._runner.run(argv, identity=_identity(account))

    async def _account(self, user: str) -> Account:
        return await asked(partial(account_of, user, least_uid=self._least_uid))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT + 1).decode("ascii", "replace")
    except OSError:
        return ""


def _identity(account: Account) -> Identity:
    return Identity(uid=account.uid, gid=account.gid, groups=account.groups)
