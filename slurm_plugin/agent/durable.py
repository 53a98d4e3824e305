"""Small JSON files that are whole, old or new, whenever the agent dies."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 1 << 20  # longest file we read back
STRAY = ".new-"  # how the name of a file begins that was never finished

At = Callable[[str], None]
"""Called with a place's name wherever something is about to become lasting, and when it has: a test dies there."""


def nowhere(_place: str) -> None:
    """In service nobody dies on purpose."""


def write(path: Path, facts: Any, *, at: At = nowhere, lasting: bool = True) -> None:
    """Replace a file, mode 0600. `lasting`: it survives the machine too, not only this process. Raises OSError.

    Crash: the old file or the new one, perhaps beside a stray.
    """
    name = f"write {path.parent.name}/{path.name}"
    at(f"{name}: before")
    handle, fresh = tempfile.mkstemp(prefix=STRAY, dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(facts, file)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        at(f"{name}: beside")
        Path(fresh).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(fresh).unlink()
        raise
    if lasting:
        _sync(path.parent)
    at(f"{name}: after")


def delete(path: Path, *, at: At = nowhere) -> None:
    """Crash: the file may come back. Raises OSError."""
    name = f"delete {path.parent.name}/{path.name}"
    at(f"{name}: before")
    path.unlink(missing_ok=True)
    at(f"{name}: after")


def read(path: Path) -> Any:
    """Raises OSError, and ValueError for what is no JSON or too long."""
    with path.open("rb") as file:
        text = file.read(MAX_FILE_BYTES)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def make_folder(folder: Path) -> None:
    """Root's alone, and without what a crash left unfinished. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for stray in folder.glob(f"{STRAY}*"):
        stray.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
