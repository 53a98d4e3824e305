"""The proxy's half of the wire, for proxies in Python: what it says as bytes, and the daemon's frames read."""

import struct

from federation.overflow.frames import (
    HEAD,
    Acknowledged,
    Data,
    Ended,
    FromDaemon,
    FromProxy,
    Hello,
    Ping,
    Refusal,
    Remark,
    Signalled,
    Stream,
    Welcome,
)

_FIELD = struct.Struct(">BI")
_TWO = struct.Struct(">QQ")
_ONE = struct.Struct(">Q")
_SIGNAL = struct.Struct(">IB")
_END = struct.Struct(">BI")
_DATA = {b"O": Stream.STDOUT, b"E": Stream.STDERR}


def from_daemon(kind: bytes, payload: bytes) -> FromDaemon | None:
    """None: a kind that this proxy does not know. Raises ValueError."""
    try:
        match kind:
            case b"W":
                stdout, stderr = _TWO.unpack(payload)
                return Welcome(stdout=stdout, stderr=stderr)
            case b"O" | b"E":
                return Data(stream=_DATA[kind], offset=_ONE.unpack_from(payload)[0], data=payload[_ONE.size :])
            case b"M":
                return Remark(text=payload.decode("utf-8", "replace"))
            case b"X":
                by_signal, value = _END.unpack(payload)
                return Ended(by_signal=bool(by_signal), value=value)
            case b"R":
                return Refusal(text=payload.decode("utf-8", "replace"))
            case b"P":
                return Ping()
    except struct.error as error:
        raise ValueError(f"a frame {kind!r} of a wrong size: {error}") from None
    return None


def to_daemon(message: FromProxy) -> bytes:
    match message:
        case Hello():
            return _frame(b"H", b"".join(_FIELD.pack(tag, len(value)) + value for tag, value in _fields(message)))
        case Acknowledged():
            return _frame(b"A", _TWO.pack(message.stdout, message.stderr))
        case Signalled():
            return _frame(b"S", _SIGNAL.pack(message.number, message.from_stepd))
        case Ping():
            return _frame(b"P", b"")


def _fields(hello: Hello) -> list[tuple[int, bytes]]:
    return [
        (1, b"%d" % hello.version),
        (2, b"%d" % hello.job_id),
        (3, b"%d" % hello.array_id),
        *([(4, b"%d" % hello.task_id)] if hello.task_id >= 0 else []),
        (5, b"%d" % hello.restarts),
        (6, hello.node.encode("ascii")),
        (7, hello.folder),
        (8, b"%o" % hello.umask),
        (9, b"%d" % hello.stdout_size),
        (10, b"%d" % hello.stderr_size),
        (11, b"%d" % hello.joined),
        (12, hello.script),
        *((13, one) for one in hello.args),
        *((14, name + b"=" + value) for name, value in hello.env),
        *((15, f"{one.name} {one.soft} {one.hard}".encode("ascii")) for one in hello.limits),
        (16, b"%d" % hello.regular),
        *([(17, b"%d" % hello.stdout_next)] if hello.stdout_next >= 0 else []),
        *([(18, b"%d" % hello.stderr_next)] if hello.stderr_next >= 0 else []),
        *([(19, b"%d" % hello.own)] if hello.own else []),
        *([(20, hello.stdin)] if hello.stdin else []),
    ]


def _frame(kind: bytes, payload: bytes) -> bytes:
    return HEAD.pack(kind, len(payload)) + payload
