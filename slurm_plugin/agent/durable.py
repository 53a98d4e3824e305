"""Small JSON files that are whole, old or new, whenever the agent dies."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_plugin import atomic
from slurm_plugin.errors import ConfigError

MAX_FILE_BYTES = 1 << 20  # longest file we read back

At = Callable[[str], None]
"""Called with a place's name wherever something is about to become lasting, and when it has: a test dies there."""


def nowhere(_place: str) -> None:
    """In service nobody dies on purpose."""


def write(path: Path | str, facts: Any, *, at: At = nowhere, lasting: bool = True) -> None:
    """Replace a file, mode 0600. `lasting`: it survives the machine too, not only this process. Raises OSError.

    Crash: the old file or the new one, perhaps beside a stray.
    """
    name = f"write {_short(path)}"
    at(f"{name}: before")
    data = json.dumps(facts).encode()
    atomic.write(path, data, mode=0o600, lasting=lasting, beside=lambda: at(f"{name}: beside"))
    at(f"{name}: after")


def delete(path: Path | str, *, at: At = nowhere) -> None:
    """Crash: the file may come back. Raises OSError."""
    name = f"delete {_short(path)}"
    at(f"{name}: before")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - see atomic
    at(f"{name}: after")


def read(path: Path | str) -> Any:
    """Raises OSError, and ValueError for what is no JSON or too long."""
    with open(path, "rb") as file:  # noqa: PTH123
        text = file.read(MAX_FILE_BYTES)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _short(path: Path | str) -> str:
    return "/".join(str(path).split("/")[-2:])


def make_folder(folder: Path) -> None:
    """Root's alone, and without what a crash left unfinished. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for stray in folder.glob(f"{atomic.STRAY}*"):
        stray.unlink(missing_ok=True)


@contextlib.contextmanager
def usable(folders: Mapping[str, Path]) -> Iterator[None]:
    """While an agent starts, with its folders by setting. Raises ConfigError for an OSError, with what is wanted."""
    try:
        yield
    except OSError as error:
        at = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else Path()
        near = [name for name, folder in folders.items() if folder in (at, *at.parents)] or list(folders)[:1]
        raise ConfigError(
            f"{near[0]}: the agent can't use {folders[near[0]]} ({at}): {error.strerror or error}",
            hint=f"it must be a folder that root can write, on a disk with room; or set {near[0]} in agent.yaml",
        ) from error
