"""Files that are whole, the old one or the new one, whenever the writer dies."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

STRAY = ".new-"  # how the name of a file begins that was never finished


def write(
    path: Path, data: bytes, *, mode: int, lasting: bool = True, beside: Callable[[], None] = lambda: None
) -> os.stat_result:
    """Replace a file, and tell what it is then. `lasting`: it survives the machine too. Raises OSError.

    `beside` is called when the new file is whole and not yet in its place.
    Crash: the old file or the new one, perhaps beside a stray.
    """
    handle, fresh = tempfile.mkstemp(prefix=STRAY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
            facts = os.fstat(file.fileno())
        beside()
        Path(fresh).replace(path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise
    if lasting:
        _sync(path.parent)
    return facts


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
