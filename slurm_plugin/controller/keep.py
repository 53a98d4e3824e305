"""What the controller keeps on disk: each node's last inventory (for its GPUs' geometry), and the catalogue.

Nothing here is needed to be right: without it a controller that starts before its agents does not know what they have.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from slurm_plugin import atomic, catalogue_file
from slurm_plugin.errors import ConfigError
from slurm_plugin.proto.vgpu.v1 import pool_pb2 as pb

log = logging.getLogger(__name__)

FILE_BYTES = 1 << 20  # longest inventory file that is read
WHO_BYTES = 128  # of the lock that are told

Stamp = tuple[int, ...]  # what tells one version of a file from another; () when there is none


@contextlib.contextmanager
def claimed(state_dir: Path) -> Iterator[None]:
    """The state folder is this process's alone while the context is open.

    A folder that can't be written keeps nobody from serving, and is told later. Raises ConfigError with who has it.
    Crash: it is free again, whoever the file still names.
    """
    with contextlib.ExitStack() as stack:
        try:
            state_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            who = os.pread(descriptor, WHO_BYTES, 0).decode(errors="replace").strip()
            raise ConfigError(
                f"controller.state_dir: another controller ({who}) has {state_dir}",
                hint="a pool has one controller: stop that one, or leave the pool to it",
            ) from None
        except OSError as error:
            log.warning("keep.not_claimed", extra={"path": str(state_dir), "error": str(error)})
        yield


class Keep:
    """Crash: every file is whole, old or new."""

    def __init__(self, state_dir: Path, catalogue: Path) -> None:
        self._nodes = state_dir / "nodes"
        self._catalogue = catalogue

    def load(self, nodes: tuple[str, ...]) -> dict[str, pb.Inventory]:
        """The last inventory of these nodes, as far as there is one that can be read; without its grants."""
        found: dict[str, pb.Inventory] = {}
        for node in nodes:
            path = self._nodes / f"{node}.pb"
            try:
                inventory = pb.Inventory.FromString(path.read_bytes()[:FILE_BYTES])
            except FileNotFoundError:
                continue
            except (OSError, DecodeError) as error:
                log.warning("keep.unreadable", extra={"path": str(path), "error": str(error)})
                continue
            del inventory.grants[:], inventory.waiting[:], inventory.garbled[:]
            found[node] = inventory
        return found

    async def inventory(self, node: str, inventory: pb.Inventory) -> None:
        """Raises OSError."""
        await asyncio.to_thread(
            _write, self._nodes / f"{node}.pb", inventory.SerializeToString(), mode=0o600, folder=0o700
        )

    def present_catalogue(self) -> str:
        """The catalogue's text, empty when there is none that can be read."""
        try:
            return self._catalogue.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    def catalogue_stamp(self) -> Stamp:
        """Another one when somebody has touched the file."""
        try:
            return _stamp(self._catalogue.stat())
        except OSError:
            return ()

    async def catalogue(self, text: str) -> Stamp:
        """Tells the stamp of what was written: the file itself may be another one a moment later. Raises OSError."""
        return _stamp(
            await asyncio.to_thread(_write, self._catalogue, text.encode(), mode=catalogue_file.MODE, folder=0o755)
        )


def _stamp(facts: os.stat_result) -> Stamp:
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_mode, facts.st_uid)


def _write(path: Path, data: bytes, *, mode: int, folder: int) -> os.stat_result:
    """`folder` is the mode of a folder that has to be made, whatever the umask."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
        path.parent.chmod(folder)
    return atomic.write(path, data, mode=mode)
