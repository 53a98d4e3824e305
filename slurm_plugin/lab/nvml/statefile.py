"""The state file under its lock, as Python reads and changes it: the C library's own way, with one store in the end."""

import ctypes
import errno
import fcntl
import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_plugin.errors import LabError
from slurm_plugin.lab.nvml import layout

LOCK_WAIT_S = 10.0
_LOCK_POLL_S = 0.001


class Node:
    """The mapped file while its lock is held. `file` is a copy: changes reach clients through write() and commit()."""

    def __init__(self, map_: mmap.mmap) -> None:
        self._map = map_
        self.file = layout.File.from_buffer_copy(map_)

    @property
    def now(self) -> layout.State:
        state: layout.State = self.file.state[self.file.current & 1]
        return state

    def write(self, field: str, value: bytes | ctypes.Array[Any]) -> None:
        data = bytes(value)
        offset = getattr(layout.File, field).offset
        self._map[offset : offset + len(data)] = data

    def draft(self) -> layout.State:
        state = layout.State.from_buffer_copy(self.now)
        state.sequence += 1
        return state

    def commit(self, state: layout.State) -> None:
        """Crash: the old state is in force until the one store of `current`, the library's own way."""
        other = (self.file.current & 1) ^ 1
        offset = layout.File.state.offset + other * len(bytes(state))
        self._map[offset : offset + len(bytes(state))] = bytes(state)
        self.write("current", struct.pack("I", other))
        if (
            self.file.tree_sequence == self.now.sequence
        ):  # the files were in place, and no change from here needs the library's
            self.write("tree_sequence", struct.pack("Q", state.sequence))

    def find(self, uuid: str) -> tuple[int, int, int]:
        """(GPU index, GPU instance, compute instance) of a GPU's or MIG device's UUID."""
        for index in range(self.file.gpus):
            board, gpu = self.file.board[index], self.now.gpu[index]
            if board.uuid.decode() == uuid:
                return index, -1, -1
            for number, gi in enumerate(gpu.gi):
                for nth, ci in enumerate(gi.ci):
                    if ci.serial and board.mig_uuid[number][nth].value.decode() == uuid:
                        return index, number, nth
        hint = "`vgpu show node` lists the UUIDs of a node's GPUs and slices"
        raise LabError(f"no simulated GPU or MIG device is called '{uuid}'", hint=hint)


@contextmanager
def locked(path: Path) -> Iterator[Node]:
    with path.open("r+b") as file:
        _lock(file.fileno(), path)
        if path.stat().st_size != len(bytes(layout.File())):
            raise LabError(f"{path} is no state file of this version", hint="make the node anew")
        with mmap.mmap(file.fileno(), 0) as map_:
            yield Node(map_)


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK or time.monotonic() > deadline:
                raise LabError(
                    f"the simulated GPUs of {path} stay locked", hint="an NVML client hangs in a call"
                ) from error
            time.sleep(_LOCK_POLL_S)
        else:
            return
