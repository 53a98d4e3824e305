"""Files to and from a login node, each whole by its hash: what was cut off goes on where it was.

On both sides a file grows beside its place and is moved there when its hash is right. All calls block.
"""

import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedRandom, BufferedReader
from pathlib import Path

import paramiko

from federation.access.acting import Account, acting_as
from federation.access.paths import Folder
from federation.errors import OutcomeUnknown

REQUEST = 32 << 10  # bytes; what every server takes
WINDOW = 8 << 20  # bytes asked for at once: all that is kept in memory
REQUESTS = 256  # in flight; more make some servers stall


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A file below a folder of a user's on this host."""

    folder: Path
    path: bytes
    account: Account


def part_of(path: bytes) -> bytes:
    """Where it grows: a name that no user's can be too long for, and that no pattern means which does not say so."""
    folder, slash, name = path.rpartition(b"/")
    return folder + slash + b".fed-" + hashlib.sha256(name).hexdigest()[:16].encode()


def put(client: paramiko.SFTPClient, here: Here, there: bytes, cut: threading.Event) -> str:
    """Its hash; the file lies at `part_of(there)`. Goes on behind what is there already.

    Raises EOFError once it is `cut`: no thread can be told to end.
    """
    with _source(here) as source:
        size = os.fstat(source.fileno()).st_size
        mode = os.fstat(source.fileno()).st_mode & 0o777
        part = part_of(there)
        have = _size(client, part)
        if have > size:
            have = 0
        with client.open(part, "ab" if have else "wb") as target:
            target.set_pipelined(True)
            source.seek(have)
            while piece := source.read(REQUEST):
                if cut.is_set():
                    raise EOFError("nobody waits for it any more")
                target.write(piece)
        client.chmod(part, mode | stat.S_IRUSR | stat.S_IWUSR)
        source.seek(0)
        return hashlib.file_digest(source, "sha256").hexdigest()


def hash_of(here: Here) -> str:
    with _source(here) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _source(here: Here) -> BufferedReader:
    with acting_as(here.account), Folder(here.folder) as folder:
        return os.fdopen(folder.open_to_read(here.path), "rb")


def get(client: paramiko.SFTPClient, there: bytes, size: int, here: Here) -> str:
    """The hash of the first `size` bytes of it, which lie beside their place: see `keep`."""
    with _grown(client, there, size, replace(here, path=part_of(here.path))) as target:
        target.seek(0)
        return hashlib.file_digest(target, "sha256").hexdigest()


def follow(client: paramiko.SFTPClient, there: bytes, size: int, here: Here, *, right: bool = False) -> str:
    """What a file that only grows has more than ours, in its place. Its hash, if that is asked for (`right`)."""
    with _grown(client, there, size, here) as target:
        target.seek(0)
        return hashlib.file_digest(target, "sha256").hexdigest() if right else ""


@contextmanager
def _grown(client: paramiko.SFTPClient, there: bytes, size: int, here: Here) -> Iterator[BufferedRandom]:
    """Ours, with `size` bytes: it goes on where it was cut. Durable."""
    with acting_as(here.account), Folder(here.folder) as folder:
        handle = folder.open_to_write(here.path, 0o600)
    try:
        target = os.fdopen(os.open(f"/proc/self/fd/{handle}", os.O_RDWR | os.O_CLOEXEC), "r+b")
    finally:
        os.close(handle)
    with target:
        have = os.fstat(target.fileno()).st_size
        if have > size:
            target.truncate(0)
            have = 0
        target.seek(have)
        if have < size:
            with client.open(there, "rb") as source:
                for piece in _pieces(source, have, size):
                    target.write(piece)
            target.flush()
            os.fsync(target.fileno())
        yield target


def keep(here: Here, mode: int) -> None:
    """Move a file that is whole to its place."""
    with acting_as(here.account), Folder(here.folder) as folder:
        part = part_of(here.path)
        handle = folder.open_to_read(part)
        try:
            os.fchmod(handle, mode & 0o777 | 0o400)
        finally:
            os.close(handle)
        folder.move(part, here.path)


def drop(here: Here) -> None:
    """What turned out to be wrong is moved anew."""
    with acting_as(here.account), Folder(here.folder) as folder, suppress(FileNotFoundError):
        folder.remove(here.path)


def _pieces(source: paramiko.SFTPFile, at: int, size: int) -> Iterator[bytes]:
    while at < size:
        end = min(size, at + WINDOW)
        wanted = [(begin, min(REQUEST, end - begin)) for begin in range(at, end, REQUEST)]
        for piece, (_, length) in zip(source.readv(wanted, REQUESTS), wanted, strict=True):
            if len(piece) != length:
                raise OutcomeUnknown("a file became shorter while it was read")
            yield piece
        at = end


def _size(client: paramiko.SFTPClient, path: bytes) -> int:
    try:
        return client.stat(path).st_size or 0
    except FileNotFoundError:
        return 0
