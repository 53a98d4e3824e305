"""An origin fetches the files that a job brings back, to the folder it was submitted in, as the user who submitted it.

Each grows under a name of its own beside its place, `.fed-...`, and takes it when it is whole by its hash. A cut costs
at most one chunk: what is there already is known by its hashes.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from federation.access.acting import Account, acting_as
from federation.access.finding import meant
from federation.access.paths import Folder
from federation.errors import Refused, Unavailable
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from federation.stage.chunks import CHUNK_BYTES, MAX_CHUNKS, MAX_FILES, Seen, chunks_of, hash_of, listed
from federation.stage.far import Far
from federation.stage.inputs import MOST_ASKED
from federation.stage.threads import in_thread
from federation.wire.convert import key_to_wire

MOST_MATCHED = 1000  # files that are held against each pattern, to tell those that meant none
MORE = "most_output_mib of this peer in fed.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    folder: Path
    account: Account
    patterns: Sequence[bytes]  # what was asked for: nothing else is taken, whatever the far side offers
    most_bytes: int = 1 << 62  # of all files
    threads: ThreadPoolExecutor | None = None  # that the folder's files are used on
    sized: Callable[[int], None] = lambda _: None  # hears of how many bytes all files have


async def fetch(far: Far, key: Key, goal: Goal, seen: Seen) -> tuple[bytes, ...]:
    """Returns when all files are in their places, durable: the patterns that meant none.

    Raises Unavailable, Refused (paths that lead out, or more than is taken from there).
    """
    manifest = await far.results(pb.ResultsRequest(key=key_to_wire(key)))
    if len(manifest.files) > MAX_FILES:
        raise Refused(f"the far side has more than {MAX_FILES} files")
    if sum(len(file.chunks) for file in manifest.files) > MAX_CHUNKS:
        raise Refused(f"the far side has more than {MAX_CHUNKS} chunks in one job")
    total = sum(file.size for file in manifest.files)
    if total > goal.most_bytes:
        raise Refused(too_much(total, goal.most_bytes), hint=MORE)
    for file in manifest.files:
        if not meant(file.path, goal.patterns) or len(file.chunks) != chunks_of(file.size):
            raise Refused("the far side offers a file that the job did not name")
    goal.sized(total)
    for file in manifest.files:
        await _fetch_one(far, key, goal, file, seen)
    paths = [file.path for file in manifest.files[:MOST_MATCHED]]
    return tuple(one for one in goal.patterns if not any(meant(path, (one,)) for path in paths))


def too_much(total: int, most: int) -> str:
    return f"its output has {total} bytes, and {most} are taken from there"


async def _fetch_one(far: Far, key: Key, goal: Goal, file: pb.File, seen: Seen) -> None:
    part = _part(file.path, key)
    if await in_thread(_whole, goal, file.path, file, threads=goal.threads):
        return seen(file.size)
    threads = goal.threads
    handle, known = await in_thread(_begin, goal, part, unwanted=lambda begun: os.close(begun[0]), threads=threads)

    async def write(data: bytes, at: int) -> None:
        await in_thread(_write, handle, data, at, threads=threads)
        seen(len(data))

    try:
        wanted = [nth for nth, sha256 in enumerate(file.chunks) if nth >= len(known) or known[nth] != sha256]
        seen((len(file.chunks) - len(wanted)) * CHUNK_BYTES)
        for start in range(0, len(wanted), MOST_ASKED):
            await _fill(far, key, write, file, wanted[start : start + MOST_ASKED])
        await in_thread(_finish, goal, handle, part, file, threads=threads)
    finally:
        os.close(handle)


async def _fill(
    far: Far, key: Key, write: Callable[[bytes, int], Awaitable[None]], file: pb.File, wanted: Sequence[int]
) -> None:
    due = iter(wanted)
    hashes = [file.chunks[nth] for nth in wanted]
    async for chunk in far.get(pb.ChunkList(key=key_to_wire(key), sha256=hashes)):
        nth = next(due, None)
        if nth is None or chunk.sha256 != file.chunks[nth] or hash_of(chunk.data) != chunk.sha256:
            raise Unavailable("a chunk is not what its hash says")
        await write(chunk.data, nth * CHUNK_BYTES)
    if next(due, None) is not None:
        raise Unavailable("the far side stopped in the middle of a file")


def _part(path: bytes, key: Key) -> bytes:
    folder, slash, _ = path.rpartition(b"/")
    mark = hashlib.sha256(key.token.bytes + path).hexdigest()[:16]
    return folder + slash + b".fed-" + mark.encode("ascii")


def _whole(goal: Goal, path: bytes, file: pb.File) -> bool:
    """Is that very file there, as after a crash between its last step and the word that it was done?"""
    try:
        with acting_as(goal.account), Folder(goal.folder) as folder:
            handle = folder.open_to_read(path)
    except (OSError, Refused):
        return False
    try:
        same = os.fstat(handle).st_size == file.size and listed(handle, path).sha256 == file.sha256
    finally:
        os.close(handle)
    return same


def _begin(goal: Goal, part: bytes) -> tuple[int, tuple[bytes, ...]]:
    """The file that grows, and the hashes of what it has already."""
    try:
        with acting_as(goal.account), Folder(goal.folder) as folder:
            handle = folder.open_to_write(part)
            try:
                return handle, _known(folder, part)
            except BaseException:
                os.close(handle)
                raise
    except OSError as error:
        raise _unwritable(goal, error) from None


def _known(folder: Folder, part: bytes) -> tuple[bytes, ...]:
    try:
        reading = folder.open_to_read(part)
    except FileNotFoundError:
        return ()
    try:
        return listed(reading, part).chunks
    finally:
        os.close(reading)


def _finish(goal: Goal, handle: int, part: bytes, file: pb.File) -> None:
    try:
        os.ftruncate(handle, file.size)
        os.fchmod(handle, file.mode & 0o777 | 0o600)
        os.fsync(handle)
        with acting_as(goal.account), Folder(goal.folder) as folder:
            reading = folder.open_to_read(part)
            try:
                whole = listed(reading, part).sha256 == file.sha256
            finally:
                os.close(reading)
            if not whole:
                folder.remove(part)
                raise Unavailable("a file is not whole: it is fetched again")
            folder.move(part, file.path)
    except OSError as error:
        raise _unwritable(goal, error) from None


def _write(handle: int, data: bytes, offset: int) -> None:
    try:
        if os.pwrite(handle, data, offset) != len(data):
            raise Unavailable("can't write all of a chunk: is the disk full?")
    except OSError as error:
        raise Unavailable(f"can't write a file: {error.strerror}") from None


def _unwritable(goal: Goal, error: OSError) -> Unavailable:
    why = f"{goal.account.name} can't write to {os.fspath(goal.folder)}: {error.strerror}"
    return Unavailable(why, hint="the files are kept at the far side until they can be fetched")
