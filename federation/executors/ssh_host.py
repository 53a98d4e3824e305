"""A login node where nothing may be installed: folders by SFTP, Slurm's commands by sh(1).

Every job there runs as the one user that we log in as, so the pool's file names who of this host's users may use it.
This host keeps a copy of each attempt's files: inputs are taken from it before the job is handed over, and what the job
left is brought to it before the job is said to have ended; neither has a time limit.

Crash: what was cut off while it was moved goes on where it was.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from federation.access.acting import LEAST_UID, Account, account_of
from federation.access.names import asked
from federation.errors import FedError, OutcomeUnknown, Refused, Unavailable
from federation.executors import layout, ssh_scripts
from federation.executors.host import MAX_TEXT
from federation.executors.layout import Record
from federation.executors.spool import Spool
from federation.executors.ssh_files import SshFiles
from federation.executors.ssh_link import SshLink, words
from federation.executors.ssh_shell import Shell
from federation.model.spec import JobSpec
from federation.model.states import End, Outcome
from federation.model.token import Key
from federation.ports import Place
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.slurm.process import judge

log = logging.getLogger(__name__)

KEYS_A_CALL = 500
_ENV = "export TZ=UTC LC_ALL=C SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class SshPlace:
    """`root`: of the folders there, below the login's home if it is relative. `copies`: of the files here."""

    copies: Spool
    users: frozenset[str]
    root: str = ".fed"
    bin_dir: str = ""  # of Slurm's commands there, if a login without a shell's start-up files does not find them
    least_uid: int = LEAST_UID


class SshHost:
    """Implements `federation.executors.host.Host`."""

    def __init__(self, link: SshLink, place: SshPlace) -> None:
        self._place, self._copies = place, place.copies
        self._shell = Shell(link, place.root)
        self._files = SshFiles(self._shell, place.copies)
        self._sweep_at = 0.0

    async def close(self) -> None:
        await self._files.close()
        await self._shell.link.close()

    async def place(self, key: Key, user: str) -> Place:
        return await self._copies.on_thread(self._copies.place, key, await self._account(user))

    async def lay(self, key: Key, spec: JobSpec, user: str) -> str:
        return await self._files.lay(key, spec, await self._account(user))

    async def records(self, keys: Sequence[Key]) -> Mapping[Key, Record]:
        root = await self._shell.root()
        found: dict[Key, Record] = {}
        for portion in layout.portions(keys, KEYS_A_CALL):
            since = await self._copies.on_thread(self._since, portion)
            said = await self._shell.sh(ssh_scripts.records(root, portion))
            try:
                found |= ssh_scripts.parse_records(said.out.decode("ascii", "replace"), since)
            except ValueError as error:
                raise Unavailable(f"what the login node says of its folders can't be read: {error}") from None
        for key, record in found.items():
            self._files.follow(key, record)
        return found

    def _since(self, keys: Sequence[Key]) -> dict[Key, float]:
        since = {}
        for key in keys:
            try:
                since[key] = self._copies.record(key).since
            except (OSError, FedError):
                since[key] = 0.0
        return since

    async def fence(self, key: Key, end: End | None = None) -> bool:
        said = await self._shell.sh(ssh_scripts.fence(await self._shell.root(), key, end))
        ours = layout.parse_claim(said.out.decode("ascii", "replace").strip()).fence
        if ours:
            self._files.forget(key)
        return ours

    async def forget(self, key: Key) -> None:
        self._files.forget(key)
        await self._shell.sh(ssh_scripts.forget(await self._shell.root(), key))
        await self._copies.on_thread(self._copies.forget, key)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + layout.SWEEP_S
            try:
                await self._shell.sh(ssh_scripts.sweep(await self._shell.root()))
            except Unavailable as error:
                log.warning("ssh.not_swept", extra={"why": str(error)})

    async def text(self, path: Path) -> str:
        said = await self._shell.sh(ssh_scripts.text(str(path), MAX_TEXT + 1))
        return said.out.decode("ascii", "replace")

    async def run(self, argv: Sequence[str], user: str = "") -> str:
        if user:
            await self._account(user)
        path = f"PATH={words([self._place.bin_dir])}:$PATH; " if self._place.bin_dir else ""
        try:
            said = await self._shell.link.run(f"{path}{_ENV}; exec {words(argv)}")
        except OutcomeUnknown as error:
            raise SlurmUnavailable(f"{argv[0]}: {error}", hint="is the login node reachable?") from None
        return judge(argv, said.status, said.out.decode(errors="replace"), said.err.decode(errors="replace"))

    async def here(self, key: Key, outcome: Outcome) -> bool:
        return await self._files.here(key, outcome)

    async def _account(self, user: str) -> Account:
        if user not in self._place.users:
            raise Refused(f"user {user} may not use this pool's login", hint="see `users` of the pool")
        return await asked(partial(account_of, user, least_uid=self._place.least_uid))
