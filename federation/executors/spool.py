"""The folders of a pool's attempts, on a file system of this host's.

The spool belongs to the daemon, and only it makes folders there; what is in a folder belongs to the job's user. So no
user can put a link where a folder is expected, and whatever is written inside is written as the user.
All calls but `on_thread` block: they are for it.
"""

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from federation.access.acting import Account, acting_as
from federation.access.paths import Folder
from federation.errors import Refused, Unavailable
from federation.executors import layout
from federation.executors.layout import Record
from federation.model.states import End
from federation.model.token import Key
from federation.ports import Place

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SPOOL_MODE = 0o711  # users pass through, and can't list


class Spool:
    """`root` must be the same path wherever the pool's jobs run.

    One on a file system of many hosts (`shared`) is never made here: it may only not be mounted, and in an empty folder
    no job has a claim.
    """

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        self.root, self._shared = root, shared
        self.threads = ThreadPoolExecutor(thread_name_prefix="spool")
        self._sweep_at = 0.0

    async def on_thread(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """What blocks: a file server that hangs has threads of its own to hold, and stops no other pool."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, call, *args)

    def folder(self, key: Key) -> Path:
        return self.root / layout.name_of(key)

    def open(self) -> None:
        """Raises Unavailable."""
        if self._shared:
            if not self.root.is_dir():
                raise Unavailable(f"the pool's spool {self.root} is not there", hint="is its file system mounted?")
            return
        try:
            self.root.mkdir(mode=SPOOL_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"the pool's spool {self.root} can't be made: {error.strerror}") from None

    def prepare(self, key: Key, account: Account) -> Path:
        """The attempt's folder with the job's own in it, both his. Raises Refused (it is another's), Unavailable.

        Crash: a folder of the daemon's own without a claim is empty, and is given to its user the next time.
        """
        self.open()
        folder = self.folder(key)
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            facts = folder.lstat()
            if facts.st_uid != account.uid:
                self._give(folder, facts.st_uid, account)
            with acting_as(account), suppress(FileExistsError):
                (folder / layout.WORK).mkdir(mode=0o700)
        except OSError as error:
            raise Unavailable(f"the job's folder {folder} can't be made: {error.strerror}") from None
        return folder

    def _give(self, folder: Path, owner: int, account: Account) -> None:
        if owner != os.geteuid() or os.path.lexists(folder / layout.CLAIM):
            raise Refused(f"the folder of this attempt is not {account.name}'s")
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)

    def place(self, key: Key, account: Account) -> Place:
        folder = self.prepare(key, account)
        stdout, stderr = folder / layout.STDOUT, folder / layout.STDERR
        return Place(folder=folder / layout.WORK, stdout=stdout, stderr=stderr, threads=self.threads)

    def lay(self, key: Key, account: Account, files: Mapping[str, bytes]) -> None:
        """Durable when it returns. Raises Refused, Unavailable."""
        path = self.prepare(key, account)
        with acting_as(account), Folder(path) as folder:
            for name, content in files.items():
                part = f"{name}.part.{secrets.token_hex(8)}".encode()  # nobody else writes to it
                try:
                    with os.fdopen(folder.open_to_write(part, 0o700), "wb") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                    folder.move(part, name.encode())
                except OSError as error:
                    raise Unavailable(f"{name} of the job can't be written: {error.strerror}") from None

    def record(self, key: Key) -> Record:
        """Raises OSError or Unavailable, when nothing can be said."""
        path = self.folder(key)
        try:
            facts = path.lstat()
        except FileNotFoundError:
            self.open()
            return Record()
        try:
            claim = layout.parse_claim((path / layout.CLAIM).readlink().as_posix()[: layout.MAX_RECORD])
        except FileNotFoundError:
            claim = None
        except OSError as error:
            if error.errno != 22:  # EINVAL: a file or a folder that its user put there, and a wrapper would not pass
                raise
            claim = layout.parse_claim("")
        ending = layout.parse_exit(self.read(key, layout.EXIT)) if claim is not None else None
        sizes = (_size(path / layout.STDOUT), _size(path / layout.STDERR))
        return Record(uid=facts.st_uid, since=facts.st_mtime, claim=claim, ending=ending, sizes=sizes)

    def read(self, key: Key, name: str) -> str:
        """The begin of a small file; nothing of one that is not there, or that is no plain file."""
        try:
            with Folder(self.folder(key)) as folder, os.fdopen(folder.open_to_read(name.encode()), "rb") as file:
                return file.read(layout.MAX_RECORD).decode("ascii", "replace")
        except (FileNotFoundError, Refused):
            return ""

    def has(self, key: Key, name: str) -> bool:
        return os.path.lexists(self.folder(key) / name)

    def fence(self, key: Key, end: End | None = None) -> bool:
        """Whether the claim is ours now, durably: that of the first who fenced it. Raises Unavailable."""
        self.open()
        folder = self.folder(key)
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            with suppress(FileExistsError):
                (folder / layout.CLAIM).symlink_to(layout.fence(end))
            ours = self.record(key).fenced
            for path in (folder, self.root):
                _sync(path)
        except OSError as error:
            raise Unavailable(f"the attempt can't be claimed: {error.strerror}") from None
        return ours

    def forget(self, key: Key) -> None:
        """All but a claim goes, and without one the folder too: what comes late finds nothing. Raises Unavailable.

        Once a day, so do old claims of others.
        """
        folder = self.folder(key)
        try:
            with suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name != layout.CLAIM:
                        _remove(entry)
            with suppress(OSError):  # its claim is in it
                folder.rmdir()
        except OSError as error:
            raise Unavailable(f"{folder} can't be cleared: {error.strerror}") from None
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + layout.SWEEP_S
            self._sweep()

    def _sweep(self) -> None:
        """Claims that nothing can come too late for any more."""
        before = time.time() - layout.CLAIM_DAYS * 86400
        for key in self.attempts():
            folder = self.folder(key)
            with suppress(OSError):  # it went, or something came
                if folder.lstat().st_mtime < before and {one.name for one in folder.iterdir()} <= {layout.CLAIM}:
                    (folder / layout.CLAIM).unlink(missing_ok=True)
                    folder.rmdir()

    def attempts(self) -> Iterator[Key]:
        """Of every attempt that has a folder."""
        with suppress(FileNotFoundError), os.scandir(self.root) as entries:
            for entry in entries:
                if (key := layout.key_of(entry.name)) is not None:
                    yield key


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.lstat().st_size
    return 0


def _remove(entry: "os.DirEntry[str]") -> None:
    """Through no link, as rmtree goes by descriptors."""
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
    else:
        Path(entry.path).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
