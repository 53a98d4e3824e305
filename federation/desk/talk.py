"""What `fed` and its daemon say over the unix socket: lines of JSON, and bytes that a line has announced.

One connection is one question: a line `{"do": ...}`, perhaps bytes, then the answer: lines `{"ok": ...}`, as many as
the question wants, or one `{"error": ...}`. Bytes that are no text are in JSON what they are in Python's file names.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from federation import errors
from federation.errors import FedError

MAX_LINE = 32 << 20  # bytes: an environment of 1 MiB and a list of 10,000 files, each byte escaped
PORTION = 1 << 20  # bytes read or written at once
BYTE_WEIGHT, PART_WEIGHT = 4, 128  # most bytes of memory that a byte, and a value with its place, of a line become

_KINDS: dict[str, type[FedError]] = {
    kind.code: kind
    for kind in (
        errors.ConfigError,
        errors.IllegalEvent,
        errors.Refused,
        errors.Unavailable,
        errors.OutcomeUnknown,
        errors.StoreError,
        errors.StoreUnfit,
        errors.StoreFull,
        errors.Untrusted,
    )
}


def line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode("ascii") + b"\n"


def weight(data: bytes) -> int:
    """Most bytes that this part of a line takes once it is read."""
    return BYTE_WEIGHT * len(data) + PART_WEIGHT * sum(map(data.count, (b",", b":", b"[", b"{")))


def parsed(data: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("too many things are inside each other") from None
    if not isinstance(content, dict):
        raise ValueError("not an object")  # noqa: TRY004 - it is what was said that is wrong
    return content


def failed(error: FedError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": str(error), "hint": error.hint}}


def raised(told: Mapping[str, Any]) -> FedError:
    """The error that an answer tells."""
    kind = _KINDS.get(str(told.get("code")), FedError)
    return kind(str(told.get("message")), hint=str(told.get("hint", "")))


def text(data: bytes) -> str:
    return os.fsdecode(data)


def raw(told: str) -> bytes:
    return os.fsencode(told)
