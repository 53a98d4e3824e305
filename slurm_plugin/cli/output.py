"""Where a command's words go: data to stdout, everything else to stderr."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from slurm_plugin.errors import VgpuError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

JSON_VERSION = 1  # grows when a field changes its meaning or goes; a new field alone does not change it


def emit(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def width() -> int:
    """Columns that the reader has, by COLUMNS or the terminal; 0 for a pipe or a file: whoever reads those wants lines
    as they are."""
    return get_terminal_size(fallback=(0, 0)).columns


def emit_document(kind: str, content: "DataclassInstance") -> None:
    """One JSON document: `version`, `kind`, then the fields of a dataclass."""
    document = {"version": JSON_VERSION, "kind": kind, **dataclasses.asdict(content)}
    json.dump(document, sys.stdout, indent=2, ensure_ascii=True)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """A remark that is not data."""
    sys.stderr.write(f"{text}\n")


def say_error(error: VgpuError) -> None:
    say(f"error: {error}")
    if error.hint:
        say(f"hint: {error.hint}")
