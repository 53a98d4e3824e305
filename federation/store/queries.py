"""Named queries and migrations, read from the .sql files beside this one."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def queries() -> Mapping[str, str]:
    """Name -> SQL."""
    parts = _NAME.split(files(__package__).joinpath("queries.sql").read_text())
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


@cache
def migrations() -> tuple[str, ...]:
    """What makes version 1 of an empty file, version 2 of version 1, and so on."""
    folder = files(__package__).joinpath("migrations")
    return tuple(
        one.read_text() for one in sorted(folder.iterdir(), key=lambda one: one.name) if one.name[:4].isdigit()
    )
