"""The catalogue on disk. The form of its text is in `slurm_plugin.catalogue`."""

from pathlib import Path

from slurm_plugin import atomic
from slurm_plugin.catalogue import MAX_BYTES, Catalogue, parse, render
from slurm_plugin.errors import ConfigError

MODE = 0o644  # every user's cli_filter reads it


def read(path: Path) -> Catalogue:
    """Raises ConfigError when it is missing, unreadable or broken."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"catalogue {path}: {error.strerror}", hint="the controller writes it") from error
    try:
        return parse(data.decode("ascii"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"catalogue {path}: it is no text") from error


def write(path: Path, catalogue: Catalogue) -> bool:
    """Put it in the place of the old one, whole or not at all. False: the old one already says the same.

    Raises ConfigError when it could not be read back, OSError when the disk says no.
    Crash: readers see the old text or the new one; a stray may be left beside it.
    """
    data = render(catalogue).encode("ascii")
    if path.exists() and path.read_bytes() == data:
        return False
    atomic.write(path, data, mode=MODE)
    return True
