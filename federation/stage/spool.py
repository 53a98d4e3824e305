"""An origin's folder of each job: its inputs as they were when it was submitted, and what came back of its output.

    jobs/TOKEN/home.json        where it was submitted, and by whom: files it brings back go there
    jobs/TOKEN/inputs.pb        the list of its inputs with their hashes; inputs/0, inputs/1, ...: their bytes
    jobs/TOKEN/ATTEMPT/stdout   what came so far; also stderr, and pulled.json: up to where it is durable

Synchronous. All of it is the daemon's own, mode 0700.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from federation.errors import StoreFull
from federation.model.token import Key
from federation.proto.federation.v1 import federation_pb2 as pb
from slurm_plugin import atomic

STREAMS = ("stdout", "stderr")
PRIVATE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """`folder` as bytes that were decoded as a file system's names are."""

    user: str
    folder: str


class Spool:
    """Of one site."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def begin(self, token: UUID, home: Home) -> Path:
        """The folder for a job's inputs, empty. Raises StoreFull. Crash: it is cleared away an hour later."""
        inputs = self._job(token) / "inputs"
        shutil.rmtree(inputs, ignore_errors=True)
        try:
            inputs.mkdir(mode=0o700, parents=True)
            atomic.write(self._job(token) / "home.json", json.dumps(asdict(home)).encode("ascii"), mode=PRIVATE)
        except OSError as error:
            raise no_room(error) from None
        return inputs

    def finish(self, token: UUID, inputs: pb.Manifest) -> None:
        """All of it is durable after this. Raises StoreFull."""
        try:
            for nth in range(len(inputs.files)):
                _sync(self.input_file(token, nth))
            atomic.write(self._job(token) / "inputs.pb", inputs.SerializeToString(), mode=PRIVATE)
            for folder in (self._job(token) / "inputs", self._job(token), self._folder):
                _sync(folder)
        except OSError as error:
            raise no_room(error) from None

    def home(self, token: UUID) -> Home:
        """Raises FileNotFoundError."""
        return Home(**json.loads((self._job(token) / "home.json").read_bytes()))

    def inputs(self, token: UUID) -> pb.Manifest:
        """Raises FileNotFoundError."""
        return pb.Manifest.FromString((self._job(token) / "inputs.pb").read_bytes())

    def input_file(self, token: UUID, nth: int) -> Path:
        return self._job(token) / "inputs" / str(nth)

    def drop_inputs(self, token: UUID) -> None:
        shutil.rmtree(self._job(token) / "inputs", ignore_errors=True)

    def drop(self, token: UUID) -> None:
        shutil.rmtree(self._job(token), ignore_errors=True)

    def tokens(self) -> Iterator[UUID]:
        """Of all jobs that have a folder."""
        for one in self._folder.iterdir():
            with suppress(ValueError):  # it is nothing of ours
                yield UUID(one.name)

    def attempt(self, key: Key) -> Path:
        """The folder of its output, made if it is not there."""
        folder = self._job(key.token) / str(key.attempt)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def _job(self, token: UUID) -> Path:
        return self._folder / str(token)


def no_room(error: OSError) -> StoreFull:
    return StoreFull(f"can't keep the inputs: {error.strerror}", hint="make room in state_dir")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
