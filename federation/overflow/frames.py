"""PURE: what the proxy of a job on a virtual node and the daemon say over the gateway's socket.

A frame is a kind (one byte), a length (four, big-endian) and so many bytes. The proxy begins with a hello, and says it
again after every loss; the daemon answers with a welcome, or refuses. Offsets count a job's own stream from its zero,
whatever was in the file before. What a newer side says and this one does not know is skipped. Everything here came from
a user's process: it is bounded, and means nothing until the kernel and Slurm have confirmed it.
"""

import struct
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

VERSION = 1
HEAD = struct.Struct(">cI")
MOST_HELLO = 12 << 20  # bytes: a script of 4 MiB, arguments and environment
MOST_FROM_PROXY = 64  # bytes of any other frame of a proxy's
MOST_DATA = 64 << 10  # bytes of output in one frame, which is kept for a proxy that takes none now
MOST_TEXT = 2000  # bytes of a remark or a refusal
MOST_FIELDS = 200_000  # of a hello
MOST_NUMBER = 1 << 62
MOST_JOB_ID = (1 << 31) - 1  # that squeue takes: with a larger one it answers for no job at all
_FIELD = struct.Struct(">BI")
_TWO = struct.Struct(">QQ")
_ONE = struct.Struct(">Q")
_SIGNAL = struct.Struct(">IB")
_END = struct.Struct(">BI")


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One resource limit, as Slurm has it of the host where the job was submitted: `NOFILE`, soft, hard; -1: none."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """`stdout_size`, `stderr_size`: bytes in the job's files now. `joined`: both are one file.

    `stdout_next`, `stderr_next`: bytes of the job's streams that this very proxy has; -1: it was never welcomed.
    `own`: bytes that it has written itself, all to stderr. `stdin`: the path of the file that is open there.
    """

    version: int = VERSION
    job_id: int
    array_id: int = 0
    task_id: int = -1  # -1: of no array
    restarts: int = 0
    node: str
    folder: bytes = b""  # absolute; empty: it is in none that there is
    umask: int = 0o022
    stdout_size: int = 0
    stderr_size: int = 0
    stdout_next: int = -1
    stderr_next: int = -1
    own: int = 0
    stdin: bytes = b""
    joined: bool = False
    regular: bool = True  # stdout is a regular file
    script: bytes = b""
    args: tuple[bytes, ...] = ()
    env: tuple[tuple[bytes, bytes], ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    stdout: int
    stderr: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled:
    number: int
    from_stepd: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Both ways: the daemon answers with one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    stdout: int
    stderr: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    stream: Stream
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """By a signal, or with an exit code."""

    by_signal: bool
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    text: str


FromProxy: TypeAlias = Hello | Acknowledged | Signalled | Ping
FromDaemon: TypeAlias = Welcome | Data | Remark | Ended | Refusal | Ping

# -- in


def length(head: bytes, *, most_hello: int = MOST_HELLO) -> tuple[bytes, int]:
    """Kind and bytes to come, of a frame that a proxy sends. Raises ValueError for more than that kind may have."""
    kind, size = HEAD.unpack(head)
    most = most_hello if kind == b"H" else MOST_FROM_PROXY
    if size > most:
        raise ValueError(f"a frame {kind!r} of {size} bytes; {most} are the most")
    return kind, size


def from_proxy(kind: bytes, payload: bytes) -> FromProxy | None:
    """None: a kind that this version does not know. Raises ValueError."""
    try:
        match kind:
            case b"H":
                return _hello(payload)
            case b"A":
                stdout, stderr = _TWO.unpack(payload)
                return Acknowledged(stdout=_bounded(stdout), stderr=_bounded(stderr))
            case b"S":
                number, from_stepd = _SIGNAL.unpack(payload)
                if not 1 <= number <= 64:
                    raise ValueError(f"there is no signal {number}")
                return Signalled(number=number, from_stepd=bool(from_stepd))
            case b"P":
                return Ping()
    except struct.error as error:
        raise ValueError(f"a frame {kind!r} of a wrong size: {error}") from None
    return None


def _hello(payload: bytes) -> Hello:
    fields: dict[int, bytes] = {}
    args: list[bytes] = []
    env: list[tuple[bytes, bytes]] = []
    limits: list[Limit] = []
    at = count = 0
    while at < len(payload):
        tag, size = _FIELD.unpack_from(payload, at)
        at += _FIELD.size
        value = payload[at : at + size]
        at, count = at + size, count + 1
        if len(value) != size or count > MOST_FIELDS:
            raise ValueError("a hello is cut off, or has too many fields")
        match tag:
            case 13:
                args.append(value)
            case 14:
                name, _, told = value.partition(b"=")
                env.append((name, told))
            case 15:
                limits += _limit(value)
            case _:
                fields[tag] = value
    found = _said(fields)
    return replace(found, args=tuple(args), env=tuple(env), limits=tuple(limits))


def _said(fields: dict[int, bytes]) -> Hello:
    node = fields.get(6, b"").decode("ascii")
    if not node or len(node) > 255 or not node.isprintable():
        raise ValueError("a hello without its node")
    if not 1 <= (job_id := _number(fields, 2)) <= MOST_JOB_ID:
        raise ValueError(f"no job has the id {job_id}")
    folder, stdin = fields.get(7, b""), fields.get(20, b"")
    if any(path and not path.startswith(b"/") for path in (folder, stdin)):
        raise ValueError("a folder or a stdin that is no absolute path")
    return Hello(
        version=_number(fields, 1, VERSION),
        job_id=job_id,
        array_id=_number(fields, 3, 0),
        task_id=_number(fields, 4, -1),
        restarts=_number(fields, 5, 0),
        node=node,
        folder=folder,
        umask=_umask(fields.get(8) or b"22"),
        stdout_size=_number(fields, 9, 0),
        stderr_size=_number(fields, 10, 0),
        stdout_next=_number(fields, 17, -1),
        stderr_next=_number(fields, 18, -1),
        own=_number(fields, 19, 0),
        stdin=stdin,
        joined=fields.get(11) == b"1",
        script=fields.get(12, b""),
        regular=fields.get(16, b"1") == b"1",
    )


def _umask(told: bytes) -> int:
    if not told.isdigit() or len(told) > 8:
        raise ValueError("a umask that is no octal number")
    return int(told, 8) & 0o777


def _number(fields: dict[int, bytes], tag: int, default: int | None = None) -> int:
    told = fields.get(tag, b"")
    if not told and default is not None:
        return default
    if not told.isdigit() or len(told) > 19:
        raise ValueError(f"field {tag} of a hello is no number")
    return _bounded(int(told))


def _limit(told: bytes) -> list[Limit]:
    """None for what is no limit: a user's own variable may look like Slurm's."""
    name, *amounts = told.decode("ascii", "replace").split(" ")
    if not name.isalpha() or not name.isupper() or len(name) > 16 or len(amounts) != 2:
        return []
    try:
        return [Limit(name=name, soft=_amount(amounts[0]), hard=_amount(amounts[1]))]
    except ValueError:
        return []


def _amount(told: str) -> int:
    """-1 where there is no limit, as the kernel's own word for it and what it is as a number are."""
    if told in ("-1", "unlimited"):
        return -1
    value = int(told)
    if value < 0:
        raise ValueError("a limit below nothing")
    return -1 if value >= MOST_NUMBER else value


def _bounded(value: int) -> int:
    if value > MOST_NUMBER:
        raise ValueError("a number is too large")
    return value


# -- out


def to_proxy(message: FromDaemon) -> bytes:
    match message:
        case Welcome():
            return _frame(b"W", _TWO.pack(message.stdout, message.stderr))
        case Data():
            return data_head(message.stream, message.offset, len(message.data)) + message.data
        case Remark():
            return _frame(b"M", _text(message.text))
        case Ended():
            return _frame(b"X", _END.pack(message.by_signal, message.value))
        case Refusal():
            return _frame(b"R", _text(message.text))
        case Ping():
            return _frame(b"P", b"")


def data_head(stream: Stream, offset: int, size: int) -> bytes:
    """What goes before so many bytes of output."""
    kind = b"O" if stream is Stream.STDOUT else b"E"
    return HEAD.pack(kind, _ONE.size + size) + _ONE.pack(offset)


def _frame(kind: bytes, payload: bytes) -> bytes:
    return HEAD.pack(kind, len(payload)) + payload


def _text(text: str) -> bytes:
    """One line that can be printed, whatever was said."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return " ".join(printable.split()).encode("utf-8", "backslashreplace")[:MOST_TEXT]
