"""Files that are whole, the old one or the new one, whenever the writer dies.

Names here are text: `Path` interns each part of one, and Python 3.12 never lets go of what is interned. A daemon that
writes a file a job would grow with its jobs.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

STRAY = ".new-"  # how the name of a file begins that was never finished


def write(
    path: Path | str, data: bytes, *, mode: int, lasting: bool = True, beside: Callable[[], None] = lambda: None
) -> os.stat_result:
    """Replace a file, and tell what it is then. `lasting`: it survives the machine too. Raises OSError.

    `beside` is called when the new file is whole and not yet in its place.
    Crash: the old file or the new one, perhaps beside a stray.
    """
    folder = os.path.dirname(path) or "."  # noqa: PTH120
    handle, fresh = tempfile.mkstemp(prefix=STRAY, dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
            facts = os.fstat(file.fileno())
        beside()
        os.replace(fresh, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)  # noqa: PTH108
        raise
    if lasting:
        _sync(folder)
    return facts


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
