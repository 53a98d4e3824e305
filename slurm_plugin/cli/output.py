"""Where a command's words go: data to stdout, everything else to stderr."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping

from slurm_plugin.errors import VgpuError

JSON_VERSION = 1  # grows when a field changes its meaning or goes; a new field alone does not change it


def emit(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def emit_document(kind: str, content: object) -> None:
    """One JSON document: `version`, `kind`, then the fields of a dataclass or mapping."""
    fields = dataclasses.asdict(content) if dataclasses.is_dataclass(content) else content  # type: ignore[arg-type]
    if not isinstance(fields, Mapping):
        raise TypeError(f"a document has named fields, not {type(content).__name__}")
    json.dump({"version": JSON_VERSION, "kind": kind, **fields}, sys.stdout, indent=2, ensure_ascii=True)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """A remark that is not data."""
    sys.stderr.write(f"{text}\n")


def say_error(error: VgpuError) -> None:
    say(f"error: {error}")
    if error.hint:
        say(f"hint: {error.hint}")
