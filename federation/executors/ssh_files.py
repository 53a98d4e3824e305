"""A job's files between this host's copy and a login node: inputs there, and back what it writes and leaves.

Each job has at most one task that moves something, and few of them work at once. Crash: what was cut off goes on where
it was, as soon as the job is handed over or looked at again.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import paramiko

from federation.access.acting import Account, acting_as
from federation.access.finding import find, meant
from federation.access.paths import Folder
from federation.errors import FedError, NoRoom, Refused, Unavailable
from federation.executors import layout, ssh_scripts, transfer
from federation.executors.layout import Record
from federation.executors.spool import Spool
from federation.executors.ssh_link import words
from federation.executors.ssh_scripts import Found
from federation.executors.ssh_shell import Shell
from federation.executors.transfer import Here
from federation.model.spec import JobSpec
from federation.model.states import Outcome
from federation.model.token import Key
from federation.tasks import ended

log = logging.getLogger(__name__)

NAMES_A_CALL = 500
MAX_FILES = 100_000  # of a job's inputs
MOST_BROUGHT = 10_001  # of a job's outputs: one more than any site gives back, so that it says so
FETCHES = 2  # jobs whose files are brought at once; the others wait
SENDS = 2  # jobs whose inputs are sent at once; with those, fewer than CHANNELS
LAY_S = 20.0  # so long a hand-over waits for its files; what takes longer is on its way when it is asked for again
TRIES = 2  # to move a file whose hash is wrong, in one go
HASH_S = 900.0  # longest hashing of one portion of files
HERE, PATTERNS = "fetched", "outputs"  # names in the copy's folder: all is here; which files are wanted
WORK = layout.WORK.encode() + b"/"


@dataclass(frozen=True, slots=True)
class _Laying:
    task: asyncio.Task[str]
    until: float  # by the loop's clock: it is waited for


class SshFiles:
    """`copies`: the files of this host."""

    def __init__(self, shell: Shell, copies: Spool) -> None:
        self._shell, self._copies = shell, copies
        self._laying: dict[Key, _Laying] = {}
        self._fetching: dict[Key, asyncio.Task[None]] = {}
        self._sends, self._turns = asyncio.Semaphore(SENDS), asyncio.Semaphore(FETCHES)

    async def close(self) -> None:
        await ended(*self._fetching.values(), *(one.task for one in self._laying.values()))

    # -- to there

    async def lay(self, key: Key, spec: JobSpec, account: Account) -> str:
        """See `federation.executors.host.Host`."""
        now = asyncio.get_running_loop().time()
        wait_s = 0.0 if spec.inputs and self._sends.locked() else LAY_S
        laying = self._laying.get(key)
        if laying is None:
            task = asyncio.create_task(self._lay(key, spec, account))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # or asyncio logs it
            laying = self._laying[key] = _Laying(task, now + wait_s)
        await asyncio.wait([laying.task], timeout=max(0.0, laying.until - now))
        if not laying.task.done():
            raise NoRoom("its inputs are on their way to the login node")
        if self._laying.get(key) is laying:
            del self._laying[key]
        if laying.task.cancelled():
            raise Unavailable("it is not handed over any more")
        return laying.task.result()

    async def _lay(self, key: Key, spec: JobSpec, account: Account) -> str:
        root = await self._shell.root()
        files = layout.files(key, spec) | {PATTERNS: b"\0".join(spec.outputs)}
        await self._copies.on_thread(self._copies.lay, key, account, files)
        said = await self._shell.sh(ssh_scripts.folder(root, key))
        path = os.fsdecode(said.out).rstrip("\n")
        copy = self._copies.folder(key)
        inputs = await self._copies.on_thread(_all_files, copy, account)
        await self._put(
            key, [Here(folder=copy, path=name.encode(), account=account) for name in files if name != PATTERNS]
        )
        for at in range(0, len(inputs), NAMES_A_CALL):
            portion = [Here(folder=copy, path=one, account=account) for one in inputs[at : at + NAMES_A_CALL]]
            async with self._sends:
                await self._put(key, portion)
        return path

    async def _put(self, key: Key, files: Sequence[Here]) -> None:
        """What is there and right is not moved again."""
        root = await self._shell.root()
        base = os.fsencode(f"{root}/{layout.name_of(key)}/")
        left = await self._not_there(key, root, files)
        if not left:
            return
        for _ in range(TRIES):
            wanted = await self._send(base, left)
            parts = {one: os.fsdecode(transfer.part_of(one.path)) for one in left}
            said = await self._shell.sh(ssh_scripts.hashes(root, key, list(parts.values())), timeout_s=HASH_S)
            got = _parsed(said.out)
            right = [name for name, mine, theirs in zip(left, wanted, got, strict=True) if mine == theirs]
            moved = {parts[one]: os.fsdecode(one.path) for one in right}
            await self._shell.sh(ssh_scripts.settle(root, key, moved))
            left = [one for one in left if one not in right]
            if not left:
                return
            wrong = words([os.fsdecode(base) + parts[one] for one in left])
            await self._shell.sh(f"rm -f {wrong}")
        raise Unavailable(f"{len(left)} files did not arrive at the login node as they were")

    async def _not_there(self, key: Key, root: str, files: Sequence[Here]) -> list[Here]:
        names = [os.fsdecode(one.path) for one in files]
        said = await self._shell.sh(ssh_scripts.laid(root, key, names), timeout_s=HASH_S)
        told = _parsed(said.out, ssh_scripts.parse_laid)
        if len(told) != len(files):
            raise Unavailable(f"the login node told of {len(told)} of {len(files)} files: the connection was cut")
        there = dict(zip(files, told, strict=True))
        mine = await self._copies.on_thread(_hashes, [one for one, hash_there in there.items() if hash_there])
        return [one for one, hash_there in there.items() if mine.get(one) != hash_there]

    async def _send(self, base: bytes, files: Sequence[Here]) -> list[str]:
        cut = threading.Event()
        try:
            return await self._shell.files(partial(_put_all, base=base, files=files, cut=cut))
        finally:
            cut.set()

    # -- from there

    async def here(self, key: Key, outcome: Outcome) -> bool:
        """See `federation.executors.host.Host`."""
        if await self._copies.on_thread(self._copies.read, key, HERE):
            return True
        self._spawn(key, self._fetch(key, outcome))
        return False

    def _spawn(self, key: Key, work: Coroutine[None, None, None]) -> None:
        """One at a time of each job."""
        if key in self._fetching:
            work.close()
            return
        task = self._fetching[key] = asyncio.create_task(self._quietly(key, work))
        task.add_done_callback(lambda _: self._fetching.pop(key, None))

    async def _quietly(self, key: Key, work: Coroutine[None, None, None]) -> None:
        """What fails here goes on with the next look at the job."""
        try:
            async with self._turns:
                await work
        except (FedError, OSError) as error:
            log.warning("ssh.not_fetched", extra={"job": str(key), "why": str(error)})

    async def _fetch(self, key: Key, outcome: Outcome) -> None:
        copy = self._copies.folder(key)
        account = await self._copies.on_thread(_owner, copy)
        root = await self._shell.root()
        patterns = await self._copies.on_thread(_patterns, copy, account)
        said = await self._shell.sh(ssh_scripts.find(root, key, patterns), timeout_s=HASH_S)
        wanted = [one for one in _found(said.out) if _meant(one.path, patterns)][:MOST_BROUGHT]
        if len(said.out) >= ssh_scripts.MOST_TOLD and len(wanted) < MOST_BROUGHT:
            raise Unavailable("the job left more files than can be told of")
        await self._streams(key, account, (outcome.stdout_size, outcome.stderr_size), whole=True)
        for at in range(0, len(wanted), NAMES_A_CALL):
            portion = wanted[at : at + NAMES_A_CALL]
            names = [os.fsdecode(WORK + one.path) for one in portion]
            said = await self._shell.sh(ssh_scripts.hashes(root, key, names), timeout_s=HASH_S)
            await self._get(key, account, dict(zip(portion, _parsed(said.out), strict=True)))
        await self._copies.on_thread(self._copies.lay, key, account, {HERE: b"all\n"})

    def follow(self, key: Key, record: Record) -> None:
        """What a job writes is brought while it runs, so that it can be read here."""
        if record.claim is None or record.fenced or record.ending is not None or not any(record.sizes):
            return
        self._spawn(key, self._follow_streams(key, record.sizes))

    async def _follow_streams(self, key: Key, sizes: tuple[int, int]) -> None:
        account = await self._copies.on_thread(_owner, self._copies.folder(key))
        await self._streams(key, account, sizes, whole=False)

    async def _streams(self, key: Key, account: Account, sizes: tuple[int, int], *, whole: bool) -> None:
        root = await self._shell.root()
        for name, size in zip((layout.STDOUT, layout.STDERR), sizes, strict=True):
            here = Here(folder=self._copies.folder(key), path=name.encode(), account=account)
            if not whole and await self._copies.on_thread(_size, here) == size:
                continue
            there = os.fsencode(f"{root}/{layout.name_of(key)}/{name}")
            got = await self._shell.files(partial(transfer.follow, there=there, size=size, here=here, right=whole))
            if not whole:
                continue
            said = await self._shell.sh(ssh_scripts.hash_of_begin(root, key, name, size), timeout_s=HASH_S)
            if _parsed(said.out) != [got]:
                await self._copies.on_thread(transfer.drop, here)
                raise Unavailable(f"{name} did not arrive as it is at the login node")

    async def _get(self, key: Key, account: Account, wanted: Mapping[Found, str]) -> None:
        """Files of the job's folder, each with its hash there."""
        copy, left = self._copies.folder(key) / layout.WORK, dict(wanted)
        base = os.fsencode(f"{await self._shell.root()}/{layout.name_of(key)}/") + WORK
        for _ in range(TRIES):
            files = {one: Here(folder=copy, path=one.path, account=account) for one in left}
            got = await self._shell.files(partial(_get_all, base=base, files=files))
            await self._copies.on_thread(_keep_all, files, [one for one in left if got[one] == left[one]])
            left = {one: right for one, right in left.items() if got[one] != right}
            if not left:
                return
        raise Unavailable(f"{len(left)} files did not arrive as they are at the login node")

    def forget(self, key: Key) -> None:
        """Nothing more of it is moved."""
        if task := self._fetching.get(key):
            task.cancel()
        if laying := self._laying.pop(key, None):
            laying.task.cancel()


def _size(here: Here) -> int:
    try:
        return (here.folder / os.fsdecode(here.path)).lstat().st_size
    except FileNotFoundError:
        return 0


def _owner(folder: Path) -> Account:
    facts = folder.stat()
    return Account(name=f"uid {facts.st_uid}", uid=facts.st_uid, gid=facts.st_gid, groups=(facts.st_gid,))


def _all_files(copy: Path, account: Account) -> list[bytes]:
    """Inputs, below the attempt's folder."""
    with acting_as(account), Folder(copy / layout.WORK) as folder:
        return [WORK + path for path in find(folder, (b"*", b".*"), most=MAX_FILES)]


def _patterns(copy: Path, account: Account) -> list[bytes]:
    with acting_as(account), Folder(copy) as folder, os.fdopen(folder.open_to_read(PATTERNS.encode()), "rb") as file:
        return [one for one in file.read().split(b"\0") if one]


def _meant(path: bytes, patterns: Sequence[bytes]) -> bool:
    """What lies too deep is passed over, as `find` does."""
    try:
        return meant(path, patterns)
    except Refused:
        return False


def _get_all(client: paramiko.SFTPClient, *, base: bytes, files: Mapping[Found, Here]) -> dict[Found, str]:
    return {one: transfer.get(client, base + one.path, one.size, here) for one, here in files.items()}


def _keep_all(files: Mapping[Found, Here], right: Sequence[Found]) -> None:
    for one, here in files.items():
        if one in right:
            transfer.keep(here, one.mode)
        else:
            transfer.drop(replace(here, path=transfer.part_of(here.path)))


def _put_all(client: paramiko.SFTPClient, *, base: bytes, files: Sequence[Here], cut: threading.Event) -> list[str]:
    return [transfer.put(client, one, base + one.path, cut) for one in files]


def _hashes(files: Sequence[Here]) -> dict[Here, str]:
    return {one: transfer.hash_of(one) for one in files}


def _parsed(out: bytes, parse: Callable[[bytes], list[str]] = ssh_scripts.parse_hashes) -> list[str]:
    try:
        return parse(out)
    except ValueError as error:
        raise Unavailable(f"what sha256sum says can't be read: {error}") from None


def _found(out: bytes) -> list[Found]:
    try:
        return ssh_scripts.parse_find(out)
    except ValueError as error:
        raise Unavailable(f"what find says can't be read: {error}") from None
